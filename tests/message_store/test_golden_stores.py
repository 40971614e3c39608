"""Apache's stores opened: queues, units and keys are the same, and opening changes nothing."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.text import java_hash
from message_store import layout
from message_store.log.record import Record
from message_store.recovery.checkpoint import Checkpoint
from message_store.store import MessageStore
from tests.message_store.test_golden_records import log_bytes, records
from tests.support.golden_stores import (
    ALL_STORES,
    INDEX_ITEMS,
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    NEWEST_STORES,
    SCHEDULE_TOPIC,
    STORES,
    VERSIONS,
    GoldenStore,
    copy_golden_store,
    end_ms,
    golden_config,
    golden_store,
    level_rules,
    manifest_lines,
)
from tests.support.stores import put_one

Unit = tuple[int, int, int]  # log offset, size, tags code
Key = tuple[str, int]  # topic, queue id


@pytest.fixture(params=ALL_STORES, ids=str)
def golden(request: pytest.FixtureRequest) -> GoldenStore:
    store: GoldenStore = request.param
    return store


@pytest.fixture
def root(golden: GoldenStore, tmp_path: Path) -> Path:
    return copy_golden_store(golden.name, tmp_path)


def open_golden(root: Path, notice: Callable[[str], None] = lambda text: None) -> MessageStore:
    clock = FakeClock(end_ms(root.name.split("-")[1]))
    return MessageStore(golden_config(root), clock, tags_code_rules=level_rules(), notice=notice)


def apache_queues(root: Path) -> dict[Key, list[Unit]]:
    """Read every queue file with Python."""
    found: dict[Key, list[Unit]] = {}
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        units = np.frombuffer(path.read_bytes(), layout.CQ_UNIT)
        key = (path.parts[-3], int(path.parts[-2]))
        found.setdefault(key, []).extend(
            (int(u["phys_offset"]), int(u["size"]), int(u["tags_code"])) for u in units if u["size"]
        )
    return found


def our_queues(store: MessageStore) -> dict[Key, list[Unit]]:
    """Read every queue through an open store."""
    found: dict[Key, list[Unit]] = {}
    for slot in range(store.topics.queue_count):
        topic_index, queue_id = store.topics.queue_of(slot)
        topic = store.topics.name(topic_index)
        first, end = store.queue_bounds(topic, queue_id)
        units: list[Unit] = []
        while first + len(units) < end:
            for unit in store.units(topic, queue_id, first + len(units), 1_000):
                units.append((int(unit["phys_offset"]), int(unit["size"]), int(unit["tags_code"])))
        found[topic, queue_id] = units
    return found


def queue_files(root: Path) -> dict[str, bytes]:
    top = root / "consumequeue"
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def digests(root: Path, *folders: str) -> dict[str, str]:
    paths = [p for folder in folders for p in (root / folder).rglob("*") if p.is_file()]
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def all_records(root: Path) -> dict[int, Record]:
    return dict(records(log_bytes(root)))


# -- what Apache wrote, read the plain way ------------------------------------------------------


def test_every_unit_refers_to_its_record(golden: GoldenStore) -> None:
    root = golden_store(golden.name)
    found, checked = all_records(root), 0
    for (topic, queue_id), units in apache_queues(root).items():
        for queue_offset, (phys_offset, size, tags_code) in enumerate(units):
            record = found[phys_offset]
            assert (record.topic, record.queue_id) == (topic, queue_id)
            assert (record.queue_offset, record.total_size) == (queue_offset, size)
            assert tags_code == due_code(record) or java_hash(tags(record)) == tags_code
            checked += 1
    assert checked == sum(r.sys_flag & 0xC in (0, 8) for r in found.values())


def tags(record: Record) -> str:
    return record.properties.get("TAGS", "")


def due_code(record: Record) -> int:
    """Return the tags code of a pending level message, which is its due time."""
    if record.topic != SCHEDULE_TOPIC:
        return java_hash(tags(record))
    level = int(record.properties["DELAY"])
    return record.store_ms + int(level_rules()[0].tables[0].delays_ms[level])


def index_items(path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, key hash, log offset, store time of the item in seconds)."""
    data = path.read_bytes()
    (header,) = np.frombuffer(data, layout.INDEX_HEADER, 1)
    at = layout.INDEX_HEADER.itemsize + INDEX_SLOTS * layout.INDEX_SLOT.itemsize
    items = np.frombuffer(data, layout.INDEX_ITEM, INDEX_ITEMS, at)
    for number in range(1, int(header["index_count"])):
        item = items[number]
        time_ms = int(header["begin_ms"]) + int(item["time_diff_s"]) * 1_000
        yield number, int(item["key_hash"]), int(item["phys_offset"]), time_ms


def key_hashes(record: Record) -> set[int]:
    names = [record.properties.get("UNIQ_KEY", ""), *record.properties.get("KEYS", "").split(" ")]
    return {abs(java_hash(f"{record.topic}#{name}")) for name in names if name}


def tag_hash(record: Record) -> int:
    """Return the hash by which Apache 5.5 indexes the tag of a record."""
    return abs(java_hash(f"{record.topic}#T#{tags(record)}"))


