"""Statistics of timer deliveries: lateness, deliveries, quarantine, losses, rate.

Lateness is the store time of the delivery minus the due time. It is counted per batch and per class
of topics, so that late deliveries of one class do not hide those of another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from delayed_delivery.deliverer import Outcome
from delayed_delivery.lateness import Lateness
from delayed_delivery.metric_families import counter, lateness
from delayed_delivery.quarantine import Reason, report
from message_store.queues.topic_table import TopicTable
from timer_store.layout import Offsets

CLASSES: Final = ("ordinary", "retry", "system")
ORDINARY, RETRY, SYSTEM = range(len(CLASSES))
RETRY_PREFIXES: Final = ("%RETRY%", "%DLQ%")
SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC_")
RATE_SECONDS: Final = 60
COUNTERS: Final = {
    "lost": "Timers whose record retention removed.",
    "refused": "Batches that the store refused in part; they are repeated.",
}


def class_of(topic: str) -> int:
    """Return the class of a topic, an index of CLASSES."""
    if topic.startswith(RETRY_PREFIXES):
        return RETRY
    return SYSTEM if topic.startswith(SYSTEM_PREFIXES) else ORDINARY


class Rate:
    """Events in each of the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS)  # (second, events)

    def add(self, count: int, now_ms: int) -> None:
        """Count events; while the clock does not advance, they are added to the last second."""
        second = now_ms // 1_000
        if self._seconds and self._seconds[-1][0] >= second:
            second, before = self._seconds.pop()
            count += before
        self._seconds.append((second, count))

    def per_second(self, now_ms: int, *, seconds: int = 10) -> float:
        """Return the mean over the whole seconds before this one."""
        end = now_ms // 1_000
        within = [count for second, count in self._seconds if end - seconds <= second < end]
        return sum(within) / seconds


class TimerStats:
    """Counters of one timer store's delivery since the start of the process.

    Attributes:
        delivered: Timers delivered to their topic.
        lost: Timers whose record retention had removed.
        refused: Batches with rows that the store refused; they are delivered later.
        quarantined: Timers that went to quarantine, by reason.
        lateness: Histogram of each class of topics.
    """

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics
        self._classes: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.delivered = 0
        self._by_topic: Offsets = np.zeros(0, np.int64)
        self.lost = 0
        self.refused = 0
        self.quarantined: Counter[Reason] = Counter()
        self.lateness = tuple(Lateness() for _ in CLASSES)
        self.rate = Rate()

    def record(self, due_ms: Offsets, outcome: Outcome, now_ms: int) -> None:
        """Count the outcome of deliveries.

        Args:
            due_ms: (n,) i8, n >= outcome.done: due times.
        """
        self.delivered += outcome.delivered
        self.refused += bool(outcome.refusal)
        self.record_undelivered(outcome)
        if not outcome.delivered:
            return
        self.rate.add(outcome.delivered, now_ms)
        due_ms, store_ms, topic_index = outcome.delivered_columns(due_ms)
        self._count_topics(topic_index)
        classes = self._class_of_each(topic_index)
        for number in np.unique(classes).tolist():
            mine = classes == number
            self.lateness[number].record(due_ms[mine], store_ms[mine])

    def record_undelivered(self, outcome: Outcome) -> None:
        """Count and log the lost and quarantined timers of an outcome, also of rolls by message."""
        self.lost += outcome.lost
        for item in outcome.quarantined:
            self.quarantined[item.reason] += 1
        if outcome.quarantined:
            report(outcome.quarantined)

    def _count_topics(self, topic_index: npt.NDArray[np.int32]) -> None:
        counts = np.bincount(topic_index)
        if counts.size > self._by_topic.size:
            self._by_topic = np.pad(self._by_topic, (0, counts.size - self._by_topic.size))
        self._by_topic[: counts.size] += counts

    def delivered_by_topic(self) -> list[tuple[str, int]]:
        """Return the number of timers delivered to each topic."""
        counts = self._by_topic
        return [
            (self._topics.name(index), int(counts[index]))
            for index in np.flatnonzero(counts).tolist()
        ]

    def _class_of_each(self, topic_index: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        known = self._classes.size
        if len(self._topics) > known:
            names = (self._topics.name(index) for index in range(known, len(self._topics)))
            new = np.fromiter((class_of(name) for name in names), np.uint8)
            self._classes = np.concatenate([self._classes, new])
        return self._classes[topic_index]

    def as_dict(self, now_ms: int) -> dict[str, object]:
        """Return plain data for views."""
        return {
            "delivered": self.delivered,
            "delivered_per_second": self.rate.per_second(now_ms),
            "lost": self.lost,
            "refused": self.refused,
            "quarantined": {reason.value: count for reason, count in self.quarantined.items()},
            "lateness_ms": {
                name: late.as_dict() | {"p999": late.quantile_ms(0.999)}
                for name, late in zip(CLASSES, self.lateness, strict=True)
            },
        }


def families(
    stats: TimerStats,
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
