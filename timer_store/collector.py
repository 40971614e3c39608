"""Prometheus collector of the timer store: Apache's names and our own.

Source of Apache's names: DefaultStoreMetricsManager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from delayed_delivery.forecast_bins import Span
from delayed_delivery.metric_families import counter, gauge, lateness
from delayed_delivery.outcome import CLASSES, DeliveryStats
from delayed_delivery.steps import Steps
from timer_store import views
from timer_store.compaction.plan import Blocked
from timer_store.pending.forecast import of_slots
from timer_store.store import TimerStore

BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)  # TimerMetrics.timerDist
COUNTERS: Final = {
    "lost": "Timers whose log file was removed before they were delivered.",
    "refused": "Batches that the store refused in part; they are repeated.",
}


class StoreCollector:
    """A prometheus-client collector over one running timer store."""

    def __init__(self, timers: TimerStore) -> None:
        self._timers = timers

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        return (family for family in self.steps() if family is not None)

    def steps(self) -> Iterator[Metric | None]:
        """Yield all metric families, and None after each step of long work."""
        timers = self._timers
        gauges = yield from self._gauges(timers.clock.now_ms())
        next_due_ms = views.first_due_ms(timers)
        yield from families(timers.stats, next_due_ms, gauges)
        yield from self._events()
        yield from self._compaction()
        yield from self._apache_metrics()

    def _gauges(self, now_ms: int) -> Steps[Mapping[str, tuple[str, float]]]:
        timers = self._timers
        slots = yield from views.slots_view(timers)
        log = timers.units.log
        return {
            "dequeue_lag": (
                "Timers that are due and not delivered.",
                views.overdue(timers, now_ms),
            ),
            "staged": ("Timers loaded for delivery.", len(timers.stage)),
            "slots_used": ("Slots with pending timers.", slots["used"]),
            "congested_slots": ("Slots that accept no more timers.", slots["congested"]),
            "log_bytes": ("Bytes of the timer log.", log.end - log.min_pos),
        }

    def _events(self) -> Iterator[Metric]:
        texts = {
            "rolled": "Timers rolled into a later slot.",
            "cancelled": "Timers cancelled.",
            "moved": "Timers moved to another time.",
            "fired": "Timers delivered before their due time, on request.",
            "broken": "Records in the timer queue that are not timers; they went to quarantine.",
        }
        for name, count in views.event_counts(self._timers).items():
            yield CounterMetricFamily(f"duemq_timer_{name}", texts[name], value=count)
        enqueued = self._timers.enqueue.enqueued
        yield CounterMetricFamily("duemq_timer_enqueued", "Timers enqueued.", value=enqueued)

    def _compaction(self) -> Iterator[Metric]:
        compaction = self._timers.compaction
        counters = {
            "copied": ("Timers copied out of old log files.", compaction.copied),
            "copied_bytes": ("Bytes of the records of copied timers.", compaction.copied_bytes),
            "freed_bytes": (
                "Bytes of log files that no timer needs any more, because of copies.",
                compaction.freed_bytes,
            ),
            "log_files_removed": (
                "Files of the timer log removed because they had no pending timer.",
                self._timers.log_cleaning.removed_files,
            ),
        }
        for name, (text, count) in counters.items():
            yield CounterMetricFamily(f"duemq_timer_{name}", text, value=count)
        text = "1 while old log files should be removed and this reason prevents copies."
        blocked = [
            (reason.value, int(reason == compaction.blocked_by)) for reason in Blocked if reason
        ]
        yield gauge("duemq_timer_compaction_blocked", text, "why", blocked)

    def _apache_metrics(self) -> Iterator[Metric | None]:
        timers, now_ms = self._timers, self._timers.clock.now_ms()
        gauges = {
            "enqueue_lag": (
                "Timers in the timer queue that are not enqueued.",
                timers.enqueue.lag_units,
            ),
            "enqueue_latency_milliseconds": (
                "Age in the queue of the next timer to be enqueued.",
                views.enqueue_lag_ms(timers, now_ms),
            ),
            "dequeue_lag": ("Pending timers.", timers.counts.total),
            "dequeue_latency_milliseconds": (
                "Seconds (as in Apache, despite the name) since the next timer was due.",
                views.dequeue_lag_ms(timers, now_ms) // 1_000,
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"rocketmq_timer_{name}", text, value=value)
        text = "Timers delivered to their topic."
        topics = timers.store.topics
        delivered = [(topics.name(index), n) for index, n in timers.stats.by_topic()]
        yield counter("rocketmq_timer_dequeue", text, "topic", delivered)
        text, pending = "Pending timers by topic.", sorted(timers.counts.by_topic().items())
        yield gauge("rocketmq_timing_messages", text, "topic", pending)
        yield from self._snapshot(now_ms)

    def _snapshot(self, now_ms: int) -> Iterator[Metric | None]:
        text = (
            "Timers due within this many seconds, and not within the bound before; up to one day."
        )
        start_ms = now_ms - now_ms % self._timers.config.precision_ms
        width_ms = BOUNDS_S[0] * 1_000
        span = Span(start_ms, width_ms, BOUNDS_S[-1] // BOUNDS_S[0])
        counts = yield from of_slots(self._timers, span)
        ends = [1 + bound_s // BOUNDS_S[0] for bound_s in BOUNDS_S]
        sums = [int(counts[low:high].sum()) for low, high in pairwise([1, *ends])]
        values = zip(BOUNDS_S, sums, strict=True)
        yield gauge("rocketmq_timer_message_snapshot", text, "timer_bound_s", values)


def families(
    stats: DeliveryStats,
    next_due_ms: int | None,
    gauges: Mapping[str, tuple[str, float]],
) -> Iterator[Metric]:
    """Yield the metric families of one timer store.

    Args:
        next_due_ms: Due time of the next timer, None if none is pending.
        gauges: More gauges: name (without prefix) -> (help text, value).
    """
    next_s = None if next_due_ms is None else next_due_ms / 1_000
    text = "Due time of the next timer."
    yield GaugeMetricFamily("duemq_timer_next_due_timestamp_seconds", text, value=next_s)
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(f"duemq_timer_{name}", text, value=value)
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(f"duemq_timer_{name}", text, value=getattr(stats, name))
    text = "Timers that could not be delivered and went to the quarantine topic."
    reasons = [(reason.value, count) for reason, count in sorted(stats.quarantined.items())]
    yield counter("duemq_timer_quarantined", text, "reason", reasons)
    late = zip(CLASSES, stats.lateness, strict=True)
    yield lateness("duemq_timer_lateness_seconds", "topics", late)
