"""Undelivered units of a level compared with a set."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store.layout import CQ_UNIT
from schedule_service.queues import ScheduleQueues
from schedule_service.undelivered import Undelivered

numbers = st.sets(st.integers(3, 40), max_size=12)


def ranges_of(offsets: set[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = ranges[-1][0], offset + 1
        else:
            ranges.append((offset, offset + 1))
    return ranges


@given(numbers, st.integers(0, 45), st.integers(0, 45), st.integers(0, 45))
def test_offsets_and_ranges(undelivered: set[int], first: int, end: int, settled: int) -> None:
    units = Undelivered(1, ranges_of(undelivered), 41)
    between = sorted(n for n in undelivered if first <= n < end)
    assert units.offsets(first, end).tolist() == between
    units.settle_before(settled)
    left = {n for n in undelivered if n >= settled}
    assert units.ranges() == ranges_of(left)
    assert units.offsets(0, 41).tolist() == sorted(left)


class Queue:
    """Queue of a level whose unit n is at log offset 10 * n; it is read in pieces."""

    def __init__(self, end: int, piece: int) -> None:
        self.end, self.piece = end, piece

    def units(self, level: int, offset: int, count: int) -> Any:
        assert (level, count >= self.piece) == (1, True)
        numbers = np.arange(offset, max(min(offset + self.piece, self.end), offset))
        units = np.zeros(numbers.size, CQ_UNIT)
        units["phys_offset"] = 10 * numbers
        return units


@given(numbers, st.sets(st.integers(0, 450)), st.integers(3, 41), st.integers(1, 9))
def test_delivered_units_are_removed(
    undelivered: set[int], origins: set[int], queue_end: int, piece: int
) -> None:
    units = Undelivered(1, ranges_of(undelivered), 41)
    queue = cast(ScheduleQueues, Queue(queue_end, piece))
    delivered = {n for n in undelivered if 10 * n in origins and n < queue_end}
    assert units.clear(queue, np.array(sorted(origins), np.int64)) == len(delivered)
    assert units.ranges() == ranges_of(undelivered - delivered)
