"""Counting lateness by the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedule_service.stats import BOUNDS_MS, LevelStats


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(-5, 10**7)), max_size=50))
def test_buckets_against_a_loop(pairs):
    stats = LevelStats()
    due = np.array([due for due, _ in pairs], np.int64)
    late = np.array([late for _, late in pairs], np.int64)
    stats.note_delivered(due, due + late, timed=True)
    wanted = [0] * (BOUNDS_MS.size + 1)
    for _, ms in pairs:
        at = next((n for n, bound in enumerate(BOUNDS_MS) if max(ms, 0) <= bound), BOUNDS_MS.size)
        wanted[at] += 1
    assert stats.buckets.tolist() == wanted
    assert stats.late_ms_sum == sum(max(ms, 0) for _, ms in pairs)
    assert stats.late_ms_max == max([max(ms, 0) for _, ms in pairs], default=0)
    assert stats.delivered == len(pairs)


@pytest.mark.parametrize(
    ("late", "share", "wanted"),
    [([], 0.5, None), ([0], 0.99, 0), ([3], 0.5, 5), ([1, 1, 1, 90], 0.5, 1),
     ([1, 1, 1, 90], 0.99, 100), ([10**8], 0.5, 10**8)],
)  # fmt: skip
def test_quantiles_are_upper_bounds(late, share, wanted):
    stats = LevelStats()
    due = np.zeros(len(late), np.int64)
    stats.note_delivered(due, np.array(late, np.int64), timed=True)
    assert stats.quantile_ms(share) == wanted


def test_without_timing_only_deliveries_are_counted():
    stats = LevelStats()
    stats.note_delivered(np.zeros(3, np.int64), np.ones(3, np.int64), timed=False)
    assert (stats.delivered, stats.buckets.sum()) == (3, 0)
    assert stats.as_dict()["lateness_ms"]["max"] is None
