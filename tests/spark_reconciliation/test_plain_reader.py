"""Tables of a scan, compared with an independent reader that shares no layout with the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import plain_store
from tests.support.fault_classes import made_store
from tests.support.golden_stores import STORES, golden_store
from tests.support.plain_store import PlainStore, java_hash
from tests.support.read_tables import read_rows

pytestmark = pytest.mark.finding("3P2")
TOP = Path(__file__).parents[2]
NAMES = [*(store.name for store in STORES), "DueMQ"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_store(tmp_path_factory.mktemp("ours") / "store")


@pytest.fixture(params=NAMES)
def store(request: pytest.FixtureRequest, ours: Path) -> PlainStore:
    return PlainStore(ours if request.param == "DueMQ" else golden_store(request.param))


def test_the_reader_is_independent() -> None:
    source = Path(plain_store.__file__).read_text()
    packages = [path.name for path in TOP.iterdir() if (path / "__init__.py").is_file()]
    assert "message_store" in packages
    assert not [name for name in packages if f"from {name}" in source or f"import {name}" in source]


def test_messages(store: PlainStore) -> None:
    rows = read_rows(store.root, "messages")
    expected = store.records()
    assert len(expected) > 50
    assert [
        (
            row["phys_offset"],
            row["record_size"],
            row["topic"],
            row["queue_id"],
            row["queue_offset"],
            row["store_ms"],
            row["born_ms"],
            row["flag"],
            row["sys_flag"],
            row["reconsume_times"],
            row["prepared_offset"],
            row["body_crc"],
            row["body"],
            row["unique_id"],
            row["keys"],
            row["tags"],
            row["real_topic"],
        )
        for row in rows
    ] == [
        (
            one.log_offset,
            one.size,
            one.topic,
            one.queue,
            one.number,
            one.store_ms,
            one.born_ms,
            one.flag,
            one.sys_flag,
            one.reconsumed,
            one.prepared,
            one.crc,
            one.body,
            *(one.properties.get(name) for name in ("UNIQ_KEY", "KEYS", "TAGS", "REAL_TOPIC")),
        )
        for one in expected
    ]


def test_units_of_queues(store: PlainStore) -> None:
    end = max(record.log_offset + record.size for record in store.records())
    expected = {
        (topic, queue, number, *unit)
        for topic, queue in store.queues()
        for number, unit in store.units(topic, queue).items()
        if unit[0] < end
    }
    names = ("topic", "queue_id", "queue_offset", "phys_offset", "record_size", "tags_code")
    rows = read_rows(store.root, "consume_queue", *names, "fault")
    assert {tuple(row[name] for name in names) for row in rows} == expected
    assert all(row["fault"] is None for row in rows)


def test_each_record_has_exactly_one_unit(store: PlainStore) -> None:
    """The independent form of what the audit computes by sums."""
    units = {
        (topic, queue, number): unit
        for topic, queue in store.queues()
        for number, unit in store.units(topic, queue).items()
    }
    for record in store.records():
        if record.sys_flag & 0xC in (0, 8):
            at, size, code = units.pop((record.topic, record.queue, record.number))
            assert (at, size) == (record.log_offset, record.size)
            if record.topic != plain_store.SCHEDULE:
                assert code == java_hash(record.properties.get("TAGS", ""))
    assert not units


def test_units_of_timers_and_cursors(store: PlainStore) -> None:
    names = ("pos", "prev_pos", "magic", "write_ms", "phys_offset", "record_size", "topic_hash")
    rows = read_rows(store.root, "timer_log", *names, "slot_ms", "due_ms")
    end = max(record.log_offset + record.size for record in store.records())
    expected = [
        (pos, unit[1], unit[2], unit[3], unit[5], unit[6], unit[7], unit[3] + unit[4], unit[8])
        for pos, unit in store.timer_units()
        if unit[5] < end
    ]
    assert [tuple(row.values()) for row in rows] == expected
    cursors = read_rows(store.root, "cursors", "kind", "name", "value")
    levels = {row["name"]: row["value"] for row in cursors if row["kind"] == "level"}
    assert levels == store.json("delayOffset.json")["offsetTable"]
