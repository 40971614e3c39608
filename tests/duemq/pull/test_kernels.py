"""The kernels of pulls and long polls against their plain twins."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.pull import kernels
from message_store import layout

BLANK = 0x7FFF_FFFF


units = st.tuples(st.integers(0, 200), st.sampled_from([10, 30, 70, BLANK]))


slots = st.tuples(st.integers(-1, 9), st.sampled_from([0, 0, 0, 13]))


def leading_units(
    found: list[tuple[int, int]], log_min: int, count_max: int, bytes_max: int
) -> int:
    """The twin of `kernels.leading_units`."""
    total = 0
    for index, (offset, size) in enumerate(found[:count_max]):
        if offset < log_min or size == BLANK:
            return -1
        total += size
        if index and total > bytes_max:
            return index
    return min(len(found), count_max)


@given(
    st.lists(units, min_size=1, max_size=9),
    st.integers(0, 60),
    st.integers(1, 9),
    st.integers(1, 300),
)
def test_leading_units(
    found: list[tuple[int, int]], log_min: int, count_max: int, bytes_max: int
) -> None:
    block = np.array([(offset, 0, size, 0) for offset, size in found], layout.UNIT)
    count = kernels.leading_units(block, log_min, BLANK, count_max, bytes_max)
    assert count == leading_units(found, log_min, count_max, bytes_max)


@given(st.lists(slots, max_size=20), st.sets(st.integers(0, 7)))
def test_watched_slots(rows: list[tuple[int, int]], waited_for: set[int]) -> None:
    batch: Any = np.zeros(max(len(rows), 1), layout.PUT)
    for row, (slot, status) in zip(batch, rows, strict=False):
        row["queue_slot"], row["status"] = slot, status
    watched = np.array([slot in waited_for for slot in range(8)], np.uint8)
    out = np.zeros(len(rows), np.int32)
    count = kernels.watched_slots(batch, len(rows), watched, out)
    grown = [slot for slot, status in rows if status == 0 and slot in waited_for]
    assert out[:count].tolist() == list(dict.fromkeys(grown))
    assert {n for n in range(8) if watched[n] == kernels.LISTED} == set(grown)
    assert {n for n in range(8) if watched[n] == 1} == waited_for - set(grown)
