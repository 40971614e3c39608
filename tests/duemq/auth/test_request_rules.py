"""Resources and actions of request codes."""

from __future__ import annotations

import json

import pytest

from duemq.auth import accesses as access_rules
from duemq.auth.accesses import ACCESSES_MAX, HANDLES_MAX, Access, TooManyNames
from duemq.auth.model import Action, Resource
from duemq.auth.request_rules import accesses
from duemq.auth.request_table import ROWS
from duemq.net.decisions import NAMES_MAX
from duemq_common.codes import RequestCode

CLUSTER = "DefaultCluster"


def needed(code: int, body: object = None, **fields: str) -> list[str]:
    encoded = b"" if body is None else json.dumps(body).encode()
    found = accesses(code, fields | {"AccessKey": "alice"}, encoded, CLUSTER)
    return [f"{a.resource.key} {','.join(x.value for x in a.actions)}" for a in found]


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (10, {"topic": "orders"}, ["Topic:orders Pub"]),
        (10, {"topic": "%RETRY%g", "group": "h"}, ["Group:h Sub", "Group:g Sub"]),
        (10, {"topic": "%RETRY%g"}, ["Group:g Sub"]),
        (310, {"b": "orders", "a": "producers"}, ["Topic:orders Pub"]),
        (320, {"b": "%RETRY%g", "a": " "}, ["Group:g Sub"]),
        (11, {"topic": "orders", "consumerGroup": "g"}, ["Topic:orders Sub", "Group:g Sub"]),
        (11, {"topic": "%RETRY%g", "consumerGroup": "g"}, ["Group:g Sub"]),
        (361, {"topic": "orders", "consumerGroup": "g"}, ["Topic:orders Sub", "Group:g Sub"]),
        (12, {"topic": "orders"}, ["Topic:orders Sub,Get"]),
        (
            14,
            {"topic": "orders", "consumerGroup": "g"},
            ["Topic:orders Sub,Get", "Group:g Sub,Get"],
        ),
        (15, {"topic": "%RETRY%g", "consumerGroup": "g"}, ["Group:g Sub,Update"]),
        (35, {"consumerGroup": "g"}, ["Group:g Sub"]),
        (35, {"producerGroup": "p"}, []),
        (36, {"group": "g"}, ["Group:g Sub"]),
        (37, {"topic": "orders"}, ["Topic:orders Pub"]),
        (37, {}, []),
        (38, {"consumerGroup": "g"}, ["Group:g Sub,Get"]),
        (105, {"topic": "orders"}, ["Topic:orders Pub,Sub,Get"]),
        (105, {"topic": "%RETRY%g"}, ["Group:g Sub,Get"]),
        (370, {"topic": "orders"}, ["Topic:orders Pub"]),
        (17, {"topic": "orders"}, ["Topic:orders Create"]),
        (215, {"topic": "%RETRY%g"}, ["Group:g Delete"]),
        (
            208,
            {"consumerGroup": "g", "topicList": "a;b"},
            ["Group:g Get", "Topic:a Get", "Topic:b Get"],
        ),
        (
            308,
            {"filterGroups": "a,b", "compareGroup": "c", "topic": "t"},
            ["Group:a Get", "Group:b Get", "Group:c Get", "Topic:t Get"],
        ),
        (103, {"clusterName": "Other"}, ["Cluster:Other Update"]),
        (103, {}, ["Cluster:DefaultCluster Update"]),
        (3004, {}, ["Cluster:DefaultCluster Get"]),
        (25, {}, ["Cluster:DefaultCluster Update"]),
        (11, {"topic": "%RETRY%g", "consumerGroup": "h"}, ["Group:h Sub", "Group:g Sub"]),
        (9011, {"topic": "orders"}, ["Cluster:DefaultCluster Update"]),
        (9011, {}, ["Cluster:DefaultCluster Update"]),
        (99_999, {"topic": "orders"}, [f"Cluster:{CLUSTER} Update"]),
    ],
)
def test_header_fields_name_the_resources(
    code: int, fields: dict[str, str], expected: list[str]
) -> None:
    assert needed(code, None, **fields) == expected


