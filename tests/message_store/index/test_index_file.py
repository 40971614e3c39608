"""The key index: Apache's bytes, a naive twin, queries, failures that do not stop it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq_common.clock import FakeClock
from message_store import layout
from message_store.index.index_file import IndexFile
from message_store.index.index_service import IndexService
from message_store.kernels import index as kernels
from message_store.log.commit_log import LogFile
from message_store.log.record import decode_record
from message_store.verify import verify_store
from tests.support.encoded_records import encode_record
from tests.support.extended import examples
from tests.support.golden_stores import (
    INDEX_ITEMS,
    INDEX_SLOTS,
    STORES,
    GoldenStore,
    copy_golden_store,
    golden_config,
    golden_store,
)
from tests.support.naive_index import (
    ALWAYS,
    HEADER,
    INDEX_FILE_BYTES,
    T0,
    WHOLE,
    contents,
    header_of,
    index_hash,
    keys_of,
    log_end,
    naive_files,
    open_log,
    put_keys_of,
    records_of,
    service,
)
from tests.support.stores import LOOPBACK, open_store, put_one

# -- Apache's bytes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_index_files_equal_apaches(name: str, tmp_path: Path) -> None:
    root = copy_golden_store(name, tmp_path)
    expected = contents(root)
    for path in (root / "index").iterdir():
        path.unlink()
    with service(root, log_end(root)):
        pass
    assert contents(root) == expected


@pytest.mark.parametrize("golden", STORES, ids=str)
def test_the_naive_implementation_equals_the_kernel(golden: GoldenStore, tmp_path: Path) -> None:
    root = copy_golden_store(golden.name, tmp_path)
    for path in (root / "index").iterdir():
        path.unlink()
    with service(root, log_end(root)):
        pass
    keys = [
        (index_hash(key), record.phys_offset, record.store_ms)
        for record in records_of(root)
        for key in keys_of(record)
    ]
    assert contents(root) == naive_files(keys)


@pytest.mark.parametrize("golden", STORES, ids=str)
def test_apaches_files_are_continued(golden: GoldenStore, tmp_path: Path) -> None:
    root = copy_golden_store(golden.name, tmp_path)
    expected = contents(root)
    with service(root, log_end(root)):
        pass
    assert contents(root) == expected


keyed = st.lists(
    st.tuples(st.integers(0, 40) | st.integers(0, (1 << 31) - 1), st.integers(1, 3)), max_size=60
)


@given(keyed, st.integers(1, 9), st.integers(2, 30), st.lists(st.integers(1, 7), max_size=60))
def test_put_and_find(
    hashes: list[tuple[int, int]], slots: int, items: int, cuts: list[int]
) -> None:
    keys = np.zeros(len(hashes), layout.KEYED)
    keys["key_hash"] = [key for key, _ in hashes]
    keys["phys_offset"] = np.cumsum([step // 2 for _, step in hashes], dtype=np.int64)
    keys["store_ms"] = T0 + np.cumsum([step * 700 for _, step in hashes], dtype=np.int64)
    made: list[np.ndarray[Any, Any]] = []
    left = keys
    while left.size:
        if not made or header_of(made[-1])[5] >= items:
            made.append(new_file(slots, items, made[-1] if made else None))
        step = left[: cuts.pop() if cuts else left.size]
        left = left[kernels.put_keys(made[-1], slots, items, step) :]
    plain = [(int(k["key_hash"]), int(k["phys_offset"]), int(k["store_ms"])) for k in keys]
    assert [words.tobytes() for words in made] == naive_files(plain, slots, items)
    for key_hash in {key for key, _, _ in plain}:
        out = np.zeros(100, np.int64)
        found = [
            int(phys)
            for words in reversed(made)
            for phys in out[: kernels.find_key(words, slots, key_hash, ALWAYS, out)]
        ]
        assert found == [phys for key, phys, _ in reversed(plain) if key == key_hash]


def new_file(slots: int, items: int, before: Any = None) -> Any:
    words = np.zeros((40 + slots * 4 + items * 20) // 4, np.uint32)
    if before is not None:
        _, end_ms, _, end_phys, _, _ = header_of(before)
        HEADER.pack_into(words.data.cast("B"), 0, end_ms, end_ms, end_phys, end_phys, 0, 1)
    return words


texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9)


@given(st.sampled_from(["T", "a-b", "Tü"]), texts, st.lists(texts, max_size=4), st.booleans())
def test_keys_of_a_record(topic: str, unique: str, keys: list[str], rolled_back: bool) -> None:
    data = encode_record(
        topic=topic,
        queue_id=0,
        body=b"b",
        queue_offset=0,
        phys_offset=4_096,
        born_ms=1,
        born_host=LOOPBACK,
        store_ms=T0,
        store_host=LOOPBACK,
        sys_flag=layout.SYS_ROLLBACK if rolled_back else 0,
        property_text=f"KEYS\1{' '.join(keys)}\2UNIQ_KEY\1{unique}\2TAGS\1x".encode(),
    )
    out, scratch = np.zeros(20_000, layout.KEYED), np.zeros(1, layout.SCANNED)
    bytes_ = np.frombuffer(data, np.uint8)
    count, pos, _ = kernels.collect_keys(bytes_, 0, bytes_.size, 4_096, scratch, out)
    expected = [] if rolled_back else keys_of(decode_record(memoryview(data), 4_096))
    assert pos == len(data)
    assert out[:count]["key_hash"].tolist() == [index_hash(key) for key in expected]
    assert set(out[:count]["phys_offset"].tolist()) <= {4_096}


def test_the_hash_without_an_absolute_value_is_0() -> None:
    assert kernels.positive_hash(-(1 << 31)) == 0
    assert kernels.positive_hash(-5) == 5


# -- queries ------------------------------------------------------------------------------------


def test_newest_first_across_files_and_in_a_time_range(tmp_path: Path) -> None:
    clock = FakeClock(T0)
    with open_store(tmp_path, clock, index_entries_max=4) as store:
        offsets = []
        for _ in range(10):
            offsets.append(int(put_one(store, "T", properties={"KEYS": "k"})["phys_offset"]))
            store.index.catch_up()
            clock.advance(2_000)
        index = store.index
        assert len(list((tmp_path / "index").iterdir())) > 2
        assert index.query("T", "k", 32, *ALWAYS) == offsets[::-1]
        assert index.query("T", "k", 3, *ALWAYS) == offsets[:-4:-1]
        assert index.query("T", "k", 32, T0 + 4_000, T0 + 8_000) == offsets[4:1:-1]
        assert index.query("T", "x", 32, *ALWAYS) == []
        assert index.query("U", "k", 32, *ALWAYS) == []


def test_the_first_item_of_a_file_has_the_time_of_its_record(tmp_path: Path) -> None:
    """Its seconds do not count from an earlier file."""
    clock = FakeClock(T0)
    with open_store(tmp_path, clock, index_entries_max=3) as store:
        for _ in range(2):
            put_one(store, "T", properties={"KEYS": "old"})
        store.index.catch_up()
        clock.advance(86_400_000)
        row = put_one(store, "T", properties={"KEYS": "new"})
        now = clock.now_ms()
        assert store.query_keys("T", "new", 1, now, now) == [row["phys_offset"]]
    assert verify_store(tmp_path).findings == []


def test_a_disabled_index_finds_nothing_and_creates_no_file(tmp_path: Path) -> None:
    with open_store(tmp_path, index_enable=False) as store:
        put_one(store, "T", properties={"KEYS": "k"})
        assert store.query_keys("T", "k", 1, *ALWAYS) == []
        assert store.index.lag_bytes == 0
    assert not (tmp_path / "index").exists()


# -- what may not stop it -----------------------------------------------------------------------


def test_damage_in_the_log_does_not_stop_the_index(tmp_path: Path) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    for path in (root / "index").iterdir():
        path.unlink()
    records = records_of(root)
    end, lost = log_end(root), records[40]
    log = root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[lost.phys_offset : lost.phys_offset + 30] = bytes(30)
    log.write_bytes(data)
    with service(root, end) as index:
        index.catch_up()
        assert index.lag_bytes == 0
        for record in records:
            for key in keys_of(record):
                found = index.query(record.topic, key.partition("#")[2], 500, *ALWAYS)
                assert (record.phys_offset in found) == (record is not lost)


def no_room(fd: int, pos: int, size: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_pauses_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path) as store:
        monkeypatch.setattr(os, "posix_fallocate", no_room)
        row = put_one(store, "T", properties={"KEYS": "k"})
        assert store.query_keys("T", "k", 1, *ALWAYS) == [row["phys_offset"]]  # found in the log
        assert store.index.lag_bytes == row["record_size"]
        monkeypatch.undo()
        assert store.query_keys("T", "k", 1, *ALWAYS) == [row["phys_offset"]]


def test_a_query_indexes_a_limited_part_of_the_log(tmp_path: Path) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    for path in (root / "index").iterdir():
        path.unlink()
    with open_log(root) as log:
        log.end = log_end(root)
        index = IndexService(root / "index", golden_config(root), log, FakeClock(T0))
        index.catch_up(bytes_max=0)
        assert index.lag_bytes == log.end
        index.catch_up(bytes_max=1)
        assert index.lag_bytes < log.end


def test_files_of_removed_logs_are_deleted_except_the_newest(tmp_path: Path) -> None:
    with open_store(tmp_path, index_entries_max=10) as store:
        put_keys_of(store, range(40))
        store.index.catch_up()
        ends = [file.end_phys for file in store.index.indexed()[0]]
        store.index.remove_before(ends[2])
        assert [file.end_phys for file in store.index.indexed()[0]] == ends[2:]
        store.index.remove_before(1 << 60)
        assert [file.end_phys for file in store.index.indexed()[0]] == ends[-1:]
        assert len(list((tmp_path / "index").iterdir())) == 1


@settings(max_examples=30)
@given(
    hashes=st.lists(st.integers(0, 8), min_size=1, max_size=30),
    kept=st.integers(0, 30),
)
def test_removing_lost_records_restores_the_file(
    tmp_path_factory: pytest.TempPathFactory, hashes: list[int], kept: int
) -> None:
    kept = min(kept, len(hashes))
    keys = np.zeros(len(hashes), layout.KEYED)
    keys["key_hash"] = hashes
    keys["phys_offset"] = np.arange(len(hashes)) * 100 + 7
    keys["store_ms"] = T0 + np.arange(len(hashes)) * 1_500
    home = tmp_path_factory.mktemp("cut")
    cut, never = (IndexFile(home / name, 5, 40, create=True) for name in ("a", "b"))
    cut.put(keys)
    assert cut.cut(kept * 100 + 7) == len(hashes) - kept
    never.put(keys[:kept])
    assert cut.cut(kept * 100 + 7) == 0
    for file in (cut, never):
        file.put(keys[kept:][:3])
    assert cut.header[5] == never.header[5]
    for key_hash in range(9):
        span = (0, T0 * 2)
        assert cut.find(key_hash, span, 40) == never.find(key_hash, span, 40)
    if kept:  # an empty file keeps its first offset
        assert cut.header == never.header


def test_the_start_removes_keys_of_records_that_the_log_lost(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_keys_of(store, range(10))
        store.index.catch_up()
        [file] = store.index.indexed()[0]
        end = file.end_phys
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as damaged:
        damaged.seek(end)
        damaged.write(bytes(1_000))
    (tmp_path / "abort").touch()
    with open_store(tmp_path) as store:
        assert store.max_offset == end
        store.index.catch_up()
        [file] = store.index.indexed()[0]
        assert file.end_phys < end
    assert [found for found in verify_store(tmp_path).findings if "index" in found.file] == []


@settings(max_examples=examples(60))
@given(
    changes=st.lists(
        st.tuples(st.integers(0, INDEX_FILE_BYTES - 1), st.binary(min_size=1, max_size=60)),
        min_size=1,
        max_size=6,
    ),
    which=st.integers(0, 1),
)
def test_a_search_of_any_bytes_ends(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], which: int
) -> None:
    path = sorted((golden_store("apache-4.9.7-clean") / "index").iterdir())[which]
    data = bytearray(path.read_bytes())
    for at, piece in changes:
        data[at : at + len(piece)] = piece[: len(data) - at]
    copy = tmp_path_factory.mktemp("index") / path.name
    copy.write_bytes(data)
    file = IndexFile(copy, INDEX_SLOTS, INDEX_ITEMS, create=False)
    for key_hash in range(INDEX_SLOTS):
        assert len(file.find(key_hash, ALWAYS, 1_000)) <= INDEX_ITEMS
    if file.is_sound:
        keys = np.zeros(5, layout.KEYED)
        assert 0 <= file.put(keys) <= 5
    copy.unlink()


class CountedBase:
    """Attribute `base` of log files that counts its reads by one thread.

    The store's flusher reads it in a thread of its own.
    """

    reads = 0
    thread = 0

    def __get__(self, file: LogFile, owner: type[LogFile]) -> int:
        CountedBase.reads += threading.get_ident() == CountedBase.thread
        return int(file.__dict__["base"])

    def __set__(self, file: LogFile, base: int) -> None:
        file.__dict__["base"] = base


def test_the_file_to_index_is_found_in_few_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path, commitlog_file_bytes=4_096) as store:
        while len(store.log.files) < 200:
            put_one(store, "T", body=b"x" * 3_000)
        store.index.catch_up()
        monkeypatch.setattr(LogFile, "base", CountedBase(), raising=False)
        CountedBase.reads, CountedBase.thread = 0, threading.get_ident()
        put_one(store, "T")
        store.index.catch_up()
        assert store.index.lag_bytes == 0
        assert CountedBase.reads <= 100
