"""Deliveries of an interval, made up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from delivery.lateness import Lateness
from migration.steps.throttle import LatenessSince


def delivered(*late_ms: int) -> LatenessSince:
    """Return an interval with deliveries that were late by so much each; none: nothing."""
    return since(late_ms)


def since(late_ms: Iterable[int]) -> LatenessSince:
    """Return the same of many."""
    late, times = Lateness(), np.fromiter(late_ms, np.int64)
    late.note(np.zeros(times.size, np.int64), times)
    return LatenessSince(late.buckets)
