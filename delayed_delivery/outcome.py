"""Outcome of deliveries: of one batch, and of all since the start of the process.

    Outcome          settled units of a batch: delivered, in quarantine, lost; refusal of the next
    DeliveryStats    counters of one level, or of the timers
    Lateness         histogram of store time minus due time, updated once per batch
    DeliveryHistory  deliveries and lateness of each minute of the last day

Timers are counted by class of topics, so that late deliveries of one class do not hide those of
another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.outcome import count_late, settle
from delayed_delivery.quarantine import Reason, Undeliverable, report
from duemq_common.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable

Numbers = npt.NDArray[np.int64]
NOT_PUT: Final = -1
NO_TOPIC: Final = -1
NO_ROWS: Final[Mapping[int, int]] = MappingProxyType({})
ALL: Final = "all"
CLASSES: Final = ("ordinary", "retry", "system")
ORDINARY, RETRY, SYSTEM = range(len(CLASSES))
RETRY_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)
SYSTEM_PREFIXES: Final = (SYSTEM_PREFIX, "RMQ_SYS_", "SCHEDULE_TOPIC_")
RATE_SECONDS: Final = 60
MINUTE_MS: Final = 60_000
MINUTES_MAX: Final = 1_440
HistoryRow = tuple[int, int, int | None, int | None, int]
"""Start of a minute in ms, deliveries, median, 99 % quantile and maximum of the lateness in ms."""

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


class Outcome:
    """Result of delivering units, in order.

    Args:
        units: Number of units.

    Attributes:
        done: Number of leading units that are settled: delivered, in quarantine, lost, or skipped.
        delivered: Number of these units that were delivered.
        quarantined: Messages moved to quarantine.
        lost: Number of messages whose record retention had removed.
        refusal: Reason why the store refused the next unit, or empty.
        illegal: The next unit cannot be delivered, and the store refused its quarantine record.
    """

    def __init__(self, units: int) -> None:
        self.done = self.delivered = self.lost = 0
        self.quarantined: list[Undeliverable] = []
        self.refusal, self.illegal = "", False
        self._store_ms = np.full(units, NOT_PUT, np.int64)
        self._topic_index = np.full(units, NO_TOPIC, np.int32)

    @property
    def store_ms(self) -> Numbers:
        """Store times of the settled units, (done,); NOT_PUT for units that were not delivered."""
        return self._store_ms[: self.done]

    @property
    def topic_index(self) -> npt.NDArray[np.int32]:
        """Real topics of the settled units, (done,); NO_TOPIC where it is unknown."""
        return self._topic_index[: self.done]

    def record(self, store_ms: int, topic_index: int, count: int = 1) -> None:
        """Settle the next `count` units, all with the same store time and topic."""
        first, self.done = self.done, self.done + count
        self._store_ms[first : self.done] = store_ms
        self._topic_index[first : self.done] = topic_index
        self.delivered += 0 if store_ms == NOT_PUT else count

    def record_batch(self, batch: PutBatch, undelivered: Mapping[int, int] = NO_ROWS) -> int:
        """Settle the leading rows of a batch after the put, up to the first refused row.

        Args:
            undelivered: Real topic of each row that is not a delivery (quarantine, lost), by index.

        Returns:
            Number of settled rows.
        """
        first = self.done
        count, illegal = settle(
            batch.rows, batch.count, self._store_ms[first:], self._topic_index[first:]
        )
        assert not illegal, "a row that the store may refuse permanently is delivered alone"
        for position, topic_index in undelivered.items():
            self._store_ms[first + position], self._topic_index[first + position] = (
                NOT_PUT,
                topic_index,
            )
        self.done = first + int(count)
        self.delivered += int(np.count_nonzero(self._store_ms[first : self.done] != NOT_PUT))
        if count < batch.count:
            self.refuse(batch, count)
        return int(count)

    def refuse(self, batch: PutBatch, position: int) -> None:
        """Record that the store refused a row of a batch."""
        self.refusal = batch.refusal(position)

    def delivered_columns(self, due_ms: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[np.int32]]:
        """Return due times, store times and topics of the delivered units.

        Args:
            due_ms: Due times of all units.
        """
        columns = due_ms[: self.done], self.store_ms, self.topic_index
        if self.delivered == self.done:
            return columns
        put = self.store_ms != NOT_PUT
        return columns[0][put], columns[1][put], columns[2][put]


class Lateness:
    """Histogram of deliveries by lateness.

    Attributes:
        buckets: (len(BOUNDS_MS) + 1,) i8.
    """

    def __init__(self) -> None:
        self.buckets: Numbers = np.zeros(BOUNDS_MS.size + 1, np.int64)
        self.sum_ms = 0
        self.max_ms = 0

    def record(self, due_ms: Numbers, store_ms: Numbers) -> None:
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


class DeliveryStats:
    """Counters of deliveries since the start of the process, of one level or of the timers.

    Args:
        topics: Topics by which deliveries are counted, too; None: they are not.

    Attributes:
        delivered: Messages delivered to their topic.
        lost: Messages whose record retention had removed.
        refused: Batches with units that the store refused; they are delivered later.
        quarantined: Messages that went to quarantine, by reason.
        lateness: Histogram of each class of topics; one for all if they are not counted by topic.
    """

    def __init__(self, topics: TopicTable | None = None) -> None:
        self.delivered = self.lost = self.refused = 0
        self.quarantined: Counter[Reason] = Counter()
        self.rate = Rate()
        self._topics = topics
        self._classes: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._by_topic: Numbers = np.zeros(0, np.int64)
        self.lateness = tuple(Lateness() for _ in (CLASSES if topics is not None else (ALL,)))

    def record(self, due_ms: Numbers, outcome: Outcome, now_ms: int, *, timed: bool = True) -> None:
        """Count the outcome of deliveries.

        Args:
            due_ms: (n,) i8, n >= outcome.done: due times.
            timed: Whether lateness is counted.
        """
        self.delivered += outcome.delivered
        self.refused += bool(outcome.refusal)
        self.record_undelivered(outcome)
        if not outcome.delivered:
            return
        self.rate.add(outcome.delivered, now_ms)
        if self._topics is not None:
            self._record_by_class(self._topics, *outcome.delivered_columns(due_ms))
        elif timed:
            due_ms, store_ms, _ = outcome.delivered_columns(due_ms)
            self.lateness[0].record(due_ms, store_ms)

    def record_undelivered(self, outcome: Outcome) -> None:
        """Count and log the lost and quarantined messages of an outcome."""
        self.lost += outcome.lost
        self.record_quarantined(outcome.quarantined)

    def record_quarantined(self, items: Sequence[Undeliverable]) -> None:
        """Count and log messages that went to quarantine."""
        for item in items:
            self.quarantined[item.reason] += 1
        if items:
            report(items)

    def _record_by_class(
        self,
        topics: TopicTable,
        due_ms: Numbers,
        store_ms: Numbers,
        topic_index: npt.NDArray[np.int32],
    ) -> None:
        counts = np.bincount(topic_index)
        if counts.size > self._by_topic.size:
            self._by_topic = np.pad(self._by_topic, (0, counts.size - self._by_topic.size))
        self._by_topic[: counts.size] += counts
        first = self._classes.size
        if len(topics) > first:
            names = (topics.name(index) for index in range(first, len(topics)))
            new = np.fromiter((class_of(name) for name in names), np.uint8)
            self._classes = np.concatenate([self._classes, new])
        classes = self._classes[topic_index]
        if (classes == classes[0]).all():  # nearly always
            self.lateness[int(classes[0])].record(due_ms, store_ms)
            return
        for number in np.unique(classes).tolist():
            in_class = classes == number
            self.lateness[number].record(due_ms[in_class], store_ms[in_class])

    def by_topic(self) -> list[tuple[int, int]]:
        """Return the number of messages delivered to each topic: (topic index, number)."""
        counts = self._by_topic
        return [(index, int(counts[index])) for index in np.flatnonzero(counts).tolist()]

    def by_reason(self) -> dict[str, int]:
        """Return the number of messages in quarantine by reason, as plain data for views."""
        return {reason.value: count for reason, count in self.quarantined.items()}


class DeliveryHistory:
    """Deliveries by minute; minutes without any have no row.

    Args:
        since_ms: Start of the process; it is not known what was delivered before.
    """

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self._rows: deque[HistoryRow] = deque(maxlen=MINUTES_MAX)
        self._minute_ms = 0
        self._lateness = Lateness()

    def record(self, due_ms: Numbers, store_ms: Numbers, now_ms: int) -> None:
        """Count deliveries; while the clock is set back, they are added to the last minute."""
        minute_ms = now_ms - now_ms % MINUTE_MS
        if minute_ms > self._minute_ms:
            self._rows.extend(self._current())
            self._minute_ms, self._lateness = minute_ms, Lateness()
        self._lateness.record(due_ms, store_ms)

    def _current(self) -> list[HistoryRow]:
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


def class_of(topic: str) -> int:
    """Return the class of a topic, an index of CLASSES."""
    if topic.startswith(RETRY_PREFIXES):
        return RETRY
    return SYSTEM if topic.startswith(SYSTEM_PREFIXES) else ORDINARY
