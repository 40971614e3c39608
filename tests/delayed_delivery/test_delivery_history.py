"""Deliveries by minute."""

from __future__ import annotations

import numpy as np

from delayed_delivery.outcome import MINUTE_MS, MINUTES_MAX, DeliveryHistory


def recorded(history: DeliveryHistory, now_ms: int, *late_ms: int) -> None:
    store_ms = np.full(len(late_ms), now_ms, np.int64)
    history.record(store_ms - np.array(late_ms, np.int64), store_ms, now_ms)


def test_deliveries_are_counted_by_minute_with_their_lateness() -> None:
    history = DeliveryHistory(since_ms=30_000)
    recorded(history, MINUTE_MS + 1, 0, 1)
    recorded(history, 2 * MINUTE_MS - 1, 5)
    recorded(history, 4 * MINUTE_MS, 7)
    recorded(history, 3 * MINUTE_MS, 100)  # the clock was set back
    recorded(history, 4 * MINUTE_MS + 1)
    assert history.view(4 * MINUTE_MS + 2) == {
        "now_ms": 4 * MINUTE_MS + 2,
        "since_ms": 30_000,
        "width_ms": MINUTE_MS,
        "rows": [(MINUTE_MS, 3, 1, 5, 5), (4 * MINUTE_MS, 2, 7, 100, 100)],
    }


def test_a_day_is_kept() -> None:
    history = DeliveryHistory(since_ms=0)
    for minute in range(MINUTES_MAX + 10):
        recorded(history, minute * MINUTE_MS, 0)
    now_ms = (MINUTES_MAX + 9) * MINUTE_MS
    view = history.view(now_ms)
    assert len(view["rows"]) == MINUTES_MAX
    assert view["since_ms"] == 10 * MINUTE_MS - MINUTE_MS
    assert history.view(now_ms + MINUTES_MAX * MINUTE_MS)["rows"] == []
