"""What the level service counts: lateness, deliveries, quarantine, losses to retention.

Lateness is the store time of the delivery minus the time it was promised for. It is counted by
the batch, one vector operation, and read by `duemq levels` and /metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from message_store.quarantine import Reason

# Upper bounds of the lateness buckets in ms; one more bucket takes what is later.
BOUNDS_MS = np.array(
    [
        0,
        1,
        2,
        5,
        10,
        20,
        50,
        100,
        200,
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


class LevelStats:
    """Counters of one level since the start of the process.

    Attributes:
        buckets: (len(BOUNDS_MS) + 1,) i8: deliveries by lateness.
    """

    def __init__(self) -> None:
        self.delivered = 0
        self.expired = 0
        self.refused = 0
        self.quarantined: Counter[Reason] = Counter()
        self.buckets: npt.NDArray[np.int64] = np.zeros(BOUNDS_MS.size + 1, np.int64)
        self.late_ms_sum = 0
        self.late_ms_max = 0

    def note_delivered(
        self, due_ms: npt.NDArray[np.int64], store_ms: npt.NDArray[np.int64], *, timed: bool
    ) -> None:
        """Count deliveries; with `timed` also how late they were."""
        self.delivered += int(due_ms.size)
        if not timed or not due_ms.size:
            return
        late = np.maximum(store_ms - due_ms, 0)
        self.buckets += np.bincount(np.searchsorted(BOUNDS_MS, late), minlength=self.buckets.size)
        self.late_ms_sum += int(late.sum())
        self.late_ms_max = max(self.late_ms_max, int(late.max()))

    def quantile_ms(self, share: float) -> int | None:
        """Return an upper bound of the lateness of `share` of the deliveries; None without any."""
        total = int(self.buckets.sum())
        if not total:
            return None
        at = int(np.searchsorted(np.cumsum(self.buckets), share * total))
        return int(BOUNDS_MS[at]) if at < BOUNDS_MS.size else self.late_ms_max

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for views."""
        bounds: list[int | None] = [*BOUNDS_MS.tolist(), None]
        return {
            "delivered": self.delivered,
            "expired": self.expired,
            "refused": self.refused,
            "quarantined": {reason.value: count for reason, count in self.quarantined.items()},
            "lateness_ms": {
                "p50": self.quantile_ms(0.5),
                "p99": self.quantile_ms(0.99),
                "max": self.late_ms_max if self.buckets.any() else None,
                "buckets": [list(pair) for pair in zip(bounds, self.buckets.tolist(), strict=True)],
            },
        }


class LevelCollector:
    """A prometheus-client collector over the levels' counters.

    Args:
        levels: returns, by level, its counters, its pending messages and when the next is due
            in ms since the epoch (None: nothing pending).
    """

    def __init__(
        self, levels: Callable[[], Mapping[int, tuple[LevelStats, int, int | None]]]
    ) -> None:
        self._levels = levels

    def describe(self) -> list[Any]:
        """Return nothing: registering must not ask for figures."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all metric families."""
        levels = sorted(self._levels().items())
        yield _gauge("pending", "Messages waiting in a level.", [(n, p) for n, (_, p, _) in levels])
        due = [(n, d / 1_000) for n, (_, _, d) in levels if d is not None]
        yield _gauge("next_due_timestamp_seconds", "When the next message of a level is due.", due)
        delivered = [(n, stats.delivered) for n, (stats, _, _) in levels]
        yield _counter("delivered", "Messages delivered to their topic.", delivered)
        expired = [(n, stats.expired) for n, (stats, _, _) in levels]
        yield _counter("expired", "Messages that retention removed before they were due.", expired)
        refused = [(n, stats.refused) for n, (stats, _, _) in levels]
        yield _counter("refused", "Deliveries that the store refused; they are repeated.", refused)
        yield _quarantined(levels)
        yield _lateness(levels)


def _gauge(name: str, doc: str, values: list[tuple[int, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"duemq_level_{name}", doc, labels=["level"])
    for level, value in values:
        family.add_metric([str(level)], value)
    return family


def _counter(name: str, doc: str, values: list[tuple[int, int]]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"duemq_level_{name}", doc, labels=["level"])
    for level, value in values:
        family.add_metric([str(level)], value)
    return family


def _quarantined(levels: list[tuple[int, tuple[LevelStats, int, int | None]]]) -> Any:
    doc = "Messages that cannot be delivered and lie in the quarantine topic."
    family = CounterMetricFamily("duemq_level_quarantined", doc, labels=["level", "reason"])
    for level, (stats, _, _) in levels:
        for reason, count in sorted(stats.quarantined.items()):
            family.add_metric([str(level), reason.value], count)
    return family


def _lateness(levels: list[tuple[int, tuple[LevelStats, int, int | None]]]) -> Any:
    doc = "Store time of a delivery minus the time it was promised for."
    family = HistogramMetricFamily("duemq_level_lateness_seconds", doc, labels=["level"])
    bounds = [*(str(bound / 1_000) for bound in BOUNDS_MS.tolist()), "+Inf"]
    for level, (stats, _, _) in levels:
        counts = np.cumsum(stats.buckets).tolist()
        buckets = list(zip(bounds, counts, strict=True))
        family.add_metric([str(level)], buckets, stats.late_ms_sum / 1_000)
    return family