def test_every_index_entry_resolves(golden: GoldenStore) -> None:
    root = golden_store(golden.name)
    found, checked = all_records(root), 0
    for path in sorted((root / "index").iterdir()):
        for _, key_hash, phys_offset, time_ms in index_items(path):
            record = found[phys_offset]
            assert key_hash in key_hashes(record) | {tag_hash(record)}
            assert time_ms <= record.store_ms < time_ms + 1_000
            checked += 1
    assert checked >= 200


def test_every_key_is_indexed(golden: GoldenStore) -> None:
    root = golden_store(golden.name)
    expected = {(at, key) for at, r in all_records(root).items() for key in key_hashes(r)}
    paths = sorted((root / "index").iterdir())
    indexed = {(item[2], item[1]) for path in paths for item in index_items(path)}
    assert {at for at, _ in expected - indexed} == set(unindexed(golden.name, root))
    tagged = {(at, tag_hash(r)) for at, r in all_records(root).items()}
    assert indexed <= expected | (tagged if golden in NEWEST_STORES else set())


def unindexed(name: str, root: Path) -> list[int]:
    """Return the records with keys that Apache's index lacks.

    After a kill, Apache dropped its newest index file at the next start, and rebuilt it only from
    the second log file on.
    """
    if name != "apache-5.3.3-clean":
        return []
    return [at for at in all_records(root) if 53_223 <= at < LOG_FILE_BYTES]


@pytest.mark.parametrize("name", [s.name for s in STORES if s.clean])
def test_the_checkpoint_of_a_clean_store_is_its_last_record(name: str) -> None:
    root = golden_store(name)
    checkpoint = Checkpoint.load(root / "checkpoint")
    last_ms = max(record.store_ms for record in all_records(root).values())
    assert checkpoint.physic_ms == checkpoint.logics_ms == last_ms
    assert checkpoint.min_timestamp_ms == last_ms - 3_000


# -- opened by our store ------------------------------------------------------------------------


def test_an_opened_store_has_the_same_queues(root: Path) -> None:
    expected = apache_queues(root)
    data = log_bytes(root)
    with open_golden(root) as store:
        assert our_queues(store) == expected
        last, record = list(records(data))[-1]
        assert store.max_offset == last + record.total_size
        assert store.last_record == last


def test_every_record_is_read_through_the_store(root: Path) -> None:
    expected = all_records(root)
    with open_golden(root) as store:
        assert {at: store.read_record(at) for at in expected} == expected
        seen = [int(at) for rows in store.scan(store.min_offset) for at in rows["phys_offset"]]
        assert seen == sorted(expected)


def test_every_key_finds_its_records(root: Path) -> None:
    found = all_records(root)
    for at in unindexed(root.name, root):
        del found[at]
    with open_golden(root) as store:
        for at, record in found.items():
            for key in record.properties.get("KEYS", "").split():
                assert at in store.query_keys(record.topic, key, 100, 0, 1 << 62)
            unique = record.properties.get("UNIQ_KEY")
            if unique:
                assert at in store.query_keys(record.topic, unique, 100, 0, 1 << 62)


@pytest.mark.parametrize("version", VERSIONS)
def test_bounds_and_times_equal_those_of_apaches_client(version: str, tmp_path: Path) -> None:
    root = copy_golden_store(f"apache-{version}-clean", tmp_path)
    with open_golden(root) as store:
        for line in manifest_lines(version, "queue"):
            assert store.queue_bounds("GoldenPlain", line["id"]) == (line["min"], line["max"])
            assert store.earliest_store_ms("GoldenPlain", line["id"]) == line["earliest"]
        for line in manifest_lines(version, "query_by_key"):
            found = store.query_keys("GoldenPlain", line["key"], 32, 0, 1 << 62)
            assert len(found) == line["found"]


def test_lost_queues_are_rebuilt_with_the_same_bytes(root: Path) -> None:
    expected = queue_files(root)
    shutil.rmtree(root / "consumequeue")
    (root / "abort").touch()  # so that the whole log is scanned
    with open_golden(root):
        pass
    assert queue_files(root) == expected


@pytest.mark.parametrize("name", [s.name for s in ALL_STORES if s.clean])
def test_opening_and_closing_a_clean_store_changes_nothing(name: str, tmp_path: Path) -> None:
    root = copy_golden_store(name, tmp_path)
    folders = ("commitlog", "consumequeue", "index")
    before = digests(root, *folders)
    notices: list[str] = []
    for _ in range(2):
        with open_golden(root, notices.append):
            pass
    after = digests(root, *folders)
    unused = set(before) - set(after)
    assert {path: after[path] for path in after} == {p: before[p] for p in before if p in after}
    assert all(not any((golden_store(name) / path).read_bytes()) for path in unused)
    assert notices == []
    assert not (root / "abort").exists()


def test_new_messages_follow_apaches(golden: GoldenStore, root: Path) -> None:
    expected = apache_queues(root)
    topic = "Handed" if golden in NEWEST_STORES else "GoldenPlain"
    with open_golden(root) as store:
        end = store.max_offset
        row = put_one(store, topic, 2, b"one more")
        assert (row["phys_offset"], row["queue_offset"]) == (end, len(expected[topic, 2]))
    with open_golden(root) as store:
        assert store.read_record(end).body == b"one more"
        assert our_queues(store)[topic, 2][:-1] == expected[topic, 2]
