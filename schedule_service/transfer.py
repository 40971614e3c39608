"""Transfers of level messages to timers and back, as the ownership journal records them.

    offer            return the first units of a level, if none of them is in flight
    apply_transfer   apply a transfer record: the cursor advances past its units
    apply_return     apply a return record: the cursor reopens its units, with unchanged due times

Apache's offset of a level (`offsetTable`) does not advance past a transfer before a checkpoint of
the timers includes it (`on_checkpoint`): an Apache broker that opens the store after a kill may
deliver some messages twice, but loses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.ownership import RANGES_MAX, JournalEntry, Return, Transfer
from delayed_delivery.ownership_projection import Ownership
from message_store.ranges import Range, within
from schedule_service.cursor import NEVER_MS, Cut, Segment, find_cuts
from schedule_service.queues import LONGEST_HASH, ScheduleQueues

if TYPE_CHECKING:
    from schedule_service.level import Level

Units = npt.NDArray[np.void]
READ_UNITS = 65_536


class TransferableUnits(NamedTuple):
    """First units of a level that can be transferred now.

    Attributes:
        first, end: Queue offsets.
        excluded: Settled ranges between them.
        units: (end - first,) `layout.UNIT`; due_ms: (end - first,) i8.
        promised: Due times of units whose tags code is not a time, by queue offset.
    """

    first: int
    end: int
    excluded: list[Range]
    units: Units
    due_ms: npt.NDArray[np.int64]
    promised: Mapping[int, int]


class LevelTransfers:
    """Transfers and returns of one level service. Belongs to the event loop's thread.

    Attributes:
        owned: Messages that the timers own by the ownership journal.
    """

    def __init__(
        self, levels: dict[int, Level], queues: ScheduleQueues, wake: Callable[[], None]
    ) -> None:
        self._levels, self._queues, self._wake = levels, queues, wake
        self.owned = Ownership()
        self._uncovered: dict[int, list[tuple[int, int]]] = {}  # level: (record, first offset)

    def restore(self, journal: Iterable[JournalEntry], offsets: Mapping[int, int]) -> None:
        """Apply the retained journal; `offsets`: Apache's offsets as recovery found them."""
        for step in journal:
            self.owned.apply(step)
            if isinstance(step.record, Transfer):
                first = offsets.get(step.record.level, step.record.first)
                self._uncovered[step.record.level] = [(step.queue_offset, first)]

    @property
    def floors(self) -> dict[int, int]:
        """Level to the current maximum of Apache's queue offset."""
        return {n: min(first for _, first in rest) for n, rest in self._uncovered.items() if rest}

    def on_checkpoint(self, record_end: int) -> None:
        """Record that a checkpoint of the timers includes every transfer before a queue offset.

        Args:
            record_end: Queue offset in the ownership journal.
        """
        for level, rest in self._uncovered.items():
            self._uncovered[level] = [item for item in rest if item[0] >= record_end]

    # -- to the timers ------------------------------------------------------------------------

    def offer(self, level: int, count_max: int) -> TransferableUnits | None:
        """Return the first units of a level if they can be transferred now, else None.

        `excluded` and `promised` have at most `RANGES_MAX` entries each.
        """
        segment = self._front(level)
        if segment is None:
            return None
        first = segment.appended
        # The timers cannot compare the due time of a level message with its record.
        units = self._queues.compared_units(level, first, min(count_max, segment.end - first))
        if not units.size:
            return None
        due_ms = self._queues.due_ms(level, units)
        codes = units["tags_code"]
        untimed = np.flatnonzero((codes < LONGEST_HASH) & (codes >= -LONGEST_HASH))
        count = int(untimed[RANGES_MAX]) if untimed.size > RANGES_MAX else int(units.size)
        excluded = within(self._levels[level].cursor.settled_ranges(), first, first + count)
        if len(excluded) > RANGES_MAX:
            count = excluded[RANGES_MAX][0] - first
            excluded = excluded[:RANGES_MAX]
        promised = {
            first + index: int(due_ms[index]) for index in untimed.tolist() if index < count
        }
        return TransferableUnits(
            first, first + count, excluded, units[:count], due_ms[:count], promised
        )

    def _front(self, level: int) -> Segment | None:
        """Return the first segment with pending units, None while units are in flight."""
        level_state = self._levels.get(level)
        if level_state is None:
            return None
        segment = next((s for s in level_state.cursor.segments if s.pending), None)
        return segment if segment is not None and segment.appended == segment.submitted else None

    def apply_transfer(self, entry: JournalEntry) -> None:
        """Apply a transfer record: advance past units that `offer` returned in this turn."""
        record = entry.record
        assert isinstance(record, Transfer)
        segment = self._front(record.level)
        assert segment is not None
        assert segment.appended == record.first
        next_due_ms = NEVER_MS
        if record.end < segment.end:
            units = self._queues.units(record.level, record.end, 1)
            next_due_ms = int(self._queues.due_ms(record.level, units)[0]) if units.size else 0
        self._levels[record.level].cursor.pass_transferred(segment, record.end, next_due_ms)
        self.owned.apply(entry)
        self._uncovered.setdefault(record.level, []).append((entry.queue_offset, record.first))

    # -- back to the level --------------------------------------------------------------------

    def is_ready(self, level: int) -> bool:
        """Return whether units can be returned to a level now: none of them is in flight."""
        level_state = self._levels.get(level)
        return level_state is not None and level_state.cursor.all_appended

    def apply_return(self, entry: JournalEntry) -> None:
        """Apply a return record: make its ranges pending in the level again."""
        record = entry.record
        assert isinstance(record, Return)
        cursor = self._levels[record.level].cursor
        for first, end in reversed(record.pending):
            cuts, heads = self._cuts(record.level, first, end)
            cursor.reopen(first, end, cuts, heads)
        self.owned.apply(entry)
        self._wake()

    def _cuts(self, level: int, first: int, end: int) -> tuple[list[Cut], tuple[int, int]]:
        """Return the cuts of a range, and the due times of its first and last unit."""
        cuts: list[Cut] = []
        head_ms, last_ms = 0, -NEVER_MS
        position = first
        while position < end:
            units = self._queues.units(level, position, min(READ_UNITS, end - position))
            if not units.size:
                break
            due_ms = self._queues.due_ms(level, units)
            head_ms = int(due_ms[0]) if position == first else head_ms
            cuts += find_cuts(due_ms, position, last_ms)
            last_ms, position = int(due_ms[-1]), position + int(units.size)
        return cuts, (head_ms, last_ms)
