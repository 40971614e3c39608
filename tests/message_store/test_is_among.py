"""Membership of offsets in a sorted array, compared with NumPy, without reading all of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store.ranges import distinct, is_among, is_in

REPETITIONS = 5
OFFSETS = st.lists(st.integers(-3, 40), max_size=30)


@given(OFFSETS, OFFSETS)
def test_as_isin(values: list[int], others: list[int]) -> None:
    mine, known = np.array(values, np.int64), np.array(sorted(others), np.int64)
    assert is_among(mine, known).tolist() == np.isin(mine, known).tolist()


def test_it_does_not_read_the_whole_array() -> None:
    values = np.arange(0, 60_000, 3)
    small, large = (
        processor_s(lambda known=known: is_among(values, known))  # type: ignore[misc]
        for known in (np.arange(0, 20_000, 2), np.arange(0, 20_000_000, 2))
    )
    assert large < 50 * small, "a thousand times as many"


@given(OFFSETS, OFFSETS)
def test_others_as_isin(values: list[int], others: list[int]) -> None:
    mine, known = np.array(values, np.int64), np.array(others, np.int64)
    assert is_in(mine, known).tolist() == np.isin(mine, known).tolist()


@given(st.lists(OFFSETS, min_size=1, max_size=3))
def test_distinct_as_unique(values: list[list[int]]) -> None:
    arrays = [np.array(some, np.int64) for some in values]
    assert distinct(*arrays).tolist() == np.unique(np.concatenate(arrays)).tolist()
    assert distinct(*arrays).dtype == np.int64


def test_offsets_are_sorted_and_not_hashed() -> None:
    offsets = np.arange(1_000_000) * 4_096
    assert processor_s(lambda: distinct(offsets)) < 20 * processor_s(lambda: np.sort(offsets))


def processor_s(work: Callable[[], object]) -> float:
    """Return the least processor time of some calls, which other processes do not lengthen."""
    times = []
    for _ in range(REPETITIONS):
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
    return min(times)
