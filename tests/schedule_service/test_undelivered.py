"""Undelivered units of a level compared with a set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
