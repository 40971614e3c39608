"""Collector of the level service's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from delayed_delivery.metric_families import counter, gauge, lateness
from delayed_delivery.outcome import DeliveryStats

COUNTERS = {
    "delivered": ("delivered", "Messages delivered to their topic."),
    "lost": ("expired", "Messages whose log file was removed before they were delivered."),
    "refused": ("refused", "Deliveries that the store refused; they are repeated."),
}
"""Name and help text of each counter of `DeliveryStats`."""


class LevelCollector:
    """A prometheus-client collector over the levels' counters.

    Args:
        levels: Returns by level: counters, number of pending messages, due time of the next in ms
            since the epoch (None: none is pending).
    """

    def __init__(
        self, levels: Callable[[], Mapping[int, tuple[DeliveryStats, int, int | None]]]
    ) -> None:
        self._levels = levels

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        levels = sorted(self._levels().items())
        pending = [(n, p) for n, (_, p, _) in levels]
        yield gauge("duemq_level_pending", "Pending messages of a level.", "level", pending)
        due = [(n, d / 1_000) for n, (_, _, d) in levels if d is not None]
        text = "Due time of the next message of a level."
        yield gauge("duemq_level_next_due_timestamp_seconds", text, "level", due)
        for attribute, (name, text) in COUNTERS.items():
            counts = [(n, getattr(stats, attribute)) for n, (stats, _, _) in levels]
            yield counter(f"duemq_level_{name}", text, "level", counts)
        text = "Messages that could not be delivered and went to the quarantine topic."
        family = CounterMetricFamily("duemq_level_quarantined", text, labels=["level", "reason"])
        for level, (stats, _, _) in levels:
            for reason, count in sorted(stats.quarantined.items()):
                family.add_metric([str(level), reason.value], count)
        yield family
        late = [(n, stats.lateness[0]) for n, (stats, _, _) in levels]
        yield lateness("duemq_level_lateness_seconds", "level", late)
