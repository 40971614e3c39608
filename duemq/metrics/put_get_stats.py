"""Statistics of puts and gets: totals, per topic and per group, over minute, hour and day.

`sample` copies the counters every 10 s; requests 315 and 28 return differences between two copies,
as in Apache. Does not read a clock.

Source: BrokerStatsManager, StatsItem, StoreStatsService
"""

from __future__ import annotations

import datetime
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from duemq.metrics.kernels import DELAY_BOUNDS_S, SIZE_BOUNDS, TYPES, count_puts
from message_store.kernels.kernel import entry
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable

SAMPLE_MS = 10_000
HOUR_SAMPLE_MS = 600_000
DAY_SAMPLE_MS = 3_600_000
KEYS_MAX = 100_000


class GroupColumns(Struct, frozen=True):
    """Columns of counters: messages, bytes and additions of each row."""

    counts: array[int] = field(default_factory=partial(array, "q"))
    sizes: array[int] = field(default_factory=partial(array, "q"))
    times: array[int] = field(default_factory=partial(array, "q"))

    def append(self) -> None:
        """Add a row of zeros."""
        for column in (self.counts, self.sizes, self.times):
            column.append(0)

    def copy(self) -> GroupColumns:
        """Return a copy: a few KB for each thousand rows."""
        return GroupColumns(self.counts[:], self.sizes[:], self.times[:])

    def row(self, index: int, column: int) -> tuple[int, int]:
        """Return messages (column 0) or bytes (1), and additions; zeros without the row."""
        if index >= len(self.times):
            return 0, 0
        return (self.sizes if column else self.counts)[index], self.times[index]


