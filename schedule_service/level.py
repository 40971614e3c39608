"""State of one level: cursor, deliveries in flight, statistics, next attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from schedule_service.config import ScheduleConfig
from schedule_service.cursor import NEVER_MS, LevelCursor
from schedule_service.in_flight import InFlightTable
from schedule_service.stats import LevelStats

READ_UNITS_MIN: Final = 64


@dataclass(slots=True)
class Level:
    """State of one level.

    Attributes:
        paused_until_ms: Earliest time of the next new delivery.
        read_units: Units to read for the next batch.
    """

    level: int
    cursor: LevelCursor
    in_flight: InFlightTable = field(default_factory=InFlightTable)
    stats: LevelStats = field(default_factory=LevelStats)
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
