"""Wake times by block, compared with a plain array."""

from __future__ import annotations

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
        assert wake.until(now_ms).tolist() == np.flatnonzero(plain <= now_ms).tolist()
        assert wake.first() == plain.min()
        assert wake.first_after(now_ms) == plain[plain > now_ms].min(initial=NEVER)


def test_without_slots_there_is_no_time() -> None:
    wake = WakeTimes(np.empty(0, np.int64))
    assert (wake.first(), wake.until(NEVER - 1).size) == (NEVER, 0)
