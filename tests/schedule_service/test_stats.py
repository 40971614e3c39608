"""Statistics of delivered batches."""

from __future__ import annotations

import numpy as np

from schedule_service.stats import LevelStats


def test_deliveries_are_counted_and_timed() -> None:
    stats = LevelStats()
    stats.record_delivered(np.array([5, 5], np.int64), np.array([5, 8], np.int64), timed=True)
    assert (stats.delivered, stats.lateness.count) == (2, 2)
    assert stats.as_dict()["lateness_ms"]["max"] == 3


def test_without_timing_only_deliveries_are_counted() -> None:
    stats = LevelStats()
    stats.record_delivered(np.zeros(3, np.int64), np.ones(3, np.int64), timed=False)
    assert (stats.delivered, stats.lateness.count) == (3, 0)
    assert stats.as_dict()["lateness_ms"]["max"] is None
