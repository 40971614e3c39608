"""State of one level: cursor, deliveries in flight, statistics, next attempt.

Deliveries in flight, oldest first:

    RUNNING    in the log, not known to be durable
    EXCEPTION  refused by the store for now (disk full); tried again after a pause
    SKIP       undeliverable; its quarantine record is not written yet
    SUCCESS    durable; removed when all deliveries before it are durable

A delivery that is in the log is never appended again, however long the sync takes. After a flush
timeout, an Apache broker appends it again, which makes a duplicate; here it stays RUNNING. An
Apache broker drops a SKIP; here its message goes to quarantine.

Source: ScheduleMessageService.PutResultProcess
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, Self

from msgspec import Struct, field

from delayed_delivery.outcome import DeliveryStats
from schedule_service.config import ScheduleConfig
from schedule_service.cursor import NEVER_MS, LevelCursor, Segment

READ_UNITS_MIN: Final = 64
RESEND_STEP_MS = 100
RESEND_PAUSE_MS_MAX = 60_000


class State(Enum):
    """State of a delivery."""

    RUNNING = auto()
    EXCEPTION = auto()
    SKIP = auto()
    SUCCESS = auto()


class Event(Enum):
    """Event that changes the state of a delivery."""

    DURABLE = auto()
    REFUSED = auto()
    RESENT = auto()
    ILLEGAL = auto()
    QUARANTINED = auto()


MOVES: dict[tuple[State, Event], State] = {
    (State.RUNNING, Event.DURABLE): State.SUCCESS,
    (State.RUNNING, Event.REFUSED): State.EXCEPTION,
    (State.RUNNING, Event.ILLEGAL): State.SKIP,
    (State.EXCEPTION, Event.RESENT): State.RUNNING,
    (State.EXCEPTION, Event.REFUSED): State.EXCEPTION,
    (State.EXCEPTION, Event.ILLEGAL): State.SKIP,
    (State.SKIP, Event.REFUSED): State.SKIP,
    (State.SKIP, Event.QUARANTINED): State.RUNNING,
}


def resend_pause_ms(failures: int) -> int:
    """Return the pause before the next attempt after a number of failures."""
    return min(failures * RESEND_STEP_MS, RESEND_PAUSE_MS_MAX)


class InFlight(Struct):
    """Consecutive units of one segment that were submitted for delivery.

    Attributes:
        first: Queue offset of the first unit.
        count: Number of units; earlier units are appended.
        log_end: Log offset up to which the log must be durable.
        retry_ms: Earliest time of the next attempt.
    """

    segment: Segment
    first: int
    count: int
    state: State = State.RUNNING
    log_end: int = 0
    failures: int = 0
    retry_ms: int = 0

    def move(self, event: Event) -> None:
        """Apply an event; an event that the state table does not allow is a bug."""
        assert (self.state, event) in MOVES, f"{event.name} in state {self.state.name}"
        self.state = MOVES[self.state, event]

    def refused(self, now_ms: int) -> None:
        """Schedule the next attempt after a refusal; the pauses grow."""
        self.move(Event.REFUSED)
        self.failures += 1
        self.retry_ms = now_ms + resend_pause_ms(self.failures)


class InFlightTable:
    """Deliveries in flight of one level, in queue order."""

    def __init__(self) -> None:
        self._deliveries: deque[InFlight] = deque()

    def __iter__(self) -> Iterator[InFlight]:
        return iter(self._deliveries)

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def records(self) -> int:
        """Number of messages that are not acknowledged."""
        return sum(delivery.count for delivery in self._deliveries)

    @property
    def failing(self) -> InFlight | None:
        """First delivery that is not in the log; later units must not be appended before it."""
        failed = (State.EXCEPTION, State.SKIP)
        return next((item for item in self._deliveries if item.state in failed), None)

    @property
    def log_end(self) -> int | None:
        """Log offset up to which the log must be durable for all running deliveries."""
        ends = [item.log_end for item in self._deliveries if item.state is State.RUNNING]
        return max(ends, default=None)

    def room(self, *, records_max: int, failures_max: int) -> int:
        """Return the number of messages that may be submitted now, by flow control and blocking."""
        failing = self.failing
        if failing is not None and failing.failures > failures_max:
            return 0
        return max(records_max - self.records, 0)

    def add(self, delivery: InFlight) -> None:
        """Add a delivery at the end."""
        self._deliveries.append(delivery)

    def split(self, delivery: InFlight, count: int) -> InFlight:
        """Divide a delivery after `count` units; return the second part as a new delivery."""
        assert 0 < count < delivery.count
        rest = InFlight(delivery.segment, delivery.first + count, delivery.count - count)
        delivery.count = count
        self._deliveries.insert(self._deliveries.index(delivery) + 1, rest)
        return rest

    def remove(self, delivery: InFlight) -> None:
        """Remove a delivery whose records retention removed."""
        self._deliveries.remove(delivery)

    def acknowledge(self, durable: int) -> None:
        """Acknowledge every running delivery that is durable; remove acknowledged ones in order."""
        for item in self._deliveries:
            if item.state is State.RUNNING and item.log_end <= durable:
                item.move(Event.DURABLE)
        while self._deliveries and self._deliveries[0].state is State.SUCCESS:
            self._deliveries.popleft()


class Level(Struct):
    """State of one level.

    Attributes:
        paused_until_ms: Earliest time of the next new delivery.
        read_units: Units to read for the next batch.
    """

    level: int
    cursor: LevelCursor
    in_flight: InFlightTable = field(default_factory=InFlightTable)
    stats: DeliveryStats = field(default_factory=DeliveryStats)
    paused_until_ms: int = 0
    read_units: int = READ_UNITS_MIN

    @classmethod
    def empty(cls, level: int) -> Self:
        """Return an unused level."""
        return cls(level, LevelCursor(level))

    def room(self, config: ScheduleConfig) -> int:
        """Return the number of messages that may be submitted now."""
        if not config.async_deliver:
            return 0 if len(self.in_flight) else config.batch_records_max
        return self.in_flight.room(
            records_max=config.async_pending_max, failures_max=config.async_resends_max
        )

    def end_pauses(self) -> None:
        """Allow the next attempt of refused deliveries at once."""
        self.paused_until_ms = 0
        if self.in_flight.failing is not None:
            self.in_flight.failing.retry_ms = 0

    def next_work_ms(self, config: ScheduleConfig) -> int:
        """Return the time at which the next delivery or retry of this level is possible."""
        failing = self.in_flight.failing
        again = NEVER_MS if failing is None else failing.retry_ms
        fresh = (
            max(self.cursor.next_due_ms, self.paused_until_ms) if self.room(config) else NEVER_MS
        )
        return min(again, fresh)
