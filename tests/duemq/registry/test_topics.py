"""The topic manager: its file, automatic creation, changes, what the name servers hear."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.plugin import SystemTopic
from duemq.configuration.config import BrokerConfig
from duemq.registry.config_file import ConfigFile
from duemq.registry.default_topics import default_topics
from duemq.registry.table_file import TableFile
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore, RequestError
from message_store.queues.topic_table import TopicTable
from tests.support.golden_stores import copy_golden_store
from tests.support.no_journal import topic_journal

CONFIG = BrokerConfig(broker_name="broker-a")


def read_back(path: Path) -> dict[str, Any]:
    """Return what a start would read."""
    found = TableFile(ConfigFile(path), "topicConfigTable").load(dict)
    assert found is not None
    return found


class Broker:
    """A topic manager and what it reports."""

    def __init__(self, root: Path, config: BrokerConfig = CONFIG, **options: Any) -> None:
        self.path = root / "topics.json"
        self.routing = options.pop("routing", TopicTable())
        self.clock = FakeClock()
        self.reported: list[str] = []
        self.topics = TopicManager(
            config,
            self.routing,
            ConfigFile(self.path),
            self.clock,
            journal=topic_journal(),
            **options,
        )
        self.topics.changed = self.report
        self.topics.load()

    async def report(self, topics: Sequence[TopicConfig]) -> None:
        assert self.on_disk(topics[0].name) is not None
        self.reported += [topic.name for topic in topics]

    def on_disk(self, name: str) -> Any:
        return read_back(self.path)["topicConfigTable"].get(name)

    def routed(self, name: str) -> tuple[int, int, int, int]:
        row = self.routing.arrays.topics[self.routing.find(name)]
        columns = ("write_queues", "read_queues", "perm", "closed")
        return tuple(int(row[column]) for column in columns)  # type: ignore[return-value]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


# -- what is there from the start -----------------------------------------------------------------


def test_a_new_broker_has_apaches_topics(broker: Broker, tmp_path: Path) -> None:
    config = copy_golden_store("apache-5.3.3-clean", tmp_path) / "config"
    table = json_dialect.loads((config / "topics.json").read_text())["topicConfigTable"]
    own = {name: value for name, value in table.items() if "olden" not in name}
    assert {topic.name: topic.to_json() for topic in broker.topics} == own


@pytest.mark.parametrize(
    ("change", "topic", "expected"),
    [
        ({"auto_create_topic": False}, "TBW102", None),
        ({"default_topic_queues": 3}, "TBW102", (3, 7)),
        ({"cluster_topic_enable": False}, "DefaultCluster", (16, 1)),
        ({"broker_topic_enable": False}, "broker-a", (1, 1)),
        ({}, "RMQ_SYS_TRACE_TOPIC", None),
        ({"trace_topic_enable": True}, "RMQ_SYS_TRACE_TOPIC", (1, 6)),
        ({"trace_topic_enable": True, "trace_topic": "Trace"}, "Trace", (1, 6)),
    ],
)
def test_configuration_decides_on_default_topics(
    change: dict[str, Any], topic: str, expected: tuple[int, int] | None
) -> None:
    found = default_topics(BrokerConfig(broker_name="broker-a", **change)).get(topic)
    assert (found and (found.write_queues, found.perm)) == expected


def test_plugins_bring_topics(tmp_path: Path) -> None:
    wanted = (SystemTopic("QUARANTINE", 2, 4), SystemTopic("SCHEDULE_TOPIC_XXXX", 25))
    broker = Broker(tmp_path, system_topics=wanted)
    assert broker.routed("QUARANTINE") == (2, 2, 4, 0)
    assert broker.routed("SCHEDULE_TOPIC_XXXX") == (25, 25, 6, 1)
    assert broker.topics.is_system("QUARANTINE")


def test_levels_that_were_added_get_queues_though_the_file_has_fewer(tmp_path: Path) -> None:
    Broker(tmp_path).topics.persist()
    broker = Broker(tmp_path, system_topics=(SystemTopic("SCHEDULE_TOPIC_XXXX", 25),))
    assert broker.routed("SCHEDULE_TOPIC_XXXX") == (25, 25, 6, 1)


# -- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_apaches_file_is_read(version: str, tmp_path: Path) -> None:
    broker = Broker(copy_golden_store(f"apache-{version}-clean", tmp_path) / "config")
    assert broker.topics.find("GoldenDelay") == TopicConfig(
        name="GoldenDelay", read_queues=4, write_queues=4
    )
    assert broker.topics.version.counter == {"4.9.7": 9, "5.3.3": 8}[version]


def test_apaches_file_is_written_byte_for_byte(tmp_path: Path) -> None:
    broker = Broker(copy_golden_store("apache-5.3.3-clean", tmp_path) / "config")
    assert json_dialect.dumps(broker.topics.to_json()) == broker.path.read_text()


def test_unknown_members_survive_a_change(tmp_path: Path) -> None:
    topic = TopicConfig(name="T").to_json() | {"zone": "z"}
    data = {"dataVersion": {"counter": 4}, "later": [1], "topicConfigTable": {"T": topic}}
    (tmp_path / "topics.json").write_text(json_dialect.dumps(data))
    broker = Broker(tmp_path)
    asyncio.run(broker.topics.update([TopicConfig(name="T", perm=4)]))
    written = read_back(broker.path)
    assert written["later"] == [1]
    assert written["topicConfigTable"]["T"] == topic | {"perm": 4}


@pytest.mark.parametrize(
    "text",
    ["{", "", '{"topicConfigTable":[1]}', '{"topicConfigTable":{"T":{"perm":99}}}', "[]"],
)
def test_a_file_that_cannot_be_used_stops_the_broker(tmp_path: Path, text: str) -> None:
    (tmp_path / "topics.json").write_text(text)
    with pytest.raises(CorruptStore, match=r"topics\.json"):
        Broker(tmp_path)


def test_without_the_file_queues_in_the_store_tell_the_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    routing = TopicTable()
    for queue_id in (0, 2):
        routing.slot(routing.add("Orders"), queue_id, create=True)
    routing.slot(routing.add("SCHEDULE_TOPIC_XXXX"), 3, create=True)
    broker = Broker(tmp_path, routing=routing)
    assert broker.topics.find("Orders") == TopicConfig(name="Orders", read_queues=3, write_queues=3)
    assert broker.routed("SCHEDULE_TOPIC_XXXX") == (18, 18, 6, 1)
    assert "'Orders': 3" in caplog.text
    assert "SCHEDULE" not in caplog.text


def test_persist_writes_only_what_changed(broker: Broker) -> None:
    broker.topics.persist()
    broker.path.unlink()
    broker.topics.persist()
    assert not broker.path.exists()


def test_auto_creation_switched_off_drops_the_template_of_an_old_file(tmp_path: Path) -> None:
    Broker(tmp_path).topics.persist()
    broker = Broker(tmp_path, BrokerConfig(broker_name="broker-a", auto_create_topic=False))
    assert broker.topics.find("TBW102") is None


# -- automatic creation ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "template", "queues", "expected"),
    [
        ("T", "TBW102", 4, (4, 6)),
        ("T", "TBW102", 16, (8, 6)),
        ("T", "TBW102", 0, (0, 6)),
        ("T", "TBW102", -3, (0, 6)),
        ("T", "DefaultCluster", 100, (16, 6)),
        ("T", "SELF_TEST_TOPIC", 4, None),  # no inherit bit
        ("T", "absent", 4, None),
        ("T", "", 4, None),
        ("%RETRY%g", "absent", 4, (1, 6)),
        ("%RETRY%g", "TBW102", 4, (4, 6)),
    ],
)
def test_a_first_send_creates_the_topic(
    broker: Broker, name: str, template: str, queues: int, expected: tuple[int, int] | None
) -> None:
    found = asyncio.run(
        broker.topics.create_for_send(name, default_topic=template, default_queues=queues)
    )
    assert (found and (found.write_queues, found.perm)) == expected
    if expected is not None:
        assert broker.routed(name) == (expected[0], *expected, 0)
        assert broker.reported == [name]


def test_without_auto_creation_no_send_creates(tmp_path: Path) -> None:
    broker = Broker(tmp_path, BrokerConfig(broker_name="broker-a", auto_create_topic=False))
    found = broker.topics.create_for_send("T", default_topic="TBW102", default_queues=4)
    assert asyncio.run(found) is None


@pytest.mark.parametrize(("name", "flag"), [("T", 1), ("%RETRY%g", 2)])
def test_units_mark_their_topics(broker: Broker, name: str, flag: int) -> None:
    found = asyncio.run(
        broker.topics.create_for_send(
            name, default_topic="TBW102", default_queues=4, unit_mode=True
        )
    )
    assert found is not None
    assert found.sys_flag == flag


def test_many_first_sends_create_once(broker: Broker) -> None:
    async def main() -> None:
        ensured = (broker.topics.ensure("%RETRY%g", queues=1) for _ in range(20))
        assert len(set(map(id, await asyncio.gather(*ensured)))) == 1

    asyncio.run(main())
    assert broker.reported == ["%RETRY%g"]
    assert broker.topics.version.counter == 1


def test_an_existing_topic_is_returned_as_it_is(broker: Broker) -> None:
    found = asyncio.run(broker.topics.ensure("BenchmarkTest", queues=1, perm=2))
    assert (found.write_queues, found.perm, broker.reported) == (1024, 6, [])


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "x" * 128, "\u5ef6"])
def test_illegal_names_are_refused(broker: Broker, name: str) -> None:
    with pytest.raises(RequestError) as refused:
        asyncio.run(broker.topics.ensure(name, queues=1))
    assert refused.value.code == 29
    assert broker.topics.find(name) is None


@pytest.mark.parametrize("together", [False, True])
def test_a_topic_with_which_no_broker_starts_is_not_stored(tmp_path: Path, together: bool) -> None:
    broker = Broker(tmp_path)
    name, queues = "%RETRY%g", 65_537
    work = (
        broker.topics.ensure_all([TopicConfig(name=name, read_queues=queues, write_queues=queues)])
        if together
        else broker.topics.ensure(name, queues=queues)
    )
    with pytest.raises(RequestError, match="65537 read queues") as refused:
        asyncio.run(work)
    assert refused.value.code == 29
    assert broker.topics.find(name) is None
    broker.topics.persist()
    assert Broker(tmp_path).topics.find(name) is None


def test_a_full_disk_refuses_and_changes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json_dialect, "write_config", full)
    with pytest.raises(RequestError, match="No space left") as refused:
        asyncio.run(broker.topics.ensure("T", queues=1))
    assert refused.value.code == 14
    assert broker.topics.find("T") is None
    assert broker.routing.find("T") == -1


# -- explicit changes -----------------------------------------------------------------------------


def test_update_creates_changes_and_ignores_what_is_so_already(broker: Broker) -> None:
    topics = broker.topics
    for perm in (6, 4, 4):
        asyncio.run(topics.update([TopicConfig(name="T", perm=perm)]))
    assert broker.reported == ["T", "T"]
    assert topics.version.counter == 2
    assert broker.routed("T") == (16, 16, 4, 0)
    assert broker.on_disk("T")["perm"] == 4


def test_update_alters_attributes(broker: Broker) -> None:
    for changes in ({"+message.type": "DELAY", "+queue.type": "SimpleCQ"}, {"-message.type": ""}):
        asyncio.run(broker.topics.update([TopicConfig(name="T", attributes=changes)]))
    assert broker.on_disk("T")["attributes"] == {"queue.type": "SimpleCQ"}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (TopicConfig(name="TBW102"), 29),
        (TopicConfig(name="rmq_sys_anything"), 29),
        (TopicConfig(name="broker-a"), 29),
        (TopicConfig(name="DefaultCluster_REPLY_TOPIC"), 29),
        (TopicConfig(name="a b"), 29),
        (TopicConfig(name="T", write_queues=100_000), 29),
        (TopicConfig(name="T", perm=77), 29),
        (TopicConfig(name="T", attributes={"+no.such": "1"}), 1),
    ],
)
def test_an_update_that_cannot_be_changes_nothing(
    broker: Broker, topic: TopicConfig, code: int
) -> None:
    with pytest.raises(RequestError) as refused:
        asyncio.run(broker.topics.update([TopicConfig(name="Before"), topic]))
    assert refused.value.code == code
    assert broker.topics.find("Before") is None
    assert broker.reported == []


def test_delete_forgets_and_closes_the_routing(broker: Broker) -> None:
    asyncio.run(broker.topics.ensure("T", queues=2))
    assert asyncio.run(broker.topics.delete("T")) is True
    assert asyncio.run(broker.topics.delete("T")) is False
    assert broker.topics.find("T") is None
    assert broker.routed("T") == (0, 0, 0, 0)
    assert broker.on_disk("T") is None
    assert broker.reported == ["T"]  # only of the creation: 216 removes routes


@pytest.mark.parametrize("name", ["", " ", "TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a"])
def test_delete_refuses_system_topics(broker: Broker, name: str) -> None:
    with pytest.raises(RequestError) as refused:
        asyncio.run(broker.topics.delete(name))
    assert refused.value.code == 29


def test_changes_are_there_after_a_restart(tmp_path: Path) -> None:
    asyncio.run(Broker(tmp_path).topics.ensure("T", queues=3))
    broker = Broker(tmp_path)
    assert broker.routed("T") == (3, 3, 6, 0)
    assert broker.topics.version.counter == 1


def test_topics_that_come_into_being_together_share_a_write(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with a thousand new topics does not wait for a thousand writes."""
    writes: list[int] = []
    write = TableFile.write_line

    def counted(file: TableFile, line: bytes) -> None:
        writes.append(len(line))
        write(file, line)

    async def main() -> list[TopicConfig]:
        return await asyncio.gather(*(broker.topics.ensure(name, queues=1) for name in names))

    monkeypatch.setattr("duemq.registry.table_file.WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(TableFile, "write_line", counted)
    names = [f"T{n % 50}" for n in range(100)]
    found = asyncio.run(main())
    assert [topic.name for topic in found] == names
    assert (
        len({id(topic) for topic in found})
        == len(set(broker.reported))
        == len(broker.reported)
        == 50
    )
    assert len(writes) <= 3
    assert [Broker(tmp_path).topics.find(name) for name in names] == found


def test_the_disk_refuses_topics_created_together_one_by_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    async def main() -> list[Any]:
        made = (broker.topics.ensure(f"T{n}", queues=1) for n in range(20))
        return await asyncio.gather(*made, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "_write", refuse)
        patch.setattr(TableFile, "write_line", refuse)
        assert {type(error) for error in asyncio.run(main())} == {RequestError}
    asyncio.run(broker.topics.ensure("T3", queues=1))
    assert (broker.topics.find("T4"), broker.reported) == (None, ["T3"])


def test_a_saved_table_reads_as_one_written_at_once(broker: Broker) -> None:
    for name in ("T1", "T2"):
        asyncio.run(broker.topics.ensure(name, queues=2))
    asyncio.run(broker.topics.update([TopicConfig(name="T1", read_queues=5, write_queues=5)]))
    asyncio.run(broker.topics.delete("T2"))
    assert json_dialect.dumps(read_back(broker.path)) == json_dialect.dumps(broker.topics.to_json())
    asyncio.run(broker.topics.save())
    assert broker.path.read_text() == json_dialect.dumps(broker.topics.to_json())


@pytest.mark.finding("D1")
@pytest.mark.parametrize(
    ("name", "value"), [("queue.type", "BatchCQ"), ("cleanup.policy", "COMPACTION")]
)
def test_a_topic_of_a_kind_that_is_not_served_is_reported_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    topic = TopicConfig(name="T", attributes={name: value}).to_json()
    data = {"dataVersion": {"counter": 4}, "topicConfigTable": {"T": topic}}
    (tmp_path / "topics.json").write_text(json_dialect.dumps(data))
    broker = Broker(tmp_path)
    assert broker.topics.find("T") is not None
    assert f"topic T has the attribute {name}={value}" in caplog.text
    asyncio.run(broker.topics.update([TopicConfig(name="T", attributes={f"-{name}": ""})]))
    assert broker.topics.find("T") == TopicConfig(name="T")


@pytest.mark.finding("E8")
def test_topics_of_one_heartbeat_are_created_in_one_write(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[int] = []
    write = TableFile.write_line

    def counted(file: TableFile, line: bytes) -> None:
        lines.append(len(line))
        write(file, line)

    asyncio.run(broker.topics.ensure("T0", queues=1))
    broker.reported.clear()
    monkeypatch.setattr("duemq.registry.table_file.WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(TableFile, "write_line", counted)
    wanted = [TopicConfig(name=f"T{n}") for n in range(500)]
    asyncio.run(broker.topics.ensure_all(wanted))
    asyncio.run(broker.topics.ensure_all(wanted))
    assert len(lines) == 1
    assert len(broker.reported) == 499
    assert broker.on_disk("T499") is not None
    with pytest.raises(RequestError):
        asyncio.run(broker.topics.ensure_all([TopicConfig(name="U"), TopicConfig(name="a b")]))
    assert broker.topics.find("U") is None


@pytest.mark.finding("E8")
def test_the_number_of_topics_is_bounded_by_its_key(tmp_path: Path) -> None:
    broker = Broker(tmp_path, replace(CONFIG, topics_max=64))
    room = 64 - len(broker.topics)
    asyncio.run(broker.topics.ensure_all([TopicConfig(name=f"T{n}") for n in range(room)]))
    for work in (
        broker.topics.ensure("U", queues=1),
        broker.topics.update([TopicConfig(name="U")]),
        broker.topics.ensure_all([TopicConfig(name="U")]),
    ):
        with pytest.raises(RequestError, match="topicsMax=64"):
            asyncio.run(work)
    asyncio.run(broker.topics.update([TopicConfig(name="T0", perm=4)]))