def test_a_heartbeat_needs_its_groups_and_topics() -> None:
    subscriptions = [{"topic": "orders"}, {"topic": "%RETRY%g"}]
    body = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": subscriptions}]}
    assert needed(34, body) == ["Group:g Sub", "Topic:orders Sub"]


@pytest.mark.parametrize("code", [41, 42])
def test_locks_need_the_group_and_the_topics_of_the_queues(code: int) -> None:
    body = {"consumerGroup": "g", "mqSet": [{"topic": "orders"}, {"topic": "%RETRY%g"}]}
    assert needed(code, body) == ["Group:g Sub", "Topic:orders Sub"]


@pytest.mark.parametrize("code", [34, 41])
@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
def test_a_malformed_body_raises(code: int, body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        accesses(code, {"AccessKey": "alice"}, body, CLUSTER)


def test_a_request_names_a_bounded_number_of_resources() -> None:
    topics = [{"topic": f"t{number}"} for number in range(ACCESSES_MAX)]
    body = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": topics[1:]}]}
    assert len(needed(34, body)) == ACCESSES_MAX
    body["consumerDataSet"][0]["subscriptionDataSet"] = [*topics, *topics]
    with pytest.raises(TooManyNames, match="4096"):
        needed(34, body)


def test_every_code_needs_a_permission() -> None:
    without = {
        code for code in ROWS if not accesses(code, {"AccessKey": "x", "topic": "t"}, b"{}", "c")
    }
    assert without <= {
        RequestCode.HEART_BEAT,  # its body names the groups
        RequestCode.BATCH_ACK_MESSAGE,  # so does its body
        RequestCode.UNREGISTER_CLIENT,  # only consumers need a permission
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.GET_BROKER_MEMBER_GROUP,
    }


@pytest.mark.parametrize("fields", [{}, {"topic": "T"}])
def test_a_code_without_a_rule_needs_an_administrator(fields: dict[str, str]) -> None:
    (access,) = accesses(77_001, fields, b"", CLUSTER)
    assert (access.resource.key, access.actions) == (f"Cluster:{CLUSTER}", (Action.UPDATE,))
    assert accesses(RequestCode.CHECK_CLIENT_CONFIG, fields, b"", CLUSTER) == []


def test_an_assignment_needs_its_group_and_topic_and_a_mode_an_administrator() -> None:
    body = b'{"topic":"T","consumerGroup":"g"}'
    assert [each.resource.key for each in accesses(400, {}, body, "c")] == ["Group:g", "Topic:T"]
    retry = b'{"topic":"%RETRY%g","consumerGroup":"g"}'
    assert [each.resource.key for each in accesses(400, {}, retry, "c")] == ["Group:g"]
    assert [each.resource.key for each in accesses(401, {}, body, "c")] == ["Cluster:c"]


ACKED = {
    "topic": ("T", "T"),
    "pop retry topic": ("%RETRY%g_T", "T"),
    "pop retry topic V2": ("%RETRY%g+T", "T"),
}


@pytest.mark.parametrize(("named", "topic"), ACKED.values(), ids=ACKED)
@pytest.mark.parametrize("code", [200_051, 200_053])
def test_an_acknowledgement_needs_its_group_and_the_topic_that_was_popped(
    code: int, named: str, topic: str
) -> None:
    assert needed(code, consumerGroup="g", topic=named) == ["Group:g Sub", f"Topic:{topic} Sub"]


def test_the_retry_topic_of_another_group_needs_that_group() -> None:
    assert "Group:h_T Sub" in needed(200_051, consumerGroup="g", topic="%RETRY%h_T")


def test_a_batch_of_acknowledgements_needs_each_group_and_topic() -> None:
    entries = [{"c": "g", "t": "T"}, {"consumerGroup": "h", "topic": "U"}, {"c": "g", "t": "T"}]
    found = needed(200_151, {"acks": entries})
    assert found == ["Group:g Sub", "Topic:T Sub", "Group:h Sub", "Topic:U Sub"]


MANY = 16_000
EQUAL_NAMES: dict[str, tuple[int, object, dict[str, str]]] = {
    "topics of a heartbeat": (
        34,
        {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T"}] * MANY}]},
        {},
    ),
    "groups of a heartbeat": (34, {"consumerDataSet": [{"groupName": "g"}] * MANY}, {}),
    "locked queues": (41, {"consumerGroup": "g", "mqSet": [{"topic": "T"}] * MANY}, {}),
    "acknowledgements": (200_151, {"acks": [{"c": "g", "t": "T"}] * MANY}, {}),
    "topics of a field": (208, None, {"consumerGroup": "g", "topicList": "T;" * MANY}),
}


@pytest.mark.parametrize(("code", "body", "fields"), EQUAL_NAMES.values(), ids=EQUAL_NAMES)
def test_equal_names_are_one_access(
    monkeypatch: pytest.MonkeyPatch, code: int, body: object, fields: dict[str, str]
) -> None:
    """The check runs on the event loop before the limit of the handler."""
    made: list[Resource] = []

    def access(resource: Resource, actions: tuple[Action, ...]) -> Access:
        made.append(resource)
        return Access(resource, actions)

    monkeypatch.setattr(access_rules, "Access", access)
    assert needed(code, body, **fields)
    assert len(made) <= 2


def test_a_request_with_too_many_names_is_refused_before_all_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[str] = []
    monkeypatch.setattr(access_rules, "decode_handle", decoded.append)
    with pytest.raises(TooManyNames, match="10000 handles"):
        needed(9011, {"handles": ["x"] * (HANDLES_MAX + 1)})
    assert decoded == []
    assert HANDLES_MAX == NAMES_MAX


@pytest.mark.finding("3S7")
@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (41, b'{"consumerGroup":"a","consumer\\u0047roup":"b"}', ["Group:b Sub"]),
        (34, b'{"consumerDataSet":[{"groupName":"a"}],"consumerDataSet":null}', []),
        (200151, b'{"acks":[{"c":null,"consumerGroup":"a","topic":"T"}]}', ["Group: Sub"]),
        (400, b'{"consumerGroup":"a","topic":"%RETRY%a","x":[{},[{}]]}', ["Group:a Sub"]),
        (9011, b'{"ids":[ ],"keys":[],"handles":["x"]}', []),
        (9011, b'{"ids":[ 1],"handles":["x"]}', ["Cluster:DefaultCluster Update"]),
        (9011, b"", ["Cluster:DefaultCluster Update"]),
    ],
)
def test_the_check_reads_the_names_that_the_handler_reads(
    code: int, body: bytes, expected: list[str]
) -> None:
    found = accesses(code, {"AccessKey": "alice"}, body, CLUSTER)
    shown = [f"{a.resource.key} {','.join(x.value for x in a.actions)}" for a in found]
    assert shown[: len(expected) or None] == expected


@pytest.mark.finding("3S7")
def test_too_many_acknowledgements_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(TooManyNames, match="more than 16384 acknowledgements"):
        accesses(200_151, {}, b"{" * (access_rules.ACK_OBJECTS_MAX + 1), CLUSTER)


@pytest.mark.finding("3S7")
@pytest.mark.parametrize("code", [34, 41, 42, 200151, 9011])
def test_the_first_refusal_ends_the_search_for_names(code: int) -> None:
    names = {
        "consumerDataSet": [{"groupName": f"g{number}"} for number in range(5_000)],
        "consumerGroup": "g",
        "mqSet": [{"topic": f"t{number}"} for number in range(5_000)],
        "acks": [{"c": f"g{number}", "t": "T"} for number in range(5_000)],
        "ids": ["x"],
    }
    checked = []

    def refuse(access: Access) -> None:
        checked.append(access)
        raise PermissionError

    with pytest.raises(PermissionError):
        accesses(code, {"AccessKey": "alice"}, json.dumps(names).encode(), CLUSTER, refuse)
    assert len(checked) == 1
