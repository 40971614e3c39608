"""Walk of a list through the near stage and the slots, due slot by due slot.

    staged              staged + window      staged + 2 windows
      |  s        slots      |                      |
      |--+-------------------|--+-------------------|--+------------> due slot
         due slots of slot s: s, s + window, s + 2 windows ...

The due slot of a timer is the one in which it is due. A timer that rolls is whole windows before
it, before and after each roll. The list visits the due slots in the order of time, and reads each
one's timers from the slot that has them now. A cursor is a due slot and the last timer returned
from it: rolls do not change either.

A turn is a visit of one window of due slots. It reads each slot once, so at its end the first due
slot of all later timers is known, and the next turn begins there. When time passes the cursor, a
new turn begins at the first slot that is not staged.

One call reads a bounded number of units. It may return fewer timers than requested, even none, and
a cursor to continue with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from msgspec import Struct

from duemq_common.text import java_hash
from timer_store import layout
from timer_store.kernels import listing as kernels
from timer_store.layout import Mask, Offsets, Rows
from timer_store.log.chain_check import chain_error, check_slots, is_pending
from timer_store.pending.listed_rows import (
    LISTED,
    first_rows,
    listed_rows,
    without_duplicates,
    without_settled,
)
from timer_store.progress import Key, is_after

if TYPE_CHECKING:
    from timer_store.store import TimerStore

PAGE_UNITS: Final = 16_384  # maximum units read for a page of a list
PART_ROWS: Final = 16_384  # units of a slot per part
PART_ROWS_MIN: Final = 256
TOGETHER_UNITS: Final = 4_096  # maximum units of small slots that are read together
SLOTS_TOGETHER: Final = 4_096
LONG_MAX: Final = (1 << 63) - 1


class Cursor(NamedTuple):
    """Position in a list: in a due slot, after a timer (-1: before the first one).

    The turn began at `turn_ms`, 0 before the first one. `next_ms` is the first due slot after the
    turn that is known to have timers, 0 if there is none.
    """

    slot_ms: int = 0
    due_ms: int = -1
    phys_offset: int = -1
    turn_ms: int = 0
    next_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor of a text; an empty text is the beginning of the list.

        Raises:
            ValueError: The text is not a cursor.
        """
        if not text:
            return cls()
        numbers = [int(word) for word in text.split("_")]
        if len(numbers) != len(cls._fields) or not all(-1 <= n < 1 << 62 for n in numbers):
            raise ValueError(f"{text!r} is not a cursor of a list")
        return cls(*numbers)

    def __str__(self) -> str:
        return "_".join(map(str, self))


NO_SLOTS: Final[Rows] = np.empty(0, layout.SLOT)
BEGINNING: Final = Cursor()


class Query(Struct, frozen=True, kw_only=True):
    """Selection of timers.

    Attributes:
        topic: Real topic; empty: all.
        key: Message key or unique key; empty: all.
        from_ms, to_ms: Due times from `from_ms` to before `to_ms`.
        skip: Number of timers to skip before the page.
        limit: Maximum timers of the page.
    """

    topic: str = ""
    key: str = ""
    from_ms: int = 0
    to_ms: int = LONG_MAX
    skip: int = 0
    limit: int = 20
    cursor: Cursor = BEGINNING

    def matches(self, rows: Rows) -> Mask:
        """Return which rows may match; rows without a due time match until the record is read."""
        due_ms = rows["due_ms"]
        fits = (due_ms == 0) | ((due_ms >= self.from_ms) & (due_ms < self.to_ms))
        if self.topic:
            fits &= rows["topic_hash"] == java_hash(self.topic)
        return np.asarray(fits)

    def includes(self, timer: dict[str, Any]) -> bool:
        """Return whether a timer that was read matches."""
        due_ms = timer["due_ms"]
        in_time = due_ms is None or self.from_ms <= due_ms < self.to_ms
        return in_time and (not self.topic or timer["topic"] in (self.topic, None))


