"""State of one level: cursor, deliveries in flight, statistics, next attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from schedule_service.config import ScheduleConfig
from schedule_service.cursor import NEVER_MS, LevelCursor
from schedule_service.pending import PendingTable
from schedule_service.stats import LevelStats

READ_UNITS_MIN: Final = 64


@dataclass(slots=True)
class Level:
    """One level at work."""

    level: int
    cursor: LevelCursor
    table: PendingTable = field(default_factory=PendingTable)
    stats: LevelStats = field(default_factory=LevelStats)
    hold_ms: int = 0  # no new deliveries before this moment
    read_units: int = READ_UNITS_MIN

    @classmethod
    def empty(cls, level: int) -> Self:
        """Return an unused level."""
        return cls(level, LevelCursor(level))

    def room(self, config: ScheduleConfig) -> int:
        """Return how many messages may be taken now."""
        if not config.async_deliver:
            return 0 if len(self.table) else config.batch_records_max
        return self.table.room(
            records_max=config.async_pending_max, failures_max=config.async_resends_max
        )

    def pause_no_more(self) -> None:
        """Try again at once what was refused."""
        self.hold_ms = 0
        if self.table.failing is not None:
            self.table.failing.retry_ms = 0

    def moment_ms(self, config: ScheduleConfig) -> int:
        """Return the first moment at which something can be done for this level."""
        failing = self.table.failing
        again = NEVER_MS if failing is None else failing.retry_ms
        fresh = max(self.cursor.next_due_ms, self.hold_ms) if self.room(config) else NEVER_MS
        return min(again, fresh)
