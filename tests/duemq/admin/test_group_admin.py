"""Consumer groups for tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq_common.errors import RequestError
from duemq_common.request import Response
from tests.support.admin_broker import AdminBroker, admin_broker, key
from tests.support.stores import put_one


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    with admin_broker(tmp_path) as found:
        yield found


# -- settings -------------------------------------------------------------------------------------


def test_a_group_is_created_changed_and_deleted(broker: AdminBroker) -> None:
    body = {"groupName": "G", "retryMaxTimes": 3, "attributes": {}}
    assert broker.call(200, json.dumps(body).encode()) == Response()
    found = broker.see(352, group="G")
    assert (found["retryMaxTimes"], found["attributes"]) == (3, {})
    assert broker.see(201)["subscriptionGroupTable"]["G"] == found
    assert broker.call(207, groupName="G") == Response()
    assert broker.groups.find("G") is None


def test_all_groups_with_their_version(broker: AdminBroker) -> None:
    assert sorted(broker.see(201)) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (200, b""),
        (200, b"{"),
        (200, b'{"groupName":"a b"}'),
        (200, b'{"groupName":"G","retryMaxTimes":"x"}'),
        (225, b"{}"),
        (225, b'{"groupConfigList":[5]}'),
        (225, b'{"groupConfigList":[{"groupName":"G"},{"groupName":""}]}'),
    ],
)
def test_groups_that_cannot_be(broker: AdminBroker, code: int, body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        broker.call(code, body)
    assert refused.value.code in (1, 29)
    assert broker.groups.find("G") is None


def test_a_group_is_created_when_it_is_asked_for(broker: AdminBroker) -> None:
    """Apache's gRPC proxy queries a group before the first heartbeat of its consumers."""
    assert broker.see(352, group="G")["groupName"] == "G"
    assert broker.groups.find("G") is not None
    broker.groups.auto_create = False
    with pytest.raises(RequestError) as refused:
        broker.call(352, group="H")
    assert refused.value.code == 26


def test_several_groups_are_created_together(broker: AdminBroker) -> None:
    groups = {"groupConfigList": [{"groupName": "G"}, {"groupName": "H"}]}
    assert broker.call(225, json.dumps(groups).encode()) == Response()
    assert broker.see(352, group="H")["groupName"] == "H"


@pytest.mark.parametrize(
    ("fields", "left"),
    [({}, ["T"]), ({"cleanOffset": "true"}, []), ({"removeOffset": "true"}, [])],
)
def test_deleting_a_group_may_forget_its_progress(
    broker: AdminBroker, fields: dict[str, str], left: list[str]
) -> None:
    broker.offsets.commit("G", "T", 0, 1)
    broker.call(207, groupName="G", **fields)
    assert broker.offsets.topics_of("G") == left


# -- progress -------------------------------------------------------------------------------------


def fill(broker: AdminBroker) -> None:
    """Store three messages, 100 ms apart, in queue 1 of T; the group has consumed two."""
    broker.create("T")
    for _ in range(3):
        put_one(broker.store, "T", 1)
        broker.clock.advance(100)
    broker.offsets.commit("G", "T", 1, 2)


def test_lag_of_a_group(broker: AdminBroker) -> None:
    fill(broker)
    broker.offsets.commit_pull("G", "T", 1, 3)
    second_ms = broker.clock.now_ms() - 200
    assert broker.see(208, consumerGroup="G") == {
        "consumeTps": 0.0,
        "offsetTable": {
            key(0, "T"): lag(0, 0, 0, 0),
            key(1, "T"): lag(3, 2, second_ms, 3),
        },
    }


def lag(end: int, consumed: int, last_ms: int, pulled: int) -> dict[str, int]:
    return {
        "brokerOffset": end,
        "consumerOffset": consumed,
        "lastTimestamp": last_ms,
        "pullOffset": pulled,
    }


@pytest.mark.parametrize(
    ("fields", "online", "topics"),
    [
        ({}, [], {"T", "U"}),
        ({"topic": "U"}, [], {"U"}),
        ({"topic": "W"}, [], {"W"}),  # no progress yet
        ({"topic": "absent"}, [], set()),
        ({"topicList": "T;absent"}, [], {"T"}),
        ({"topicList": "T;U", "topic": "W"}, ["T"], {"T", "U"}),
        ({}, ["T", "W"], {"T", "W"}),  # members gave up U
        ({"topic": "U"}, ["T"], set()),
    ],
)
def test_which_topics_208_is_about(
    broker: AdminBroker, fields: dict[str, str], online: list[str], topics: set[str]
) -> None:
    for name in "TUW":
        broker.create(name, 1)
    for name in ("T", "U", "gone"):
        broker.offsets.commit("G", name, 0, 1)
    if online:
        broker.subscribe("G", *online)
    table = broker.see(208, consumerGroup="G", **fields)["offsetTable"]
    assert {json.loads(text)["topic"] for text in table} == topics


