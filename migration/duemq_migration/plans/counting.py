"""Exact counts of a plan, in bounded pieces, read-only.

    level's queue --units, due times--> count, bytes, first and last due, overdue
    commit log    --records----------->  unreadable records

Other work runs between two pieces. Messages that are delivered or sent during the count may or may
not be included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
from msgspec import Struct, field

from delayed_delivery.pending import Offsets
from duemq_migration.ledger.projection import UNIT_BYTES
from duemq_migration.ownership.owners import Owners
from duemq_migration.plans.plan import Obstacle, ObstacleKind, Plan, PlannedLevel
from message_store.layout import Rows
from message_store.ranges import is_among

PIECE_UNITS: Final = 4_096
RATE_PER_S: Final = 1_000_000
"""Estimated rate of draining without throttle."""


class LevelCount(Struct):
    """Counts of one level so far."""

    level: int
    pending: int = 0
    pending_bytes: int = 0
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    overdue: int = 0
    soon: int = 0
    unreadable: int = 0
    fixed: int = 0
    far: int = 0
    near_retention: int = 0

    def add(
        self, units: Rows, due_ms: Offsets, *, now_ms: int, soon_ms: int, far_ms: int, expired: int
    ) -> None:
        """Count (n,) pending units."""
        if not units.size:
            return
        self.pending += int(units.size)
        self.pending_bytes += int(units["size"].sum(dtype=np.int64))
        low, high = int(due_ms.min()), int(due_ms.max())
        self.first_due_ms = low if self.first_due_ms is None else min(self.first_due_ms, low)
        self.last_due_ms = high if self.last_due_ms is None else max(self.last_due_ms, high)
        self.overdue += int(np.count_nonzero(due_ms <= now_ms))
        self.soon += int(np.count_nonzero((due_ms > now_ms) & (due_ms <= soon_ms)))
        self.far += int(np.count_nonzero(due_ms >= far_ms))
        self.near_retention += int(np.count_nonzero(units["phys_offset"] < expired))

    def planned(self, delay_ms: int, rate_per_s: int) -> PlannedLevel:
        """Return the part of the plan for this level."""
        return PlannedLevel(
            level=self.level,
            delay_ms=delay_ms,
            pending=self.pending,
            pending_bytes=self.pending_bytes,
            first_due_ms=self.first_due_ms,
            last_due_ms=self.last_due_ms,
            overdue=self.overdue,
            unit_bytes=self.pending * UNIT_BYTES,
            estimate_ms=-(-self.pending * 1_000 // rate_per_s),
        )


class PlanCount(Struct):
    """Count of some levels of a store.

    Args:
        rate_per_s: Rate that the throttle allows, 0: no limit.
    Attributes:
        counts: Counts by level.
    """

    owners: Owners
    levels: Iterable[int]
    now_ms: int
    rate_per_s: int = 0
    counts: dict[int, LevelCount] = field(default_factory=dict)

    @property
    def _rate(self) -> int:
        return min(self.rate_per_s or RATE_PER_S, RATE_PER_S)

    def pieces(self, units_max: Callable[[], int] = lambda: PIECE_UNITS) -> Iterator[int]:
        """Count piece by piece; yield the number of units of each, at most `units_max()`."""
        expired = int(self.owners.store.retention.expired_files().until)
        timers = self.owners.timers
        far_ms = timers.position.staged_ms + timers.config.window_ms
        for level in self.levels:
            counted = self.counts[level] = LevelCount(level)
            source_level = self.owners.levels.levels.get(level)
            if source_level is None:
                continue
            soon_ms = self.now_ms + source_level.cursor.pending * 1_000 // self._rate
            settled = np.array(sorted(source_level.cursor.settled), np.int64)
            for first, end in [
                (s.appended, s.end) for s in source_level.cursor.segments if s.pending
            ]:
                while first < end:
                    units = self.owners.queues.units(level, first, min(units_max(), end - first))
                    if not units.size:
                        break
                    pending = ~is_among(np.arange(first, first + units.size), settled)
                    due_ms = self.owners.queues.due_ms(level, units)
                    counted.add(
                        units[pending],
                        due_ms[pending],
                        now_ms=self.now_ms,
                        soon_ms=soon_ms,
                        far_ms=far_ms,
                        expired=expired,
                    )
                    self._read(counted, first, first + int(units.size))
                    first += int(units.size)
                    yield int(units.size)

    def _read(self, counted: LevelCount, first: int, end: int) -> None:
        """Count the properties of the records themselves."""
        records = self.owners.timers.transfers.records
        before = records.fixed
        rows, _ = records.read(counted.level, first, end, {})
        counted.unreadable += int(np.count_nonzero(rows["topic_index"] < 0))
        counted.fixed += records.fixed - before

    def plan(self, *, plan_id: str, store_id: str, made_by: str) -> Plan:
        """Return the plan with the counts."""
        delays = self.owners.delays_ms
        levels = [item.planned(delays[n], self._rate) for n, item in self.counts.items()]
        needed = sum(level.unit_bytes for level in levels)
        obstacles = [one for item in self.counts.values() for one in _obstacles(item)]
        room = self.owners.store.retention.room
        if needed > room:
            text = f"{needed:,} bytes of timer units, room for {max(room, 0):,}: free disk space"
            obstacles.append(Obstacle(kind=ObstacleKind.NO_ROOM, text=text, blocks=True))
        return Plan(
            plan_id=plan_id,
            store_id=store_id,
            made_ms=self.now_ms,
            made_by=made_by,
            log_end=self.owners.store.max_offset,
            levels=levels,
            obstacles=obstacles,
        )


def _obstacles(item: LevelCount) -> Iterator[Obstacle]:
    counted_obstacles = (
        (
            ObstacleKind.DUE_WHILE_RUNNING,
            item.soon,
            "become due while it runs: the level delivers them",
        ),
        (ObstacleKind.UNREADABLE, item.unreadable, "cannot be read: they go to quarantine"),
        (
            ObstacleKind.BEYOND_WINDOW,
            item.far,
            "are due beyond the roll window (timerRollWindowSlot): they stay with their level "
            "until they are within it, so the level drains until then",
        ),
        (
            ObstacleKind.HAS_CRC,
            item.fixed,
            "have a checksum of their properties, or no single level: their records stay as they "
            "are. DueMQ delivers them like all others; an Apache broker that opens the store would "
            "delay them once more",
        ),
        (
            ObstacleKind.NEAR_RETENTION,
            item.near_retention,
            "are in commit log files that have expired: these are kept until the timers are due",
        ),
    )
    for kind, count, text in counted_obstacles:
        if count:
            yield Obstacle(kind=kind, level=item.level, count=count, text=f"{count:,} {text}")
