"""Damaged stores: opening gives a known error or a working store with all undamaged records."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq_common.clock import FakeClock
from duemq_common.errors import DueMQError, RecordUnreadable
from message_store import layout
from message_store.log.record import Record
from message_store.queues.consume_queue import ConsumeQueue, FileCache
from message_store.store import MessageStore
from tests.message_store.test_golden_records import log_bytes, records
from tests.message_store.test_golden_stores import Key, Unit, apache_queues
from tests.support.golden_stores import (
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    STORES,
    copy_golden_store,
    end_ms,
    golden_config,
    golden_store,
    level_rules,
)
from tests.support.stores import put_one

NAMES = [store.name for store in STORES]
WALKED = NAMES[:3]  # opening scans their whole log, that of the killed one from 65536 on
EXAMPLES = settings(max_examples=12)
noise = st.binary(min_size=1, max_size=12) | st.sampled_from([b"\0" * 40, b"\xff" * 20])


@contextmanager
def damaged_copy(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="duemq-fuzz-") as directory:
        yield copy_golden_store(name, Path(directory))


def opened(root: Path) -> MessageStore:
    clock = FakeClock(end_ms(root.name.split("-")[1]))
    return MessageStore(golden_config(root), clock, tags_code_rules=level_rules())


@functools.cache
def facts(name: str) -> tuple[dict[int, Record], dict[Key, list[Unit]]]:
    return dict(records(log_bytes(golden_store(name)))), apache_queues(golden_store(name))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def use(store: MessageStore) -> None:
    """Read everything in the store and write to it: only known errors may be raised."""
    for slot in range(store.topics.queue_count):
        topic_index, queue_id = store.topics.queue_of(slot)
        topic = store.topics.name(topic_index)
        at, end = store.queue_bounds(topic, queue_id)
        while at < end:
            units = store.units(topic, queue_id, at, 64)
            for few in [units, *(units[i : i + 1] for i in range(units.size))]:
                try:
                    assert len(store.gather(topic, queue_id, at, few)) == int(few["size"].sum())
                except RecordUnreadable:
                    continue
            at += max(units.size, 1)
        store.search_offset(topic, queue_id, store.clock.now_ms())
        store.earliest_store_ms(topic, queue_id)
    for rows in store.scan(store.min_offset):
        for at in rows["phys_offset"].tolist():
            try:
                record = store.read_record(at)
            except RecordUnreadable:
                continue
            store.query_keys(record.topic, record.properties.get("KEYS", "k"), 32, 0, 1 << 62)
    assert put_one(store, "Fresh", 0, b"still here")["status"] == 0


def has_all(store: MessageStore, name: str, log_end: int) -> None:
    """Check that every record before `log_end` is readable and in its queue."""
    found, queues = facts(name)
    for at, record in found.items():
        if at + record.total_size <= log_end:
            assert store.read_record(at) == record
    for (topic, queue_id), units in queues.items():
        expected = [unit for unit in units if unit[0] + unit[1] <= log_end]
        first, end = store.queue_bounds(topic, queue_id)
        assert first == 0 or not expected
        assert end >= len(expected)
        read: list[Unit] = []
        while len(read) < len(expected):
            for u in store.units(topic, queue_id, len(read), len(expected) - len(read)):
                read.append((int(u["phys_offset"]), int(u["size"]), int(u["tags_code"])))
        assert read == expected


def has_untouched(store: MessageStore, name: str, start: int, end: int) -> None:
    """Check that every undamaged record is readable, also behind the damage."""
    for at, record in facts(name)[0].items():
        if at + record.total_size <= start or at >= end:
            assert store.read_record(at) == record


@EXAMPLES
@given(st.sampled_from(NAMES), st.integers(0, 1 << 30), noise)
def test_damage_in_the_log_loses_nothing_before_it(name: str, at: int, data: bytes) -> None:
    log_end = max(at + record.total_size for at, record in facts(name)[0].items())
    at %= log_end - len(data)
    at = min(at, LOG_FILE_BYTES * (at // LOG_FILE_BYTES + 1) - len(data))
    with damaged_copy(name) as root:
        path = root / "commitlog" / f"{at // LOG_FILE_BYTES * LOG_FILE_BYTES:020d}"
        overwrite(path, at % LOG_FILE_BYTES, data)
        for _ in range(2):
            with opened(root) as store:
                has_all(store, name, at)
                has_untouched(store, name, at, at + len(data))
                use(store)


@EXAMPLES
@given(st.sampled_from(WALKED), st.integers(0, 1 << 30), st.integers(0, 1 << 30), noise)
def test_damage_in_a_queue_loses_nothing(name: str, which: int, at: int, data: bytes) -> None:
    with damaged_copy(name) as root:
        paths = sorted((root / "consumequeue").glob("*/*/*"))
        overwrite(paths[which % len(paths)], at % (QUEUE_FILE_BYTES - len(data)), data)
        with opened(root) as store:
            has_all(store, name, 1 << 62)
            use(store)


@EXAMPLES
@given(st.sampled_from(NAMES), st.integers(0, 1 << 30), st.binary(max_size=70_000) | st.none())
def test_a_replaced_file_is_a_known_error_or_harmless(
    name: str, which: int, data: bytes | None
) -> None:
    with damaged_copy(name) as root:
        paths = sorted(p for p in root.rglob("*") if p.is_file())
        path = paths[which % len(paths)]
        path.unlink() if data is None else path.write_bytes(data)
        try:
            with opened(root) as store:
                use(store)
        except DueMQError as error:
            assert str(root) in str(error)  # noqa: PT017 - the message names the file


@EXAMPLES
@given(st.sampled_from(NAMES), st.integers(0, 1 << 30), st.integers(0, 1 << 30), noise)
def test_damage_in_the_index_or_the_checkpoint_stops_nothing(
    name: str, which: int, at: int, data: bytes
) -> None:
    with damaged_copy(name) as root:
        paths = [root / "checkpoint", *sorted((root / "index").iterdir())]
        path = paths[which % len(paths)]
        overwrite(path, at % (path.stat().st_size - len(data)), data)
        with opened(root) as store:
            has_all(store, name, 1 << 62)
            use(store)


@given(st.binary(max_size=2 * QUEUE_FILE_BYTES))
def test_a_queue_of_any_bytes_loads(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="duemq-fuzz-") as directory:
        root = Path(directory)
        data = data.ljust(2 * QUEUE_FILE_BYTES, b"\0")
        for base in (0, QUEUE_FILE_BYTES):
            path = root / f"{base:020d}"
            path.write_bytes(data[base : base + QUEUE_FILE_BYTES])
        files = FileCache()
        queue = ConsumeQueue(root, QUEUE_FILE_BYTES, files)
        queue.load()
        units = np.frombuffer(data, layout.CQ_UNIT)
        assert queue.min_offset <= queue.max_offset <= units.size
        for offset in range(queue.min_offset, queue.max_offset):
            for unit in queue.read(offset, 100):
                assert unit["size"] > 0
                assert unit["phys_offset"] >= 0
        queue.correct_min(100)
        queue.truncate(10_000)
        assert queue.min_offset <= queue.max_offset
        files.close()


@pytest.mark.parametrize(
    "name",
    ["x", "-1", "01", "99999999999999999999", "٣", "70000", "1.bak"],
)
def test_foreign_queue_directories_are_ignored(tmp_path: Path, name: str) -> None:
    root = copy_golden_store(NAMES[0], tmp_path)
    (root / "consumequeue" / "GoldenPlain" / name).mkdir()
    with opened(root) as store:
        has_all(store, NAMES[0], 1 << 62)