def test_from_when_to_when_and_how_late(broker: AdminBroker) -> None:
    fill(broker)
    spans = broker.see(303, topic="T", group="G")["consumeTimeSpanSet"]
    now_ms = broker.clock.now_ms()
    assert spans == [
        {
            "consumeTimeStamp": -1,
            "delayTime": 0,
            "maxTimeStamp": -1,
            "messageQueue": {"brokerName": "b", "queueId": 0, "topic": "T"},
            "minTimeStamp": -1,
        },
        {
            "consumeTimeStamp": now_ms - 200,
            "delayTime": 100,
            "maxTimeStamp": now_ms - 100,
            "messageQueue": {"brokerName": "b", "queueId": 1, "topic": "T"},
            "minTimeStamp": now_ms - 300,
        },
    ]
    with pytest.raises(RequestError) as refused:
        broker.call(303, topic="absent", group="G")
    assert refused.value.code == 17


def test_all_progress_for_slaves_has_bare_numbers_as_keys(broker: AdminBroker) -> None:
    broker.offsets.commit("G", "T", 0, 5)
    assert b'"offsetTable":{"T@G":{0:5}}' in bytes(broker.call(43).body)


@pytest.mark.parametrize(
    ("fields", "online", "cloned"),
    [
        ({}, [], ["T", "U"]),
        ({"topic": "U"}, [], ["U"]),
        ({}, ["T"], ["T"]),
        ({"offline": "true"}, ["T"], ["T", "U"]),
    ],
)
def test_progress_is_cloned(
    broker: AdminBroker, fields: dict[str, str], online: list[str], cloned: list[str]
) -> None:
    for name in "TU":
        broker.create(name)
    for name in ("T", "U", "gone"):
        broker.offsets.commit("G", name, 0, 4)
    if online:
        broker.subscribe("G", *online)
    assert broker.call(314, srcGroup="G", destGroup="H", **fields) == Response()
    assert broker.offsets.topics_of("H") == cloned


def test_cloning_an_unknown_topic_is_refused(broker: AdminBroker) -> None:
    with pytest.raises(RequestError) as refused:
        broker.call(314, srcGroup="G", destGroup="H", topic="absent", offline="true")
    assert refused.value.code == 1


# -- consumers of a topic ------------------------------------------------------------------------


def test_topics_of_a_group(broker: AdminBroker) -> None:
    for name in ("U", "T"):
        broker.offsets.commit("G", name, 0, 1)
    assert broker.see(343, group="G") == {"topicList": ["T", "U"]}


@pytest.mark.parametrize(
    ("topic", "expected"), [("T", {"subString": "A||B", "subVersion": 7}), ("U", None)]
)
def test_a_subscription(broker: AdminBroker, topic: str, expected: Any) -> None:
    broker.subscribe("G", "T")
    found = broker.see(345, group="G", topic=topic)
    reported = found.pop("subscriptionData", None)
    assert found == {"group": "G", "topic": topic}
    assert (reported is None) is (expected is None)
    assert expected is None or expected.items() <= reported.items()


def test_groups_of_a_list_are_deleted_with_their_offsets(broker: AdminBroker) -> None:
    for name in ("a", "b", "c"):
        broker.call(200, json.dumps({"groupName": name}).encode())
        broker.offsets.commit(name, "T", 0, 1)
    body = {"groupNameList": ["a", "b", "b"], "cleanOffset": True}
    assert broker.call(5003, json.dumps(body).encode()) == Response()
    table = broker.see(201)["subscriptionGroupTable"]
    assert "c" in table
    assert not {"a", "b"} & table.keys()
    assert [broker.offsets.query(name, "T", 0) for name in "abc"] == [None, None, 1]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"groupNameList": [" "]}'])
def test_a_list_without_groups_is_refused(broker: AdminBroker, body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        broker.call(5003, body)
    assert refused.value.code == 29


@pytest.mark.finding("3C8")
def test_the_priority_factor_of_a_group_is_kept(broker: AdminBroker) -> None:
    def change(attributes: dict[str, str]) -> Response:
        body = {"groupName": "G", "attributes": attributes}
        return broker.call(200, json.dumps(body).encode())

    assert change({"+priority.factor": "50"}) == Response()
    found = broker.see(352, group="G")
    assert found["attributes"] == {"priority.factor": "50"}
    for name, value, reason in (
        ("priority.factor", "101", "cannot be"),
        ("priority.factor", "-1", "cannot be"),
        ("lite.bind.topic", "T", "no lite topics"),
    ):
        with pytest.raises(RequestError, match=reason):
            change({f"+{name}": value})
