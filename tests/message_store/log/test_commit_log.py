"""Files of a log by offset, and the steps of the threads that look for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.index.log_tail import keys_of_log
from message_store.log.commit_log import CommitLog
from message_store.log.flusher import Flusher
from message_store.log.read_ahead import ReadAhead

SIZE = 1_000
COUNT = 500


class CountedFile:
    """Log file that counts how often one thread asks for its first offset."""

    steps = 0
    thread = 0
    size = SIZE
    path = Path("/dev/null")
    data = np.zeros(SIZE, np.uint8)

    def __init__(self, base: int) -> None:
        self._base = base

    @property
    def base(self) -> int:
        CountedFile.steps += threading.get_ident() == CountedFile.thread
        return self._base

    def sync(self) -> None:
        """Do nothing."""


def counted_log(directory: Path, first: int = 0) -> CommitLog:
    log = CommitLog(directory, SIZE)
    files: list[Any] = [CountedFile(number * SIZE) for number in range(first, COUNT)]
    log.files, log.end = files, COUNT * SIZE - 10
    CountedFile.steps, CountedFile.thread = 0, threading.get_ident()
    return log


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return counted_log(tmp_path)


@pytest.mark.parametrize(
    ("offset", "first"),
    [(0, 0), (SIZE - 1, 0), (SIZE, 1), ((COUNT - 1) * SIZE, COUNT - 1), (COUNT * SIZE, COUNT)],
)
def test_files_from_an_offset(log: CommitLog, offset: int, first: int) -> None:
    assert log.files_from(offset) == log.files[first:]


def test_a_removal_meanwhile_hides_no_later_file(log: CommitLog) -> None:
    class RemovingFile(CountedFile):
        @property
        def base(self) -> int:
            if len(log.files) == COUNT:
                log.files.pop(0)
            return self._base

    files: list[Any] = log.files
    expected = [*files[-5:-2], RemovingFile(files[-2].base), files[-1]]
    files[-2] = expected[-2]
    assert set(expected) <= set(log.files_from(expected[0].base))


def flush(log: CommitLog) -> None:
    durable = log.end - SIZE
    Flusher(
        log,
        durable=durable,
        interval_s=1,
        after_flush=lambda end: None,
        on_failure=lambda error: None,
    ).flush()


def read_ahead(log: CommitLog) -> None:
    ahead = ReadAhead(log)
    ahead.wake()
    assert ahead.work()


@pytest.mark.parametrize("work", [flush, read_ahead])
def test_threads_visit_only_files_with_new_bytes(
    log: CommitLog, work: Callable[[CommitLog], None]
) -> None:
    work(log)
    assert 0 < CountedFile.steps < 20


@pytest.mark.parametrize(
    ("offset", "number"),
    [
        (-1, None),
        (0, 0),
        (SIZE - 1, 0),
        (SIZE, 1),
        (COUNT * SIZE - 1, COUNT - 1),
        (COUNT * SIZE, None),
    ],
)
def test_the_file_of_an_offset(log: CommitLog, offset: int, number: int | None) -> None:
    assert log.find_file(offset) is (None if number is None else log.files[number])
    assert CountedFile.steps < 5


def test_the_file_of_an_offset_while_old_ones_are_removed(log: CommitLog) -> None:
    files: list[Any] = log.files

    class RemovedFile(CountedFile):
        @property
        def base(self) -> int:
            base = super().base
            if files[0] is self:
                files.pop(0)
            return base

    files[:3] = [RemovedFile(number * SIZE) for number in range(3)]
    expected = files[5]
    assert [log.find_file(5 * SIZE + 7)] == [expected]
    assert log.find_file(2 * SIZE) is None


@given(
    first=st.integers(0, 20),
    offsets=st.lists(st.integers(-SIZE, (COUNT + 2) * SIZE), max_size=30),
)
def test_files_with_offsets(first: int, offsets: list[int]) -> None:
    log = counted_log(Path(), first)
    ranked = np.array(sorted(offsets), np.int64)
    parts = [(file, ranked[low:high].tolist()) for file, low, high in log.files_with(ranked)]
    steps = CountedFile.steps
    expected = [
        (file, [n for n in ranked.tolist() if file.base <= n < file.base + SIZE])
        for file in log.files
    ]
    assert parts == [(file, numbers) for file, numbers in expected if numbers]
    assert steps <= 10 * (len(parts) + 1)


def test_a_search_for_keys_visits_only_the_tail_of_the_log(log: CommitLog) -> None:
    assert list(keys_of_log(log, log.end - SIZE, log.end)) == []
    assert 0 < CountedFile.steps < 20
