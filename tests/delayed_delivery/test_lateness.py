"""Counting of lateness by batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.lateness import BOUNDS_MS, Lateness


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(-5, 10**7)), max_size=50))
def test_buckets_against_a_loop(pairs: list[tuple[int, int]]) -> None:
    lateness = Lateness()
    due = np.array([due for due, _ in pairs], np.int64)
    late = np.array([late for _, late in pairs], np.int64)
    lateness.record(due, due + late)
    expected = [0] * (BOUNDS_MS.size + 1)
    for _, ms in pairs:
        at = next((n for n, bound in enumerate(BOUNDS_MS) if max(ms, 0) <= bound), BOUNDS_MS.size)
        expected[at] += 1
    assert lateness.buckets.tolist() == expected
    assert lateness.sum_ms == sum(max(ms, 0) for _, ms in pairs)
    assert lateness.max_ms == max([max(ms, 0) for _, ms in pairs], default=0)
    assert lateness.count == len(pairs)
    bounds = lateness.seconds_buckets()
    assert bounds[0] == ("0.0", expected[0])
    assert bounds[-1] == ("+Inf", len(pairs))


@pytest.mark.parametrize(
    ("late", "share", "expected"),
    [
        ([], 0.5, None),
        ([0], 0.99, 0),
        ([-4], 0.99, 0),
        ([3], 0.5, 3),
        ([11, 11, 11, 90], 0.5, 12),
        ([1, 1, 1, 90], 0.5, 1),
        ([1, 1, 1, 90], 0.99, 90),
        ([10**8], 0.5, 10**8),
    ],
)
def test_quantiles_are_upper_bounds_and_at_most_the_latest(
    late: list[int], share: float, expected: int | None
) -> None:
    lateness = Lateness()
    lateness.record(np.zeros(len(late), np.int64), np.array(late, np.int64))
    assert lateness.quantile_ms(share) == expected


def test_without_deliveries_there_are_no_quantiles() -> None:
    found = Lateness().as_dict()
    assert (found["p50"], found["p99"], found["max"]) == (None, None, None)
    assert len(found["buckets"]) == BOUNDS_MS.size + 1
