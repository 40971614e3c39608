"""Verification of a level: counts and checksums of both owners must agree.

    transferred (journal)  -  returned, or settled when its range was returned (journal)
        =  pending timers  +  settled since (origins in the log)

Both sides are counted and summed by checksums (`duemq_migration.ownership.checksum`).

Retention removes settled messages from the start of the level's queue, and ownership records much
later. Therefore the comparison begins after the last record whose range contains removed messages;
before that, each remaining message must be pending or settled. No stored totals are needed:

    queue   [ removed ][ each pending or settled ][ as in the journal ................. ]
                     low      the last record across `low` ends here: border

The verification reads the level's queue once and the commit log from the first settled message on,
in bounded pieces, and changes nothing. Other work runs between two pieces: each message is looked
up once among the pending ones, and the log is read after that, so a message that is delivered in
between is counted once. No message of the level may be transferred or returned during the count; if
retention removes files during it, the count begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from delayed_delivery import ownership
from delayed_delivery.ownership_projection import Change, LevelProjection, TransferTally, changes_of
from duemq_common.topics import SCHEDULE_TOPIC
from duemq_migration.ownership.checksum import tally_of
from message_store.layout import PRE_BLANK_SIZE, Rows
from message_store.ranges import Range, is_among, is_in
from message_store.store import MessageStore
from schedule_service.delivery import LevelService
from schedule_service.level import Level
from timer_store.store import TimerStore

PIECE_UNITS = 4_096
PIECE_RECORDS = 16
Offsets = npt.NDArray[np.int64]
NotPending = list[tuple[Offsets, Offsets]]  # log offsets and due times, a pair for each piece
_R = TypeVar("_R")
Counting = Generator[int, None, _R]  # number of units of each piece


class Verified(Struct, frozen=True):
    """Result of the verification of one level.

    Attributes:
        level_pending: Pending messages of the level.
        timers_pending: Pending timers transferred from the level.
        settled: Transferred messages delivered, cancelled, moved or quarantined since, whose
            records are still in the log.
        expected: Messages that must be pending timers or settled, by the journal.
        transferred, returned, gone: Totals of all ownership records of this migration; `gone`:
            messages that were settled when their range was returned.
    """

    level: int
    level_pending: TransferTally
    timers_pending: TransferTally
    settled: TransferTally
    expected: TransferTally
    transferred: TransferTally
    returned: TransferTally
    gone: TransferTally

    @property
    def actual(self) -> TransferTally:
        """Messages that are pending timers or settled."""
        return self.timers_pending.plus(self.settled)

    @property
    def is_right(self) -> bool:
        """Whether both owners agree."""
        return self.expected == self.actual

    @property
    def removed(self) -> int:
        """Lower bound of the settled messages whose records retention has removed."""
        rest = self.transferred.minus(self.returned).minus(self.gone)
        return max(rest.count - self.expected.count, 0)


class Verification:
    """Count of one level in bounded pieces.

    Args: see `duemq_migration.steps.drain.Drain`.
    """

    def __init__(
        self,
        levels: LevelService,
        timers: TimerStore,
        store: MessageStore,
        level: int,
        journal: LevelProjection,
    ) -> None:
        self._levels, self._timers, self._store = levels, timers, store
        self._level, self._journal = level, journal
        self._units_max: Callable[[], int]
        self.result: Verified | None = None

    def pieces(self, units_max: Callable[[], int] = lambda: PIECE_UNITS) -> Iterator[int]:
        """Count piece by piece; yield the number of units of each, at most `units_max()`.

        `result` has the counts afterwards.
        """
        self._units_max, low = units_max, -1
        while low != self._low():
            low = self._low()
            yield from self._count(low)

    def _low(self) -> int:
        return int(self._timers.transfers.records.bounds(self._level)[0])

    def _count(self, low: int) -> Iterator[int]:
        at_level = yield from self._count_level()
        changes = yield from self._changes()
        border = border_of(low, changes)
        expected = TransferTally()
        for change in changes:
            if change.first >= border:
                expected = (
                    expected.plus(change.transferred).minus(change.returned).minus(change.gone)
                )
        pending, before, not_pending = yield from self._count_timers(border)
        settled = yield from self._settled(not_pending)
        journal = self._journal
        self.result = Verified(
            self._level,
            at_level,
            pending,
            settled,
            expected.plus(before),
            journal.transferred_tally,
            journal.returned_tally,
            journal.gone_tally,
        )

    def _count_level(self) -> Counting[TransferTally]:
        at_level = TransferTally()
        cursor = self._levels.levels.get(self._level, Level.empty(self._level)).cursor
        ranges = [(s.appended, s.end) for s in cursor.segments if s.pending]
        settled = np.array(sorted(cursor.settled), np.int64)
        for numbers, units, due_ms in self._units(ranges):
            kept = ~is_among(numbers, settled)
            at_level = at_level.plus(tally_of(units["phys_offset"][kept], due_ms[kept]))
            yield int(units.size)
        return at_level

    def _changes(self) -> Counting[list[Change]]:
        """Return the changes of this level in the retained journal."""
        changes: list[Change] = []
        for number, entry in enumerate(ownership.read(self._store, quiet=True)):
            changes += changes_of([entry], self._level)
            if number % PIECE_RECORDS == 0:
                yield 0
        return changes

    def _count_timers(
        self, border: int
    ) -> Counting[tuple[TransferTally, TransferTally, NotPending]]:
        """Return (pending timers, all before `border`, those that are not pending)."""
        pending, before = TransferTally(), TransferTally()
        not_pending: NotPending = []
        transfers = self._timers.transfers
        for low, high in transfers.owned.ranges(self._level):
            first = max(low, self._low())
            while first < high:
                end = min(first + self._units_max(), high)
                rows, _ = transfers.owned_rows(self._level, first, end)
                rows = rows[self._timers.decisions.is_pending(rows)]
                pending = pending.plus(tally_of(rows["phys_offset"], rows["due_ms"]))
                for numbers, units, due_ms in self._units([(first, end)]):
                    phys_offset = units["phys_offset"].copy()
                    old = numbers < border
                    before = before.plus(tally_of(phys_offset[old], due_ms[old]))
                    left = ~is_in(phys_offset, rows["phys_offset"])
                    not_pending.append((phys_offset[left], due_ms[left]))
                yield end - first
                first = end
        return pending, before, not_pending

    def _settled(self, not_pending: NotPending) -> Counting[TransferTally]:
        """Return the tally of messages that later records name as their origin."""
        phys_offset = np.concatenate([np.empty(0, np.int64), *(part for part, _ in not_pending)])
        due_ms = np.concatenate([np.empty(0, np.int64), *(part for _, part in not_pending)])
        if not phys_offset.size:
            return TransferTally()
        order = np.argsort(phys_offset, kind="stable")
        phys_offset, due_ms = phys_offset[order], due_ms[order]
        done = np.zeros(phys_offset.size, np.bool_)
        position, end = int(phys_offset[0]), self._store.max_offset
        while position < end:
            low, count = max(position, self._store.min_offset), max(self._units_max(), 1)
            rows = next(self._store.scan(low, end, count=count), None)
            if rows is None:
                break
            prepared = rows["prepared_offset"]
            origins = -(prepared[prepared < 0] + 1)
            places = np.minimum(np.searchsorted(phys_offset, origins), phys_offset.size - 1)
            done[places[phys_offset[places] == origins]] = True
            position = int(rows["phys_offset"][-1]) + int(rows["record_size"][-1])
            yield int(rows.size)
        return tally_of(phys_offset[done], due_ms[done])

    def _units(self, ranges: list[Range]) -> Iterator[tuple[Offsets, Rows, Offsets]]:
        """Yield (queue offsets, units, due times) of messages in ranges of the level's queue."""
        promised = self._timers.transfers.owned.promised.get(self._level, {})
        for low, high in ranges:
            first = low
            while first < high:
                count = min(self._units_max(), high - first)
                units = self._store.units(SCHEDULE_TOPIC, self._level - 1, first, count)
                if not units.size:
                    break
                due_ms = units["tags_code"].copy()
                for position, time_ms in promised.items():
                    if first <= position < first + units.size:
                        due_ms[position - first] = time_ms
                messages = units["size"] != PRE_BLANK_SIZE
                yield (
                    np.arange(first, first + units.size)[messages],
                    units[messages],
                    due_ms[messages],
                )
                first += int(units.size)


def border_of(low: int, changes: list[Change]) -> int:
    """Return the first queue offset from `low` on that is outside the ranges of all records."""
    border, following = low, -1
    while border != following:
        following = border
        border = max(
            [border, *(change.end for change in changes if change.first < border < change.end)]
        )
    return border
