"""Intervals of deliveries for tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from delayed_delivery.outcome import Lateness
from duemq_migration.steps.throttle import IntervalLateness


def delivered(*late_ms: int) -> IntervalLateness:
    """Return an interval with one delivery of each given lateness."""
    return since(late_ms)


def since(late_ms: Iterable[int]) -> IntervalLateness:
    """Return an interval with many deliveries of one lateness."""
    late, times = Lateness(), np.fromiter(late_ms, np.int64)
    late.record(np.zeros(times.size, np.int64), times)
    return IntervalLateness(late.buckets)
