"""Urgency queue, compared with a sorted list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recurring_schedules.urgency_queue import UrgencyQueue

RUNS = st.lists(st.tuples(st.lists(st.integers(0, 20), max_size=8), st.integers(0, 10)))


@given(RUNS)
def test_the_earliest_slot_is_taken_first(runs: list[tuple[list[int], int]]) -> None:
    queue, pending, times = UrgencyQueue(), list[int](), list[int]()
    for run_times, pop_count in runs:
        slots = np.arange(len(times), len(times) + len(run_times))
        queue.add(np.array(run_times, np.int64), slots)
        times += run_times
        pending += slots.tolist()
        for _ in range(min(pop_count, len(pending))):
            slot = queue.pop()
            assert times[slot] == min(times[each] for each in pending)
            pending.remove(slot)
        assert len(queue) == len(pending)
