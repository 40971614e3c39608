"""Bounds of a queue that recovery writes in pieces. Reading and cutting: `test_store`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from message_store import layout
from message_store.layout import UNIT_BYTES
from message_store.queues.consume_queue import ConsumeQueue, FileCache

FILE_UNITS = 10


def units(first: int, end: int) -> memoryview:
    block = np.zeros(end - first, layout.CQ_UNIT)
    block["phys_offset"] = np.arange(first, end) * 100
    block["size"] = 100
    return memoryview(block.tobytes())


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    (tmp_path / "0").mkdir()
    return ConsumeQueue(tmp_path / "0", FILE_UNITS * UNIT_BYTES, FileCache())


@pytest.mark.parametrize(
    ("pieces", "bounds"),
    [
        ([(0, 5)], (0, 5)),
        ([(12, 15)], (12, 15)),
        ([(12, 13), (0, 13)], (0, 13)),
        ([(12, 13), (0, 6), (6, 13)], (0, 13)),
        ([(35, 36), (30, 36)], (30, 36)),
        ([(0, 5), (7, 8)], (0, 8)),
        ([(0, 5), (27, 28)], (27, 28)),
        ([(0, 5), (3, 9)], (0, 9)),
    ],
    ids=str,
)
def test_bounds_during_recovery(
    queue: ConsumeQueue, pieces: list[tuple[int, int]], bounds: tuple[int, int]
) -> None:
    for first, end in pieces:
        queue.write(first, units(first, end))
    assert (queue.min_offset, queue.max_offset) == bounds
    first, end = pieces[-1]
    read = queue.read(end - 1, 1)
    assert read["phys_offset"].tolist() == [(end - 1) * 100]


@pytest.mark.parametrize("log_end", [0, 50, 100, 999, 1_000, 7_777, 25_500, 29_950, 30_000, 99_999])
def test_the_end_before_a_log_offset(
    queue: ConsumeQueue, log_end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("message_store.queues.consume_queue.UNITS_BACK_MIN", 2)
    monkeypatch.setattr("message_store.queues.consume_queue.UNITS_BACK_MAX", 7)
    queue.write(0, units(0, 300))
    assert queue.end_before(log_end) == min(log_end // 100, 300)


def test_short_reads_are_continued(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a start would cut the queue there."""
    queue.write(0, units(0, 25))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, pos: pread(fd, max(size // 2, 1), pos))
    again = ConsumeQueue(queue.directory, queue.file_bytes, FileCache())
    again.load()
    assert (again.min_offset, again.max_offset) == (0, 25)
    assert again.read(10, 100)["phys_offset"].tolist() == list(range(1_000, 2_000, 100))


@pytest.mark.parametrize("offsets", [(3, 4, 5, 7), (3, 12, 13)], ids=["blanks", "next file"])
def test_log_offsets_are_those_of_the_units(tmp_path: Path, offsets: tuple[int, ...]) -> None:
    files = FileCache()
    queue = ConsumeQueue(tmp_path / "0", 10 * UNIT_BYTES, files)
    for offset in offsets:
        unit = np.array([(1_000 + offset, 100, 0)], layout.CQ_UNIT)
        queue.write(offset, memoryview(unit.tobytes()))
    shown = {n: queue.log_offset(n) for n in range(-1, 20)}
    kept = [n for n in offsets if queue.read(n, 1).size]
    assert {n: offset for n, offset in shown.items() if offset >= 0} == {n: 1_000 + n for n in kept}
    assert offsets[-1] in kept
    files.close()


def test_a_start_reads_few_units_of_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0").mkdir()
    ConsumeQueue(tmp_path / "0", 100_000 * UNIT_BYTES, FileCache()).write(0, units(0, 5_000))
    sizes, read = list[int](), FileCache.read

    def counted(files: FileCache, path: str, size: int, pos: int) -> bytes:
        sizes.append(size // UNIT_BYTES)
        return read(files, path, size, pos)

    monkeypatch.setattr(FileCache, "read", counted)
    queue = ConsumeQueue(tmp_path / "0", 100_000 * UNIT_BYTES, FileCache())
    queue.load()
    assert 5_000 < sum(sizes) < 20_000
    sizes.clear()
    queue.truncate(500_000)
    queue.correct_min(0)
    assert queue.unit_from(500_000) is None
    assert (queue.min_offset, queue.max_offset) == (0, 5_000)
    assert 0 < sum(sizes) < 10


@pytest.mark.parametrize("log_offset", [0, 1, 299, 300, 301, 1_199, 1_200, 1_201, 2_900, 2_901])
@pytest.mark.parametrize("offsets", [(3, 4, 12, 13, 29), (29,), tuple(range(3, 30))], ids=len)
def test_the_first_message_from_a_log_offset(
    queue: ConsumeQueue, offsets: tuple[int, ...], log_offset: int
) -> None:
    for offset in offsets:  # pre-blanks between them
        queue.write(offset, units(offset, offset + 1))
    kept = [n for n in range(queue.min_offset, 30) if queue.log_offset(n) >= 0]
    expected = next((n for n in kept if n * 100 >= log_offset), 30)
    assert queue.offset_from(log_offset) == expected
    unit = queue.unit_from(log_offset)
    assert unit is None if expected == 30 else unit["phys_offset"] == expected * 100
