"""Deliveries in flight of one level, oldest first: a state table.

    RUNNING    in the log; whether it is durable is not known yet
    EXCEPTION  the store refused it for now (disk full); it is sent again, after a pause
    SKIP       it can never be delivered; its quarantine record is still to be written
    SUCCESS    durable; it leaves the table when everything before it has left

A delivery that is in the log is never put a second time, however long the disk takes: a flush
timeout, which Apache answers with a resend and so with a duplicate, leaves it RUNNING here. And a
SKIP is not forgotten but quarantined. Source: ScheduleMessageService.PutResultProcess
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from schedule_service.cursor import Segment

RESEND_STEP_MS = 100
RESEND_PAUSE_MS_MAX = 60_000


class State(Enum):
    """Where a delivery stands."""

    RUNNING = auto()
    EXCEPTION = auto()
    SKIP = auto()
    SUCCESS = auto()


class Event(Enum):
    """What can happen to a delivery."""

    DURABLE = auto()
    REFUSED = auto()
    RESENT = auto()
    ILLEGAL = auto()
    PARKED = auto()


MOVES: dict[tuple[State, Event], State] = {
    (State.RUNNING, Event.DURABLE): State.SUCCESS,
    (State.RUNNING, Event.REFUSED): State.EXCEPTION,
    (State.RUNNING, Event.ILLEGAL): State.SKIP,
    (State.EXCEPTION, Event.RESENT): State.RUNNING,
    (State.EXCEPTION, Event.REFUSED): State.EXCEPTION,
    (State.EXCEPTION, Event.ILLEGAL): State.SKIP,
    (State.SKIP, Event.REFUSED): State.SKIP,
    (State.SKIP, Event.PARKED): State.RUNNING,
}


class IllegalMove(AssertionError):
    """A bug of ours: an event that cannot happen in this state."""


def resend_pause_ms(failures: int) -> int:
    """Return how long to wait before a delivery is tried again after so many failures."""
    return min(failures * RESEND_STEP_MS, RESEND_PAUSE_MS_MAX)


@dataclass(slots=True)
class Flight:
    """Consecutive units of one segment on their way.

    Attributes:
        first: queue offset of the first unit.
        count: units; those before were appended.
        log_end: the log must be durable up to here.
        retry_ms: not before this moment again.
    """

    segment: Segment
    first: int
    count: int
    state: State = State.RUNNING
    log_end: int = 0
    failures: int = 0
    retry_ms: int = 0

    def move(self, event: Event) -> None:
        """Take one step of the state table.

        Raises:
            IllegalMove: The table has no such step.
        """
        try:
            self.state = MOVES[self.state, event]
        except KeyError:
            raise IllegalMove(f"{event.name} in state {self.state.name}") from None

    def refused(self, now_ms: int) -> None:
        """The store did not take it: wait, longer each time."""
        self.move(Event.REFUSED)
        self.failures += 1
        self.retry_ms = now_ms + resend_pause_ms(self.failures)


class PendingTable:
    """The flights of one level, in queue order."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights)

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def records(self) -> int:
        """Messages that are not acknowledged."""
        return sum(flight.count for flight in self._flights)

    @property
    def failing(self) -> Flight | None:
        """The first flight that is not in the log; nothing may overtake it."""
        return next((f for f in self._flights if f.state in (State.EXCEPTION, State.SKIP)), None)

    @property
    def wanted_log_end(self) -> int | None:
        """How far the log must become durable for all running flights, None without any."""
        ends = [f.log_end for f in self._flights if f.state is State.RUNNING]
        return max(ends, default=None)

    def room(self, *, records_max: int, failures_max: int) -> int:
        """Return how many messages may be taken now: flow control and blocking."""
        failing = self.failing
        if failing is not None and failing.failures > failures_max:
            return 0
        return max(records_max - self.records, 0)

    def add(self, flight: Flight) -> None:
        """Append a flight."""
        self._flights.append(flight)

    def split(self, flight: Flight, count: int) -> Flight:
        """Cut a flight after `count` units; return the new flight with the rest."""
        assert 0 < count < flight.count
        rest = Flight(flight.segment, flight.first + count, flight.count - count)
        flight.count = count
        self._flights.insert(self._flights.index(flight) + 1, rest)
        return rest

    def remove(self, flight: Flight) -> None:
        """Forget a flight whose records retention removed."""
        self._flights.remove(flight)

    def acknowledge(self, durable: int) -> None:
        """Settle every running flight whose bytes are durable, and drop settled ones in order."""
        for flight in self._flights:
            if flight.state is State.RUNNING and flight.log_end <= durable:
                flight.move(Event.DURABLE)
        while self._flights and self._flights[0].state is State.SUCCESS:
            self._flights.popleft()