class Rates(Struct, frozen=True):
    """Values of a statistic in one window: sum, average per second, average per addition."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class Totals(Struct):
    """Counters of the broker since its start."""

    puts: int = 0
    put_bytes: int = 0
    put_failures: int = 0
    got_messages: int = 0
    pulls_found: int = 0
    pulls_missed: int = 0


class _Sample(Struct, frozen=True):
    at_ms: int
    puts: npt.NDArray[np.int64]  # (topics, 2): messages, bytes
    tallies: GroupColumns
    totals: tuple[int, ...]


class BrokerStats(Struct):
    """Counters of puts and gets of the broker.

    Attributes:
        traffic, delays: Counters by topic index in the store; see `kernels.count_puts`.
        on_pulled: Called with the bytes of pulled messages, their topic and group; None: no call.
    """

    topics: TopicTable
    totals: Totals = field(default_factory=Totals)
    puts_at_midnight: tuple[int, int] = (0, 0)  # totals at the last two midnights, latest second
    gots_at_midnight: tuple[int, int] = (0, 0)
    on_pulled: Callable[[bytes, str, str], None] | None = None
    _calendar_day: int = 0  # local calendar day of the newest sample; 0: no sample yet
    _puts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((64, 2), np.int64))
    traffic: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((64, TYPES, 3 + SIZE_BOUNDS.size), np.int64)
    )
    delays: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((64, 2 + DELAY_BOUNDS_S.size), np.int64)
    )
    _count: Callable[..., tuple[int, int]] | None = None
    _rows: dict[tuple[str, str, str], int] = field(default_factory=dict)  # of `_tallies`
    _tallies: GroupColumns = field(default_factory=GroupColumns)
    _minute: deque[_Sample] = field(default_factory=lambda: deque(maxlen=7))
    _hour: deque[_Sample] = field(default_factory=lambda: deque(maxlen=7))
    _day: deque[_Sample] = field(default_factory=lambda: deque(maxlen=25))

    # --- counting

    def on_append(self, batch: PutBatch) -> None:
        """Count the messages of a batch by topic (store dispatcher)."""
        if len(self.topics) > len(self._puts):
            self._grow(len(self.topics) * 2)
        if self._count is None:
            self._count = entry(
                count_puts, batch.rows, 0, batch.trusted, self._puts, self.traffic, self.delays
            )
        is_delivery = batch.trusted and not batch.together  # no commit with its op record
        count, size = self._count(
            batch.rows, batch.count, is_delivery, self._puts, self.traffic, self.delays
        )
        self.totals.put_failures += batch.count - count
        self.totals.puts += count
        self.totals.put_bytes += size

    def _grow(self, topics: int) -> None:
        self._puts = _resized(self._puts, topics)
        self.traffic = _resized(self.traffic, topics)
        self.delays = _resized(self.delays, topics)

    def messages_got(self, topic: str, group: str, *, count: int, body: bytes) -> None:
        """Count the messages of one pull."""
        self._tally("GROUP_GET", topic, group, count, len(body))
        self.totals.got_messages += count
        self.totals.pulls_found += 1
        if self.on_pulled is not None:
            self.on_pulled(body, topic, group)

    def got_nothing(self) -> None:
        """Count a pull without messages."""
        self.totals.pulls_missed += 1

    def sent_back(self, topic: str, group: str) -> None:
        """Count one message that a consumer sent back."""
        self._tally("SNDBCK_PUT", topic, group, 1, 0)

    def _tally(self, kind: str, topic: str, group: str, count: int, size: int) -> None:
        key = (kind, topic, group)
        row, tallies = self._rows.get(key), self._tallies
        if row is None:
            row = len(self._rows)
            if row >= KEYS_MAX:
                return
            self._rows[key] = row
            tallies.append()
        tallies.counts[row] += count
        tallies.sizes[row] += size
        tallies.times[row] += 1

    # --- sampling

    def sample(self, now_ms: int) -> None:
        """Copy the counters; call every SAMPLE_MS."""
        sample = _Sample(
            now_ms,
            self._puts.copy(),
            self._tallies.copy(),
            (
                self.totals.puts,
                self.totals.got_messages,
                self.totals.pulls_found,
                self.totals.pulls_missed,
            ),
        )
        self._minute.append(sample)
        for series, period_ms in ((self._hour, HOUR_SAMPLE_MS), (self._day, DAY_SAMPLE_MS)):
            if not series or now_ms - series[-1].at_ms >= period_ms:
                series.append(sample)
        self._roll_day(_local_day(now_ms))

    def _roll_day(self, day: int) -> None:
        """Record the totals at local midnight, unless the clock is set back or this is the start.

        Source: BrokerStats.record, computeNextMorningTimeMillis
        """
        if self._calendar_day and day > self._calendar_day:
            self.puts_at_midnight = (self.puts_at_midnight[1], self.totals.puts)
            self.gots_at_midnight = (self.gots_at_midnight[1], self.totals.got_messages)
        self._calendar_day = max(self._calendar_day, day)

    # --- queries

    def windows(self, name: str, key: str) -> dict[str, Rates] | None:
        """Return minute, hour and day of a statistic; None if it has no samples.

        Args:
            name: Statistic, such as TOPIC_PUT_NUMS or GROUP_GET_SIZE.
            key: Topic, `topic@group` or cluster name.
        """
        read = self._reader(name, key)
        if read is None:
            return None
        series = {"statsDay": self._day, "statsHour": self._hour, "statsMinute": self._minute}
        return {label: _rates(list(samples), read) for label, samples in series.items()}

    def pulled(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield topic, group, and messages and bytes that the group pulled since the start."""
        tallies = self._tallies
        for (kind, topic, group), row in list(self._rows.items()):
            if kind == "GROUP_GET":
                yield topic, group, tallies.counts[row], tallies.sizes[row]

    def tps(self, which: str) -> str:
        """Return messages per second over 10 s, 60 s and up to 10 min, as Apache's "a b c"."""
        columns = {"put": (0,), "transferred": (1,), "found": (2,), "miss": (3,), "total": (2, 3)}
        spans = ((1, self._minute), (6, self._minute), (1, self._hour))
        return " ".join(str(_span(series, steps, columns[which])) for steps, series in spans)

    def group_tps(self, topic: str, group: str) -> float:
        """Return messages per second that a group pulled from a topic in the last minute."""
        windows = self.windows("GROUP_GET_NUMS", f"{topic}@{group}")
        return windows["statsMinute"].tps if windows else 0.0

    def topic_tps(self, topic: str) -> float:
        """Return messages per second put into a topic in the last minute."""
        windows = self.windows("TOPIC_PUT_NUMS", topic)
        return windows["statsMinute"].tps if windows else 0.0

    def _reader(self, name: str, key: str) -> Callable[[_Sample], tuple[int, int]] | None:
        """Return a function that reads (value, additions) of a statistic from a sample."""
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            column = 0 if name == "BROKER_PUT_NUMS" else 1
            return lambda sample: (sample.totals[column], sample.totals[column])
        kind, _, measure = name.rpartition("_")
        if measure not in ("NUMS", "SIZE"):
            return None
        column = 0 if measure == "NUMS" else 1
        if kind == "TOPIC_PUT":
            return self._topic_reader(key, column)
        topic, _, group = key.rpartition("@")
        row = self._rows.get((kind, topic, group))
        if row is None:
            return None
        return lambda sample: sample.tallies.row(row, column)

    def _topic_reader(self, topic: str, column: int) -> Callable[[_Sample], tuple[int, int]] | None:
        index = self.topics.find(topic)
        if index < 0 or index >= len(self._puts) or not self._puts[index, 0]:
            return None

        def read(sample: _Sample) -> tuple[int, int]:
            if index >= len(sample.puts):
                return 0, 0
            return int(sample.puts[index, column]), int(sample.puts[index, 0])

        return read


def _resized(counters: npt.NDArray[np.int64], topics: int) -> npt.NDArray[np.int64]:
    """Return a copy of the counters with room for `topics` topics."""
    grown = np.zeros((topics, *counters.shape[1:]), np.int64)
    grown[: len(counters)] = counters
    return grown


def _local_day(now_ms: int) -> int:
    return datetime.datetime.fromtimestamp(now_ms / 1_000).astimezone().toordinal()


def _rates(samples: list[_Sample], read: Callable[[_Sample], tuple[int, int]]) -> Rates:
    if len(samples) < 2:
        return Rates()
    (first, first_times), (last, last_times) = read(samples[0]), read(samples[-1])
    span_ms = samples[-1].at_ms - samples[0].at_ms
    total, times = last - first, last_times - first_times
    return Rates(
        total,
        total * 1_000 / span_ms if span_ms > 0 else 0.0,
        total / times if times > 0 else 0.0,
    )


def _span(series: deque[_Sample], steps: int, columns: tuple[int, ...]) -> float:
    if len(series) < 2:
        return 0.0
    first, last = series[max(len(series) - 1 - steps, 0)], series[-1]
    span_ms = last.at_ms - first.at_ms
    total = sum(last.totals[column] - first.totals[column] for column in columns)
    return total * 1_000 / span_ms if span_ms > 0 else 0.0
