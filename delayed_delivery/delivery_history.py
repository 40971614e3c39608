"""Deliveries of each minute of the last day, with their lateness."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from delayed_delivery.outcome import Lateness

MINUTE_MS: Final = 60_000
MINUTES_MAX: Final = 1_440
Row = tuple[int, int, int | None, int | None, int]
"""Start of a minute in ms, deliveries, median, 99 % quantile and maximum of the lateness in ms."""


class DeliveryHistory:
    """Deliveries by minute; minutes without any have no row.

    Args:
        since_ms: Start of the process; it is not known what was delivered before.
    """

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self._rows: deque[Row] = deque(maxlen=MINUTES_MAX)
        self._minute_ms = 0
        self._lateness = Lateness()

    def record(
        self, due_ms: npt.NDArray[np.int64], store_ms: npt.NDArray[np.int64], now_ms: int
    ) -> None:
        """Count deliveries; while the clock is set back, they are added to the last minute."""
        minute_ms = now_ms - now_ms % MINUTE_MS
        if minute_ms > self._minute_ms:
            self._rows.extend(self._current())
            self._minute_ms, self._lateness = minute_ms, Lateness()
        self._lateness.record(due_ms, store_ms)

    def _current(self) -> list[Row]:
        late = self._lateness
        if not late.count:
            return []
        p50, p99 = late.quantile_ms(0.5), late.quantile_ms(0.99)
        return [(self._minute_ms, late.count, p50, p99, late.max_ms)]

    def view(self, now_ms: int) -> dict[str, object]:
        """Return the rows of the last day as plain data."""
        first_ms = now_ms - MINUTES_MAX * MINUTE_MS
        rows = [row for row in (*self._rows, *self._current()) if row[0] > first_ms]
        since_ms = max(self.since_ms, first_ms)
        return {"now_ms": now_ms, "since_ms": since_ms, "width_ms": MINUTE_MS, "rows": rows}
