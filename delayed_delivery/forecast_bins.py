"""Bins of a forecast: pending messages by due time, of levels and of timers.

| before | bin 1 | bin 2 | ... | bin n | later |      bin k: due after its start, up to its end
       from_ms  + width_ms
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from delayed_delivery.view_fields import number

BINS_MAX: Final = 10_000
BINS: Final = 60
MINUTE_MS: Final = 60_000
Bins = npt.NDArray[np.int64]


class Span(Struct, frozen=True):
    """Requested bins: `count` bins of `width_ms` from `from_ms` on."""

    from_ms: int
    width_ms: int
    count: int

    @classmethod
    def of(
        cls, fields: Mapping[str, str], now_ms: int, *, time_ms_max: int, precision_ms: int = 1
    ) -> Self:
        """Return the span of a request; without fields, the minutes of the next hour.

        Args:
            fields: from_ms, width_ms, count; each may be missing.
            precision_ms: Start and width are rounded down to it.
        Raises:
            RequestError: A field is invalid.
        """
        width_ms = max(number(fields, "width_ms", MINUTE_MS, time_ms_max), precision_ms)
        from_ms = number(fields, "from_ms", now_ms, time_ms_max)
        return cls(
            from_ms - from_ms % precision_ms,
            width_ms - width_ms % precision_ms,
            max(number(fields, "count", BINS, BINS_MAX), 1),
        )

    def empty(self) -> Bins:
        """Return bins without messages, (count + 2,)."""
        return np.zeros(self.count + 2, np.int64)

    def bins_of(self, times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bin of each time, (n,) i8; a time at the start of a bin belongs to it."""
        bins: npt.NDArray[np.int64] = np.clip(
            (times_ms - self.from_ms) // self.width_ms + 1, 0, self.count + 1
        )
        return bins

    def count_due(self, due_ms: npt.NDArray[np.int64]) -> Bins:
        """Return the number of due times in each bin, (count + 2,)."""
        return np.bincount(self.bins_of(due_ms - 1), minlength=self.count + 2)


def forecast_response(
    span: Span, bins: Bins, *, now_ms: int, pending: int, pos: int | None = None
) -> dict[str, object]:
    """Return the response of a forecast.

    Args:
        pos: Position from which the next request reads corrections; None: there are none.
    """
    return {
        "now_ms": now_ms,
        "from_ms": span.from_ms,
        "width_ms": span.width_ms,
        "before": int(bins[0]),
        "counts": bins[1:-1].tolist(),
        "later": int(bins[-1]),
        "pending": pending,
        "pos": pos,
    }
