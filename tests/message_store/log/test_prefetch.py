"""Prefetch of old records: which bytes of which files are read ahead."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from message_store.log.commit_log import LogFile, NumberedLog
from message_store.log.prefetch import GAP_BYTES, RANGES_MAX, RECENT_BYTES, prefetch
from tests.support.indexed_files import IndexedFiles

FILE_BYTES = 1 << 20
FILES = 100
END = FILES * FILE_BYTES - 1_000


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Return the list of (file, position, bytes) that are read ahead."""
    calls: list[tuple[int, int, int]] = []

    def advise(fd: int, position: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        calls.append((fd, position, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return calls


def log(first: int = 0) -> Any:
    files = [SimpleNamespace(base=n * FILE_BYTES, fd=n) for n in range(first, FILES)]
    made: NumberedLog[Any] = NumberedLog(Path(), FILE_BYTES, LogFile)
    made.files, made.end = IndexedFiles(files), END
    return made


def test_near_records_are_read_together(advised: list[tuple[int, int, int]]) -> None:
    far = 3 * FILE_BYTES + 7
    offsets = np.array([far + GAP_BYTES, 100, far, 2 * FILE_BYTES])
    assert prefetch(log(), offsets, 300) == 3
    assert advised == [(0, 100, 300), (2, 0, 300), (3, 7, GAP_BYTES + 300)]


def test_recent_records_are_in_memory(advised: list[tuple[int, int, int]]) -> None:
    border = END - RECENT_BYTES
    assert prefetch(log(), np.array([border, END - 10]), np.array([300, 10])) == 0
    assert prefetch(log(), np.array([border - 1, END - 10]), np.array([300, 10])) == 1
    assert [size for _, _, size in advised] == [300]


def test_the_most_urgent_records_are_read_if_there_are_many(
    advised: list[tuple[int, int, int]],
) -> None:
    offsets = np.arange(RANGES_MAX + 5)[::-1]
    assert prefetch(log(), offsets, 1) == 1
    assert advised == [(0, 5, RANGES_MAX)]


def test_records_that_retention_has_removed_are_skipped(
    advised: list[tuple[int, int, int]],
) -> None:
    prefetch(log(first=1), np.array([100, FILE_BYTES + 100]), 300)
    assert advised == [(1, 100, 300)]


def test_a_file_system_without_advice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    assert prefetch(log(), np.array([100]), 300) == 1


def test_offsets_and_sizes_of_damaged_units_are_harmless(
    advised: list[tuple[int, int, int]],
) -> None:
    offsets = np.array([-(1 << 63), 100, 1 << 62, 2 * FILE_BYTES, 3 * FILE_BYTES])
    prefetch(log(), offsets, np.array([195, 195, 195, -5, (1 << 31) - 1], np.int32))
    assert advised == [(0, 100, 195), (2, 0, 1), (3, 0, 1 << 20)]
