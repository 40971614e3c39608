"""Topics for tools."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.pull.queue_times import store_ms_at
from duemq_common import json_dialect
from duemq_common.errors import RequestError
from duemq_common.json_dialect import ObjectKey
from duemq_common.request import Response
from tests.support.admin_broker import AdminBroker, admin_broker, key
from tests.support.golden_frames import read_exchanges
from tests.support.golden_stores import frame_files
from tests.support.stores import put_one

CREATE = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
    "attributes": "",
    "force": "false",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    with admin_broker(tmp_path) as found:
        yield found


def test_a_topic_is_created_changed_and_deleted(broker: AdminBroker) -> None:
    assert broker.call(17, **CREATE) == Response()
    assert broker.see(351, topic="T", lo="true") == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 2,
    }
    broker.call(17, **CREATE | {"perm": "4", "order": "true", "attributes": "+message.type=DELAY"})
    found = broker.see(351, topic="T")
    assert (found["perm"], found["order"]) == (4, True)
    assert found["attributes"] == {"message.type": "DELAY"}
    assert broker.call(215, topic="T") == Response()
    with pytest.raises(RequestError) as refused:
        broker.call(351, topic="T")
    assert refused.value.code == 17


@pytest.mark.parametrize("missing", sorted(CREATE.keys() - {"topicSysFlag", "attributes", "force"}))
def test_mandatory_fields(broker: AdminBroker, missing: str) -> None:
    with pytest.raises(RequestError, match=missing) as refused:
        broker.call(17, **{name: value for name, value in CREATE.items() if name != missing})
    assert refused.value.code == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "TBW102"}, 29),
        ({"topic": "a b"}, 29),
        ({"topic": ""}, 29),
        ({"perm": "99"}, 29),
        ({"writeQueueNums": "-1"}, 29),
        ({"readQueueNums": "many"}, 1),
        ({"topicFilterType": "NONE"}, 1),
        ({"attributes": "message.type"}, 1),
        ({"attributes": "+no.such=1"}, 1),
    ],
)
def test_topics_that_cannot_be(broker: AdminBroker, change: dict[str, str], code: int) -> None:
    with pytest.raises(RequestError) as refused:
        broker.call(17, **CREATE | change)
    assert refused.value.code == code


def test_several_topics_are_created_together(broker: AdminBroker) -> None:
    topics = [{"topicName": name, "perm": 6, "writeQueueNums": 3} for name in "TU"]
    assert broker.call(18, json.dumps({"topicConfigList": topics}).encode()) == Response()
    assert broker.see(351, topic="U")["writeQueueNums"] == 3
    assert broker.topics.version.counter == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"topicConfigList":5}',
        b'{"topicConfigList":[5]}',
        b'{"topicConfigList":[{"topicName":"T"},{"topicName":"a b"}]}',
    ],
)
def test_lists_that_cannot_be(broker: AdminBroker, body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        broker.call(18, body)
    assert refused.value.code == 29
    assert broker.topics.find("T") is None


def test_deleting_takes_queues_and_progress_along(broker: AdminBroker) -> None:
    broker.create("T")
    put_one(broker.store, "T", 1)
    broker.offsets.commit("G", "T", 1, 1)
    broker.call(215, topic="T")
    assert broker.store.queue_bounds("T", 1) == (0, 0)
    assert broker.offsets.groups_of("T") == []


@pytest.mark.parametrize("name", ["", "TBW102", "SCHEDULE_TOPIC_XXXX"])
def test_what_cannot_be_deleted(broker: AdminBroker, name: str) -> None:
    with pytest.raises(RequestError) as refused:
        broker.call(215, topic=name)
    assert refused.value.code == 29


@pytest.mark.parametrize("name", ["absent", "../../outside", ".."])
def test_deleting_what_is_not_there_is_fine_and_touches_nothing(
    broker: AdminBroker, tmp_path: Path, name: str
) -> None:
    (tmp_path / "outside").mkdir()
    assert broker.call(215, topic=name) == Response()
    assert (tmp_path / "outside").is_dir()


@pytest.mark.finding("A17")
def test_deleting_names_that_never_were_leaves_no_trace(
    broker: AdminBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_one(broker.store, "T")
    syncs: list[int] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, syncs.append)
    for number in range(50):
        assert broker.call(215, topic=f"absent-{number}") == Response()
    assert syncs == []
    assert not list(tmp_path.rglob("deletedTopics.json"))


@pytest.mark.finding("A17")
def test_the_table_of_deleted_topics_has_a_limit(
    broker: AdminBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("message_store.queues.deleted_topics.DELETIONS_MAX", 2)
    for name in "TUV":
        broker.create(name)
        put_one(broker.store, name)
    for name in "TU":
        broker.call(215, topic=name)
    with pytest.raises(RequestError, match="deleted topics still have records") as refused:
        broker.call(215, topic="V")
    assert refused.value.code == 1
    assert broker.topics.find("V") is not None
    assert broker.store.queue_bounds("V", 0) == (0, 1)


@pytest.mark.finding("A17")
def test_a_deletion_that_the_disk_refuses_is_an_answer(
    broker: AdminBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("T")
    put_one(broker.store, "T")

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("message_store.queues.deleted_topics.write_config", full)
        with pytest.raises(RequestError, match=r"topic T cannot be deleted.*Try again") as refused:
            broker.call(215, topic="T")
    assert refused.value.code == 1
    assert broker.call(215, topic="T") == Response()


def test_all_topics_with_their_version(broker: AdminBroker) -> None:
    found = broker.see(21)
    assert sorted(found) == [
        "dataVersion",
        "mappingDataVersion",
        "topicConfigTable",
        "topicQueueMappingDetailMap",
        "topicQueueMappingInfoMap",
    ]
    assert found["topicConfigTable"]["BenchmarkTest"]["writeQueueNums"] == 1024


def test_statistics_of_every_queue(broker: AdminBroker) -> None:
    broker.create("T")
    broker.clock.advance(500)
    put_one(broker.store, "T", 1)
    found = broker.see(202, topic="T")
    empty = {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    stored_ms = broker.clock.now_ms()
    assert found == {
        "offsetTable": {
            key(0, "T"): empty,
            key(1, "T"): {"lastUpdateTimestamp": stored_ms, "maxOffset": 1, "minOffset": 0},
        },
        "topicPutTps": 0.0,
    }


def test_statistics_of_an_unknown_topic(broker: AdminBroker) -> None:
    with pytest.raises(RequestError) as refused:
        broker.call(202, topic="T")
    assert refused.value.code == 17


@pytest.mark.parametrize(
    ("online", "committed", "groups"),
    [([], [], []), (["G"], [], ["G"]), ([], ["H"], ["H"]), (["G", "H"], ["H"], ["G", "H"])],
)
def test_who_consumes_a_topic(
    broker: AdminBroker, online: list[str], committed: list[str], groups: list[str]
) -> None:
    for group in online:
        broker.subscribe(group, "T")
    for group in committed:
        broker.offsets.commit(group, "T", 0, 1)
    broker.subscribe("other", "U")
    assert broker.see(300, topic="T") == {"groupList": groups}


def test_system_topics(broker: AdminBroker) -> None:
    names: Any = broker.see(305)["topicList"]
    assert {"TBW102", "b", "DefaultCluster", "rmq_sys_wheel_timer"} <= set(names)


@pytest.mark.parametrize(
    ("offset", "found"), [(-1, False), (0, True), (1, False), (1 << 40, False)]
)
def test_store_times(broker: AdminBroker, offset: int, found: bool) -> None:
    put_one(broker.store, "T", 0)
    expected = broker.clock.now_ms() if found else -1
    assert store_ms_at(broker.store, "T", 0, offset) == expected


# -- compared with Apache -----------------------------------------------------------------------


def shape(value: Any) -> Any:
    """Return the names in a body, level by level; entries of a table by queue are one."""
    if isinstance(value, dict):
        return {("queue" if isinstance(k, ObjectKey) else k): shape(v) for k, v in value.items()}
    return None


def test_recorded_tools_get_the_answers_apache_gave(broker: AdminBroker) -> None:
    (stream,) = (path for path in frame_files() if "mqadmin" in path.name)
    for topic in ("CppT", "GoT", "JavaT"):
        broker.create(topic, 4)
        put_one(broker.store, topic, 0)
        broker.offsets.commit("go_group" if topic == "GoT" else "cpp_group", topic, 0, 1)
    compared = set()
    for server, _, request, apache in read_exchanges(stream):
        if server != "broker" or request.code not in broker.handlers or apache is None:
            continue
        ours = broker.call(request.code, request.body, **request.fields)
        assert (ours.code, set(ours.fields or ())) == (apache.code, set(apache.fields or ()))
        mine, theirs = (
            shape(json_dialect.loads(bytes(each.body).decode() or "{}")) for each in (ours, apache)
        )
        assert mine == theirs, request
        compared.add(int(request.code))
    assert compared == {17, 200, 202, 208, 215, 300, 351}


def test_topics_of_a_list_are_deleted(broker: AdminBroker) -> None:
    for name in ("A", "B", "C"):
        broker.create(name)
    assert broker.call(5002, b'{"topicList": ["A", "B", "nowhere"]}') == Response()
    assert [broker.topics.find(name) is None for name in "ABC"] == [True, True, False]


@pytest.mark.finding("3C8")
@pytest.mark.parametrize("change", ["+message.type=LITE", "+lite.topic.expiration=5"])
def test_attributes_of_lite_topics_are_refused_with_the_reason(
    broker: AdminBroker, change: str
) -> None:
    with pytest.raises(RequestError, match="no lite topics"):
        broker.call(17, **CREATE | {"attributes": change})
