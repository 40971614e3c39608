"""Checksums of the blocks of queue files: sealed after each sync, compared, renewed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from message_store.layout import CQ_UNIT, UNIT_BYTES
from message_store.queues.consume_queue import ConsumeQueue, FileCache
from message_store.queues.consume_queues import QueueSet
from message_store.queues.deleted_topics import Deletions
from message_store.queues.queue_sums import BLOCK_UNITS, SUM, QueueSums
from message_store.queues.topic_table import TopicTable

FILE_UNITS = 2 * BLOCK_UNITS + 50


@pytest.fixture
def files(tmp_path: Path) -> FileCache:
    return FileCache(sums=QueueSums(tmp_path / "consumequeue", tmp_path / "sums"))


@pytest.fixture
def queue(tmp_path: Path, files: FileCache) -> ConsumeQueue:
    return ConsumeQueue(tmp_path / "consumequeue" / "T" / "0", FILE_UNITS * UNIT_BYTES, files)


def append(queue: ConsumeQueue, count: int) -> None:
    units = np.zeros(count, CQ_UNIT)
    units["phys_offset"] = np.arange(queue.max_offset, queue.max_offset + count) * 100
    units["size"], units["tags_code"] = 100, 7
    queue.write(queue.max_offset, memoryview(units.tobytes()))


def seal(files: FileCache) -> None:
    for path in files.take_dirty():
        files.sums.seal(path)


def flip(queue: ConsumeQueue, offset: int) -> None:
    base, at = divmod(offset, FILE_UNITS)
    path = queue.directory / f"{base * FILE_UNITS * UNIT_BYTES:020d}"
    data = bytearray(path.read_bytes())
    data[at * UNIT_BYTES + 15] ^= 4
    path.write_bytes(data)


def changed(queue: ConsumeQueue, offset: int = 0, count: int = FILE_UNITS) -> list[tuple[int, int]]:
    return list(queue.changed_blocks(offset, count))


@pytest.mark.parametrize("steps", [[450], [1] * 30 + [420], [199, 1, 1, 200, 49], [200, 250]])
def test_units_are_sealed_in_any_steps(
    tmp_path: Path, files: FileCache, queue: ConsumeQueue, steps: list[int]
) -> None:
    for count in steps:
        append(queue, count)
        seal(files)
        assert changed(queue) == []
    data = (tmp_path / "sums" / "T" / "0" / f"{0:020d}").read_bytes()
    assert [count for count, _ in SUM.iter_unpack(data)] == [200, 200, 50]


@pytest.mark.parametrize(
    ("offset", "block"),
    [(0, (0, 200)), (199, (0, 200)), (200, (200, 400)), (420, (400, 450)), (460, (450, 470))],
)
def test_a_changed_block_is_found_once(
    files: FileCache, queue: ConsumeQueue, offset: int, block: tuple[int, int]
) -> None:
    append(queue, 470)
    seal(files)
    flip(queue, offset)
    low = offset // FILE_UNITS * FILE_UNITS
    assert changed(queue, low) == [block]
    assert changed(queue, low) == [], "its checksum was renewed"


def test_only_blocks_with_the_units_are_compared(files: FileCache, queue: ConsumeQueue) -> None:
    append(queue, 450)
    seal(files)
    flip(queue, 210)
    assert changed(queue, 0, 200) == changed(queue, 400) == []
    assert changed(queue, 199, 2) == [(200, 400)]


def test_a_changed_block_that_grows_gets_no_new_checksum(
    files: FileCache, queue: ConsumeQueue
) -> None:
    append(queue, 30)
    seal(files)
    flip(queue, 3)
    for _ in range(3):
        append(queue, 30)
        seal(files)
    assert changed(queue) == [(0, 120)]


def test_units_that_were_not_synced_are_not_compared(files: FileCache, queue: ConsumeQueue) -> None:
    append(queue, 30)
    seal(files)
    append(queue, 30)
    flip(queue, 40)
    assert changed(queue) == []
    assert changed(queue, 60) == changed(queue, -1) == []


def test_checksums_are_removed_with_their_file(
    tmp_path: Path, files: FileCache, queue: ConsumeQueue
) -> None:
    append(queue, 470)
    seal(files)
    assert len(list((tmp_path / "sums" / "T" / "0").iterdir())) == 2
    queue.correct_min(460 * 100)
    assert len(list((tmp_path / "sums" / "T" / "0").iterdir())) == 1
    queue.discard()
    assert list((tmp_path / "sums" / "T" / "0").iterdir()) == []


def test_a_disk_that_refuses_checksums_costs_nothing_else(
    tmp_path: Path, files: FileCache, queue: ConsumeQueue
) -> None:
    (tmp_path / "sums").write_bytes(b"")
    append(queue, 30)
    seal(files)
    assert changed(queue) == []


def test_of_many_files_some_are_sealed_after_each_sync(tmp_path: Path, files: FileCache) -> None:
    assert files.sums is not None
    root = tmp_path / "consumequeue" / "T"
    for number in range(5):
        append(ConsumeQueue(root / str(number), FILE_UNITS * UNIT_BYTES, files), 1)
    counts = []
    for paths in (sorted(files.take_dirty()), [], []):
        files.sums.seal_some([path for path in paths if Path(path).is_file()], count_max=2)
        counts.append(len(list((tmp_path / "sums").rglob("0*0"))))
    assert counts == [2, 4, 5]


def test_a_close_seals_the_rest(tmp_path: Path) -> None:
    directory = tmp_path / "consumequeue"
    queues = QueueSet(directory, FILE_UNITS * UNIT_BYTES, TopicTable(), Deletions(tmp_path / "d"))
    append(ConsumeQueue(directory / "T" / "0", FILE_UNITS * UNIT_BYTES, queues.files), 1)
    queues.sums.seal_some(sorted(queues.files.take_dirty()), count_max=0)
    queues.close()
    assert list((tmp_path / "sums").rglob(f"{0:020d}"))
