"""Statistics of the level service: lateness, deliveries, quarantine, losses to retention.

Lateness is the store time of the delivery minus the due time, counted once per batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from delivery.lateness import Lateness
from delivery.quarantine import Reason


class LevelStats:
    """Counters of one level since the start of the process."""

    def __init__(self) -> None:
        self.delivered = 0
        self.expired = 0
        self.refused = 0
        self.quarantined: Counter[Reason] = Counter()
        self.lateness = Lateness()

    def record_delivered(
        self, due_ms: npt.NDArray[np.int64], store_ms: npt.NDArray[np.int64], *, timed: bool
    ) -> None:
        """Count deliveries; with `timed` also their lateness."""
        self.delivered += int(due_ms.size)
        if timed:
            self.lateness.record(due_ms, store_ms)

    def as_dict(self) -> dict[str, object]:
        """Return plain data for views."""
        return {
            "delivered": self.delivered,
            "expired": self.expired,
            "refused": self.refused,
            "quarantined": {reason.value: count for reason, count in self.quarantined.items()},
            "lateness_ms": self.lateness.as_dict(),
        }


class LevelCollector:
    """A prometheus-client collector over the levels' counters.

    Args:
        levels: Returns by level: counters, number of pending messages, due time of the next in ms
            since the epoch (None: none is pending).
    """

    def __init__(
        self, levels: Callable[[], Mapping[int, tuple[LevelStats, int, int | None]]]
    ) -> None:
        self._levels = levels

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        levels = sorted(self._levels().items())
        yield _gauge("pending", "Pending messages of a level.", [(n, p) for n, (_, p, _) in levels])
        due = [(n, d / 1_000) for n, (_, _, d) in levels if d is not None]
        yield _gauge("next_due_timestamp_seconds", "Due time of the next message of a level.", due)
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


def _quarantined(levels: list[tuple[int, tuple[LevelStats, int, int | None]]]) -> Metric:
    doc = "Messages that could not be delivered and went to the quarantine topic."
    family = CounterMetricFamily("duemq_level_quarantined", doc, labels=["level", "reason"])
    for level, (stats, _, _) in levels:
        for reason, count in sorted(stats.quarantined.items()):
            family.add_metric([str(level), reason.value], count)
    return family


def _lateness(levels: list[tuple[int, tuple[LevelStats, int, int | None]]]) -> Metric:
    doc = "Store time of a delivery minus its due time."
    family = HistogramMetricFamily("duemq_level_lateness_seconds", doc, labels=["level"])
    for level, (stats, _, _) in levels:
        late = stats.lateness
        family.add_metric([str(level)], late.seconds_buckets(), late.sum_ms / 1_000)
    return family
