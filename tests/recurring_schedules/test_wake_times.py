"""Wake times by block, compared with a plain array."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recurring_schedules.wake_times import BLOCK, NEVER, WakeTimes

SLOTS = 3 * BLOCK + 5
TIMES = st.one_of(st.integers(0, 100), st.just(NEVER))
CHANGES = st.lists(st.tuples(st.integers(0, SLOTS - 1), TIMES, st.integers(0, 100)), max_size=30)


@given(CHANGES, st.integers(0, SLOTS))
def test_looks_return_what_a_plain_array_has(
    changes: list[tuple[int, int, int]], initial: int
) -> None:
    plain = np.full(SLOTS, NEVER, np.int64)
    plain[:initial:7] = 50
    wake = WakeTimes(plain[:initial].copy())
    wake.grow(SLOTS)
    for slot, time_ms, now_ms in changes:
        plain[slot] = wake[slot] = time_ms
        assert wake[slot] == time_ms
        assert wake.first() == plain.min()
        slots = np.flatnonzero(plain <= now_ms)
        assert wake.take(now_ms, SLOTS).tolist() == slots.tolist()
        plain[slots] = NEVER
        assert wake.first() == plain.min()


def test_many_are_taken_in_bounded_pieces() -> None:
    wake = WakeTimes(np.zeros(SLOTS, np.int64))
    pieces = [wake.take(0, BLOCK + 1).tolist() for _ in range(3)]
    assert [len(piece) for piece in pieces] == [2 * BLOCK, BLOCK + 5, 0]
    assert list(chain.from_iterable(pieces)) == list(range(SLOTS))


def test_without_slots_there_is_no_time() -> None:
    wake = WakeTimes(np.empty(0, np.int64))
    assert (wake.first(), wake.take(NEVER - 1, 1).size) == (NEVER, 0)
