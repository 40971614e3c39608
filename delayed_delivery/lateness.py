"""Lateness histogram with fixed buckets, updated once per batch.

Lateness is the store time of a delivery minus the due time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.outcome import count_late

Times = npt.NDArray[np.int64]

# Upper bounds of the buckets in ms; one more bucket is for larger values.
BOUNDS_MS = np.array(
    [
        *range(9),
        10,
        12,
        15,
        20,
        25,
        30,
        40,
        50,
        70,
        100,
        150,
        200,
        300,
        500,
        1_000,
        2_000,
        5_000,
        10_000,
        60_000,
        600_000,
        3_600_000,
    ],
    np.int64,
)


class Lateness:
    """Histogram of deliveries by lateness.

    Attributes:
        buckets: (len(BOUNDS_MS) + 1,) i8.
    """

    def __init__(self) -> None:
        self.buckets: Times = np.zeros(BOUNDS_MS.size + 1, np.int64)
        self.sum_ms = 0
        self.max_ms = 0

    def record(self, due_ms: Times, store_ms: Times) -> None:
        """Count deliveries; an early delivery counts as 0 ms late."""
        if not due_ms.size:
            return
        due_ms, store_ms = np.ascontiguousarray(due_ms), np.ascontiguousarray(store_ms)
        sum_ms, max_ms = count_late(due_ms, store_ms, BOUNDS_MS, self.buckets)
        self.sum_ms += sum_ms
        self.max_ms = max(self.max_ms, max_ms)

    @property
    def count(self) -> int:
        """Number of deliveries."""
        return int(self.buckets.sum())

    def quantile_ms(self, share: float) -> int | None:
        """Return an upper bound of the lateness of `share` of the deliveries; None without any.

        It is the bound of a bucket, or the maximum lateness if that is lower.
        """
        if not self.count:
            return None
        position = int(np.searchsorted(np.cumsum(self.buckets), share * self.count))
        return (
            min(int(BOUNDS_MS[position]), self.max_ms) if position < BOUNDS_MS.size else self.max_ms
        )

    def as_dict(self) -> dict[str, object]:
        """Return plain data for views."""
        bounds: list[int | None] = [*BOUNDS_MS.tolist(), None]
        return {
            "p50": self.quantile_ms(0.5),
            "p99": self.quantile_ms(0.99),
            "max": self.max_ms if self.count else None,
            "buckets": [list(pair) for pair in zip(bounds, self.buckets.tolist(), strict=True)],
        }

    def seconds_buckets(self) -> list[tuple[str, int]]:
        """Return (upper bound in seconds, deliveries up to it), in prometheus-client's form."""
        bounds = [*(str(bound / 1_000) for bound in BOUNDS_MS.tolist()), "+Inf"]
        return list(zip(bounds, np.cumsum(self.buckets).tolist(), strict=True))
