"""Projection of the ownership journal: owners and counts that its records define.

    records --apply, in order--> Ownership         ranges of each level's queue that timers own
                                 JournalProjection  state, route and counts of each level

Rules (`change_of`): after a `Transfer`, the timers own its range except `excluded`. After a
`Return`, they own no unit of its range; the level owns `pending` again. The last record whose range
includes a unit applies. The journal does not show whether a unit is settled (delivered, cancelled,
in quarantine); origins in the log do.

Each reader has its own `Ownership`, because readers apply the journal at different times (a
checkpoint of the timers is older than the end of the log). No I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Final, Self

from msgspec import Struct, field
from msgspec.structs import replace

from delayed_delivery.ownership import (
    NO_END,
    JournalEntry,
    OwnershipRecord,
    Return,
    Route,
    StateRecord,
    Transfer,
)
from message_store.ranges import Range, joined, minus, plus, within

CHECKSUM_MASK: Final = (1 << 63) - 1


class TransferTally(Struct, frozen=True):
    """Number of messages and their checksum; tallies of disjoint sets can be added."""

    count: int = 0
    sum: int = 0

    def plus(self, other: TransferTally) -> TransferTally:
        """Return the tally of the union with a disjoint set."""
        return TransferTally(self.count + other.count, (self.sum + other.sum) & CHECKSUM_MASK)

    def minus(self, other: TransferTally) -> TransferTally:
        """Return the tally without a subset."""
        return TransferTally(self.count - other.count, (self.sum - other.sum) & CHECKSUM_MASK)


class Change(Struct, frozen=True):
    """Change that a record makes in the queue of its level.

    Attributes:
        first, end: Range of the record.
        to_timers: Ranges that the timers own after it.
        lost: Ranges that the timers no longer own.
        regained: Part of `lost` that the level owns again.
        transferred: Messages that became timers.
        returned: Messages that the level owns again.
        gone: Messages of `lost` that were settled.
    """

    level: int
    first: int
    end: int
    to_timers: list[Range] = field(default_factory=list)
    lost: list[Range] = field(default_factory=list)
    regained: list[Range] = field(default_factory=list)
    transferred: TransferTally = TransferTally()
    returned: TransferTally = TransferTally()
    gone: TransferTally = TransferTally()

    def in_level(self, ranges: list[Range], first: int = 0, end: int = NO_END) -> list[Range]:
        """Return the pending ranges of the level after the change, given the ranges before.

        Args:
            first, end: Bounds of the ranges that the level may own again.
        """
        return plus(minus(ranges, self.to_timers), within(self.regained, first, end))


def change_of(record: OwnershipRecord) -> Change | None:
    """Return the change that a record makes in a queue, None if it changes no owner."""
    if isinstance(record, Transfer):
        return Change(
            record.level,
            record.first,
            record.end,
            to_timers=minus([(record.first, record.end)], record.excluded),
            transferred=TransferTally(record.count, record.checksum),
        )
    if isinstance(record, Return):
        return Change(
            record.level,
            record.first,
            record.end,
            lost=joined([(record.first, record.end)]),
            regained=list(record.pending),
            returned=TransferTally(record.count, record.checksum),
            gone=TransferTally(record.gone, record.gone_sum),
        )
    return None


def changes_of(journal: Iterable[JournalEntry], level: int) -> list[Change]:
    """Return the changes of one level, in order."""
    changes = (change_of(entry.record) for entry in journal if entry.record.level == level)
    return [change for change in changes if change is not None]


Piece = tuple[int, int, int]  # first, end, queue offset of the transfer's record in the journal


class Ownership:
    """Ranges of the levels' queues that belong to the timers.

    Attributes:
        pieces: Level to its pieces, ascending and disjoint.
        promised: Level to due times of units whose tags code is not a time, by queue offset.
        next_offset: Queue offset of the next record to apply.
    """

    def __init__(self) -> None:
        self.pieces: dict[int, list[Piece]] = {}
        self.promised: dict[int, dict[int, int]] = {}
        self.next_offset = 0

    def __bool__(self) -> bool:
        return any(self.pieces.values())

    def apply(self, entry: JournalEntry) -> Change | None:
        """Apply the next record; a record before `next_offset` changes nothing.

        Returns:
            Change made by the record, None if it changed no owner.
        """
        if entry.queue_offset < self.next_offset:
            return None
        self.next_offset = entry.queue_offset + 1
        change = change_of(entry.record)
        if change is None:
            return None
        self._remove(change.level, change.lost)
        self.add(change.level, change.to_timers, entry.queue_offset)
        if isinstance(entry.record, Transfer) and entry.record.promised:
            self.promised.setdefault(change.level, {}).update(entry.record.promised)
        return change

    def add(self, level: int, ranges: list[Range], queue_offset: int) -> None:
        """Add ranges that the timers own by the record at a queue offset of the journal."""
        if not ranges:
            return
        self._remove(level, ranges)
        pieces = self.pieces.setdefault(level, [])
        is_ascending = not pieces or pieces[-1][1] <= ranges[0][0]
        pieces += [(first, end, queue_offset) for first, end in ranges]
        if not is_ascending:
            pieces.sort()

    def remove(self, level: int, first: int, end: int) -> None:
        """Remove a range that the timers own, without a record."""
        self._remove(level, [(first, end)])

    def _remove(self, level: int, ranges: list[Range]) -> None:
        left = self.pieces.get(level, [])
        if not left or not ranges:
            return
        low, high = _span(left, ranges[0][0], ranges[-1][1])
        left[low:high] = [
            (first_left, end_left, position)
            for first, end, position in left[low:high]
            for first_left, end_left in minus([(first, end)], ranges)
        ]

    def ranges(self, level: int, first: int = 0, end: int = NO_END) -> list[Range]:
        """Return the ranges of first..end that the timers own; adjacent ranges are joined."""
        pieces = self.pieces.get(level, [])
        low, high = _span(pieces, first, end)
        return within(joined(owned[:2] for owned in pieces[low:high]), first, end)

    def bounds(self, level: int) -> Range | None:
        """Return the smallest range that covers all ranges of a level, None without any."""
        pieces = self.pieces.get(level)
        return (pieces[0][0], pieces[-1][1]) if pieces else None

    def ranges_of(self, entry: JournalEntry) -> list[Range]:
        """Return the ranges that the timers own by one transfer."""
        record = entry.record
        assert isinstance(record, Transfer)
        pieces = self.pieces.get(record.level, [])
        low, high = _span(pieces, record.first, record.end)
        owned = [
            (first, end)
            for first, end, position in pieces[low:high]
            if position == entry.queue_offset
        ]
        return within(owned, record.first, record.end)

    def owns(self, level: int, offset: int) -> bool:
        """Return whether the timers own a unit."""
        low, high = _span(self.pieces.get(level, []), offset, offset + 1)
        return low < high

    def copy(self) -> Self:
        """Return an independent copy."""
        twin = type(self)()
        twin.pieces = {level: list(pieces) for level, pieces in self.pieces.items()}
        twin.promised = {level: dict(times) for level, times in self.promised.items()}
        twin.next_offset = self.next_offset
        return twin


def _span(pieces: list[Piece], first: int, end: int) -> Range:
    """Return (low, high): pieces[low:high] of ascending, disjoint pieces overlap first..end."""
    low = bisect_right(pieces, first, key=lambda owned: owned[1])
    return low, max(low, bisect_left(pieces, end, key=lambda owned: owned[0]))


class LevelProjection(Struct, frozen=True, kw_only=True):
    """State, route and counts of one level, from the records of its newest migration.

    Attributes:
        migration: Newest migration of the level.
        state: Target of its newest state record, empty without one.
        operator, why, changed_ms: Fields of that record.
        routed: Whether new messages become timers; fence, timer_fence, rules: see `Route`.
        transferred: Number of messages that became timers.
        returned: Number of messages that the level owns again.
        gone: Number of messages that were settled before their range was returned.
        transferred_sum, returned_sum, gone_sum: Checksums of these messages.
        first, end: Queue offsets of the range that was transferred up to now.
    """

    level: int
    migration: str = ""
    state: str = ""
    operator: str = ""
    why: str = ""
    changed_ms: int = 0
    routed: bool = False
    fence: int = 0
    timer_fence: int = 0
    rules: Mapping[str, int] = field(default_factory=dict)
    transferred: int = 0
    transferred_sum: int = 0
    returned: int = 0
    returned_sum: int = 0
    gone: int = 0
    gone_sum: int = 0
    first: int = 0
    end: int = 0

    @property
    def transferred_tally(self) -> TransferTally:
        """Messages that became timers."""
        return TransferTally(self.transferred, self.transferred_sum)

    @property
    def returned_tally(self) -> TransferTally:
        """Messages that the level owns again."""
        return TransferTally(self.returned, self.returned_sum)

    @property
    def gone_tally(self) -> TransferTally:
        """Messages that were settled before their range was returned."""
        return TransferTally(self.gone, self.gone_sum)

    def after(self, entry: JournalEntry) -> LevelProjection:
        """Return the level after one more record; the counts of a new migration begin at 0."""
        record, before = entry.record, self
        if record.migration != self.migration:
            before = LevelProjection(
                level=self.level,
                migration=record.migration,
                routed=self.routed,
                fence=self.fence,
                timer_fence=self.timer_fence,
                rules=self.rules,
            )
        if isinstance(record, StateRecord):
            return replace(
                before,
                state=record.target,
                operator=record.operator,
                why=record.why,
                changed_ms=entry.store_ms,
            )
        if isinstance(record, Route):
            return replace(
                before,
                routed=record.on,
                fence=record.fence,
                timer_fence=record.timer_fence,
                rules=dict(record.rules),
            )
        change = change_of(record)
        assert change is not None
        transferred = before.transferred_tally.plus(change.transferred)
        returned = before.returned_tally.plus(change.returned)
        gone = before.gone_tally.plus(change.gone)
        counted = replace(
            before,
            transferred=transferred.count,
            transferred_sum=transferred.sum,
            returned=returned.count,
            returned_sum=returned.sum,
            gone=gone.count,
            gone_sum=gone.sum,
        )
        if not isinstance(record, Transfer):
            return counted
        first = min(before.first, record.first) if before.transferred else record.first
        return replace(counted, first=first, end=max(before.end, record.end))


class JournalProjection(Struct, frozen=True):
    """State, route and counts of all levels.

    Attributes:
        next_offset: Queue offset of the next record to apply.
        log_offset: Log offset up to which the log must exist for this projection to be valid.
    """

    levels: Mapping[int, LevelProjection] = field(default_factory=dict)
    next_offset: int = 0
    log_offset: int = 0

    def after(self, entry: JournalEntry) -> JournalProjection:
        """Return the projection after one more record; a record applied before changes nothing."""
        if entry.queue_offset < self.next_offset:
            return self
        level = entry.record.level
        before = self.levels.get(level, LevelProjection(level=level))
        levels = {**self.levels, level: before.after(entry)}
        return JournalProjection(levels, entry.queue_offset + 1, entry.phys_offset + 1)