class Walk:
    """Walk of one call through stage and slots.

    Args:
        units_max: Maximum units to read; a single slot may have more.
    Attributes:
        next_cursor: Cursor for the next call, None at the end.
    """

    def __init__(self, timers: TimerStore, query: Query, *, units_max: int | None = None) -> None:
        self._timers, self._query = timers, query
        self._units_max = PAGE_UNITS if units_max is None else units_max
        self._window_ms = timers.config.window_ms
        self._precision_ms = timers.config.precision_ms
        wheel_ms = layout.WHEEL_SLOTS * self._precision_ms
        self._wheel_end_ms = timers.position.staged_ms + wheel_ms
        self._cursor = query.cursor
        self._rows: list[Rows] = [np.empty(0, LISTED)]
        self._rows_left = query.limit
        self._units_read, self._part_rows = 0, PART_ROWS_MIN // 2
        self._later: Rows | None = None  # slots after the window, see `_with_later`
        self.skipped = 0
        self.next_cursor: Cursor | None = None
        self.damage: list[str] = []

    def run(self) -> Rows:
        """Return (n,) LISTED, in the order of the list."""
        if self._cursor.slot_ms <= self._timers.position.staged_ms:
            self._take_staged()
        going = True
        while going and self._rows_left and self._units_read < self._units_max:
            slots = self._next_slots()
            if not slots.size:
                going = self._next_turn()
            elif slots["num"].sum() > TOGETHER_UNITS:
                self._visit(slots)
            else:
                self._visit_many(slots)
        self.next_cursor = self._cursor if going else None
        return np.concatenate(self._rows)

    def _take_staged(self) -> None:
        position = self._cursor
        pieces = [np.empty(0, LISTED)]
        for staged_rows in self._timers.stage.pending_rows():
            rows = listed_rows(staged_rows, staged=True)
            later = is_after(rows, (position.due_ms, position.phys_offset))
            rows = rows[later & (rows["due_ms"] > position.slot_ms) & self._query.matches(rows)]
            pieces.append(first_rows(rows, self._query.skip + self._rows_left))
        rows = first_rows(np.concatenate(pieces), self._query.skip + self._rows_left)
        rows["slot_ms"] = np.maximum(rows["due_ms"] - 1, 0)
        rows["slot_ms"] -= rows["slot_ms"] % self._precision_ms
        self._take(rows)

    def _next_slots(self) -> Rows:
        """Return the slots of the next due slots: of a large one, or of several small ones."""
        staged_ms, window_ms = self._timers.position.staged_ms, self._window_ms
        first_ms = max(self._query.from_ms - 1, staged_ms)
        first_ms -= first_ms % self._precision_ms
        if self._cursor.slot_ms < first_ms:
            self._cursor = Cursor(first_ms, turn_ms=first_ms)
        elif not self._cursor.turn_ms:
            self._cursor = self._cursor._replace(turn_ms=first_ms)
        end_ms = min(self._cursor.turn_ms + window_ms, self._query.to_ms)
        while self._cursor.slot_ms < end_ms:
            rolls = (self._cursor.slot_ms - staged_ms) // window_ms
            window_end_ms = staged_ms + (rolls + 1) * window_ms
            slots = self._live_slots(rolls, min(end_ms, window_end_ms))
            if slots.size:
                return slots
            self._move_to(window_end_ms)
        return NO_SLOTS

    def _live_slots(self, rolls: int, end_ms: int) -> Rows:
        """Return the slots of the next due slots before `end_ms` that are read in one step."""
        wheel, rolls_ms = self._timers.units.wheel, rolls * self._window_ms
        span = self._cursor.slot_ms - rolls_ms, end_ms - rolls_ms
        near = next(wheel.live_parts(*span, SLOTS_TOGETHER), NO_SLOTS)
        slots = self._with_later(near, end_ms) if rolls else near
        units = np.cumsum(np.maximum(slots["num"], 0))
        fits = max(int(np.searchsorted(units, self._count(TOGETHER_UNITS), "right")), 1)
        if slots is not near and fits < slots.size:  # read all slots of a due slot together
            due_slots = self._due_slots(slots["tick"])
            whole = int(np.searchsorted(due_slots, due_slots[fits]))
            fits = whole or int(np.searchsorted(due_slots, due_slots[0], "right"))
        return slots[:fits]

    def _with_later(self, slots: Rows, end_ms: int) -> Rows:
        """Add the slots after the window that have timers of the same due slots.

        The slot at the end of the window has timers while the first one is rolled in parts. Others
        have some after an outage, or if timerRollWindowSlot was larger.
        """
        if self._later is None:
            first_ms = self._timers.position.staged_ms + self._window_ms
            self._later = self._timers.units.wheel.live(first_ms, self._wheel_end_ms)
        due_slots = self._due_slots(self._later["tick"])
        if slots.size == SLOTS_TOGETHER:
            end_ms = int(self._due_slots(slots["tick"][-1:])[0]) + self._precision_ms
        is_here = (due_slots < end_ms) & (self._later["tick"] * self._precision_ms <= due_slots)
        if not is_here.any():
            return slots
        slots = np.concatenate([slots, self._later[is_here]])
        return slots[np.argsort(self._due_slots(slots["tick"]), kind="stable")]

    def _due_slots(self, ticks: Offsets) -> Offsets:
        """Return the due slot, from the cursor on, in which each slot has its next timers."""
        slot_ms, cursor_ms = ticks * self._precision_ms, self._cursor.slot_ms
        return cursor_ms + (slot_ms - cursor_ms) % self._window_ms

    def _next_turn(self) -> bool:
        """Begin a turn at the first due slot that has timers; return whether there is one."""
        end_ms = self._cursor.turn_ms + self._window_ms
        if end_ms >= self._query.to_ms:
            return False
        later_ms = self._timers.units.wheel.next_live(end_ms, self._wheel_end_ms) or LONG_MAX
        next_ms = min(self._cursor.next_ms or LONG_MAX, later_ms)
        if next_ms == LONG_MAX:
            return False
        self._cursor = Cursor(next_ms, turn_ms=next_ms)
        return True

    def _move_to(self, slot_ms: int) -> None:
        self._cursor = self._cursor._replace(slot_ms=slot_ms, due_ms=-1, phys_offset=-1)

    def _count(self, most: int) -> int:
        """Return the number of units to read next; begin with few if few are requested."""
        self._part_rows = max(
            self._part_rows * 2, self._query.skip - self.skipped + self._rows_left
        )
        return min(self._part_rows, most)

    def _visit(self, slots: Rows) -> None:
        """Add the matching timers of the next part of a due slot."""
        units, skip = self._timers.units, self._timers.settled_timers.offsets
        due_slot_ms, count = int(self._due_slots(slots["tick"])[0]), self._count(PART_ROWS)
        pieces, ends = [], list[Key]()
        for slot_ms in (slots["tick"] * self._precision_ms).tolist():
            after = self._after(slot_ms, due_slot_ms)
            part = units.read_slot_part(slot_ms, count, after=after, skip=skip)
            self._units_read += max(units.wheel.num(slot_ms), int(part.rows.size), 1)
            if part.broken is not None:
                self.damage.append(str(part.broken))
            if not part.complete:
                ends.append((int(part.rows[-1]["due_ms"]), int(part.rows[-1]["phys_offset"])))
            timers = part.rows[is_pending(part.rows)]  # not the markers that roll
            pieces.append(listed_rows(timers, staged=False))
            pieces[-1]["slot_ms"] = slot_ms
        rows = np.concatenate(pieces)
        if ends:  # the slot that was read the least far limits the part
            rows = rows[~is_after(rows, min(ends))]
        here = self._in_due_slots(rows, np.full(rows.size, due_slot_ms))
        if not self._take(here[self._query.matches(here)]):
            return
        if ends and here.size == rows.size:
            self._cursor = Cursor(due_slot_ms, *min(ends), *self._cursor[3:])
        else:
            self._move_to(due_slot_ms + self._precision_ms)

    def _visit_many(self, slots: Rows) -> None:
        """Add the matching timers of whole due slots."""
        rows = self.read(slots)
        due_slots = self._due_slots(slots["tick"])
        for index in np.flatnonzero(due_slots == due_slots[0]).tolist():
            slot_ms = int(slots["tick"][index]) * self._precision_ms
            after = self._after(slot_ms, int(due_slots[0]))
            if after is not None:  # others are whole
                rows = rows[is_after(rows, after) | (rows["slot_ms"] != slot_ms)]
        ticks = rows["slot_ms"] // self._precision_ms
        here = self._in_due_slots(rows, self._due_slots(ticks))
        if self._take(here[self._query.matches(here)]):
            self._move_to(int(due_slots[-1]) + self._precision_ms)

    def _in_due_slots(self, rows: Rows, visited: Offsets) -> Rows:
        """Return the timers whose due slot is visited now, in order; record the next due slot.

        Args:
            rows: (n,) LISTED, whose `slot_ms` is their slot now.
            visited: (n,) due slot that is visited in the slot of each row.
        """
        left_ms = np.maximum(rows["due_ms"] - 1 - rows["slot_ms"], 0)
        due_slots = rows["slot_ms"] + left_ms // self._window_ms * self._window_ms
        later = due_slots[due_slots > visited]
        if later.size:
            next_ms = min(self._cursor.next_ms or LONG_MAX, int(later.min()))
            self._cursor = self._cursor._replace(next_ms=next_ms)
        is_here = due_slots == visited
        rows = rows[is_here]
        rows["slot_ms"] = visited[is_here]
        return without_duplicates(rows)

    def read(self, slots: Rows) -> Rows:
        """Return the timers of some slots, (n,) LISTED, in any order."""
        units, skip = self._timers.units, self._timers.settled_timers.offsets
        out = np.zeros(int(np.maximum(slots["num"], 0).sum()) + 256, LISTED)
        count = -1
        while count < 0:
            cursors = check_slots(slots, units.log.end)
            count = 0
            for file in reversed(units.log.files):
                count = kernels.collect_slots(
                    file.data, file.base, cursors, self._precision_ms, skip, out, count
                )
                if count < 0:
                    out = np.zeros(out.size * 2, LISTED)
                    break
        self._units_read += count + int(slots.size)
        for cursor in cursors[cursors["fault"] != 0]:
            error = chain_error(units.log, int(cursor["pos"]), int(cursor["fault"]))
            self.damage.append(str(error))
        return without_settled(out[:count])

    def _after(self, slot_ms: int, due_slot_ms: int) -> Key | None:
        """Return the timer of a slot after which the walk continues in a due slot."""
        start, position = self._cursor, self._timers.position
        reached = []
        if start.slot_ms == due_slot_ms and start.due_ms >= 0:
            reached.append((start.due_ms, start.phys_offset))
        if position.part is not None and slot_ms == position.staged_ms:
            reached.append(position.part)
        if slot_ms < due_slot_ms:
            reached.append((due_slot_ms, LONG_MAX))
        return max(reached, default=None)

    def _take(self, rows: Rows) -> bool:
        """Skip and add rows in order; return whether there is room for more."""
        skip = min(self._query.skip - self.skipped, int(rows.size))
        passed = rows[: skip + self._rows_left]
        self.skipped += skip
        if passed.size:
            self._rows.append(passed[skip:])
            self._rows_left -= int(passed.size) - skip
            last = passed[-1]
            self._cursor = self._cursor._replace(
                slot_ms=int(last["slot_ms"]),
                due_ms=int(last["due_ms"]),
                phys_offset=int(last["phys_offset"]),
            )
        return self._rows_left > 0
