"""List of pending timers in due order, page by page, without loading all of them.

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

Timers that are enqueued or delivered between two pages may or may not be listed; all others are
returned once. (Exceptions are timers without a due time in their unit, and timers that were
enqueued before timerRollWindowSlot was changed: they are listed by their current slot, and again
if they roll between two pages.)

One call reads a bounded number of units. It may return fewer timers than requested, even none, and
a cursor to continue with. Records are read only for the timers of the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from msgspec import Struct

from duemq_common.errors import RecordUnreadable
from duemq_common.text import java_hash
from message_store.ranges import distinct, is_among
from timer_store import layout
from timer_store.enqueue.due_time import due_ms_of, number_of
from timer_store.kernels import listing as kernels
from timer_store.layout import Mask, Offsets, Row, Rows
from timer_store.log.chain_check import chain_error, check_slots
from timer_store.names import SCHEDULE_TOPIC, TIMER_TOPIC
from timer_store.progress import Key, is_after

if TYPE_CHECKING:
    from timer_store.store import TimerStore

LIMIT_MAX: Final = 1_000
LOOK_UNITS: Final = 16_384  # maximum units read for a page of a list
PART_ROWS: Final = 16_384  # units of a slot per part
PART_ROWS_MIN: Final = 256
KEY_RECORDS_MAX: Final = 1_000
TOGETHER_UNITS: Final = 4_096  # maximum units of small slots that are read together
SLOTS_TOGETHER: Final = 4_096
LONG_MAX: Final = (1 << 63) - 1
CLOCK_SLACK_MS: Final = 86_400_000  # tolerance for records stored by a clock ahead of this one
FOUND = np.dtype(
    [
        ("due_ms", "i8"),
        ("phys_offset", "i8"),
        ("slot_ms", "i8"),
        ("topic_hash", "i4"),
        ("staged", "?"),
    ],
    align=True,
)


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


class Page(Struct, frozen=True):
    """Page of a list.

    Attributes:
        timers: Plain data of each timer.
        skipped: Number of timers of `Query.skip` that were skipped.
        cursor: Position of the next page, None at the end.
        damage: Unreadable parts of the timer log.
    """

    timers: list[dict[str, object]]
    skipped: int
    cursor: Cursor | None
    damage: list[str]


def list_timers(timers: TimerStore, query: Query) -> Page:
    """Return the next timers of a list, at most `limit`."""
    if query.key:
        return _by_key(timers, query)
    walk = Walk(timers, query)
    rows = walk.run()
    timers.store.prefetch(rows["phys_offset"])
    shown = [describe(timers, row) for row in rows]
    return Page(
        [t for t in shown if query.includes(t)], walk.skipped, walk.next_cursor, walk.damage
    )


def next_due_ms(timers: TimerStore) -> int | None:
    """Return the due time of the next timer; None without one, or if the first call found none."""
    staged_ms = timers.stage.next_due_ms
    if staged_ms is not None:
        return staged_ms
    listed = Walk(timers, Query(limit=1)).run()
    return int(listed[0]["due_ms"]) or None if listed.size else None


class Walk:
    """Walk of one call through stage and slots.

    Args:
        units_max: Maximum units to read; a single slot may have more.
    Attributes:
        next_cursor: Cursor for the next call, None at the end.
    """

    def __init__(self, timers: TimerStore, query: Query, *, units_max: int | None = None) -> None:
        self._timers, self._query = timers, query
        self._units_max = LOOK_UNITS if units_max is None else units_max
        self._window_ms = timers.config.window_ms
        self._precision_ms = timers.config.precision_ms
        wheel_ms = layout.WHEEL_SLOTS * self._precision_ms
        self._wheel_end_ms = timers.position.staged_ms + wheel_ms
        self._at = query.cursor
        self._taken: list[Rows] = [np.empty(0, FOUND)]
        self._left = query.limit
        self._looked_at, self._size = 0, PART_ROWS_MIN // 2
        self._later: Rows | None = None  # slots after the window, see `_with_later`
        self.skipped = 0
        self.next_cursor: Cursor | None = None
        self.damage: list[str] = []

    def run(self) -> Rows:
        """Return (n,) FOUND, in the order of the list."""
        if self._at.slot_ms <= self._timers.position.staged_ms:
            self._take_staged()
        going = True
        while going and self._left and self._looked_at < self._units_max:
            slots = self._next_slots()
            if not slots.size:
                going = self._next_turn()
            elif slots["num"].sum() > TOGETHER_UNITS:
                self._visit(slots)
            else:
                self._visit_many(slots)
        self.next_cursor = self._at if going else None
        return np.concatenate(self._taken)

    def _take_staged(self) -> None:
        position = self._at
        pieces = [np.empty(0, FOUND)]
        for staged_rows in self._timers.stage.pending_rows():
            rows = _found(staged_rows, staged=True)
            later = is_after(rows, (position.due_ms, position.phys_offset))
            rows = rows[later & (rows["due_ms"] > position.slot_ms) & self._query.matches(rows)]
            pieces.append(first_rows(rows, self._query.skip + self._left))
        rows = first_rows(np.concatenate(pieces), self._query.skip + self._left)
        rows["slot_ms"] = np.maximum(rows["due_ms"] - 1, 0)
        rows["slot_ms"] -= rows["slot_ms"] % self._precision_ms
        self._take(rows)

    def _next_slots(self) -> Rows:
        """Return the slots of the next due slots: of a large one, or of several small ones."""
        staged_ms, window_ms = self._timers.position.staged_ms, self._window_ms
        first_ms = max(self._query.from_ms - 1, staged_ms)
        first_ms -= first_ms % self._precision_ms
        if self._at.slot_ms < first_ms:
            self._at = Cursor(first_ms, turn_ms=first_ms)
        elif not self._at.turn_ms:
            self._at = self._at._replace(turn_ms=first_ms)
        end_ms = min(self._at.turn_ms + window_ms, self._query.to_ms)
        while self._at.slot_ms < end_ms:
            rolls = (self._at.slot_ms - staged_ms) // window_ms
            window_end_ms = staged_ms + (rolls + 1) * window_ms
            slots = self._live_slots(rolls, min(end_ms, window_end_ms))
            if slots.size:
                return slots
            self._move_to(window_end_ms)
        return NO_SLOTS

    def _live_slots(self, rolls: int, end_ms: int) -> Rows:
        """Return the slots of the next due slots before `end_ms` that are read in one step."""
        wheel, rolls_ms = self._timers.units.wheel, rolls * self._window_ms
        span = self._at.slot_ms - rolls_ms, end_ms - rolls_ms
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
        slot_ms, at_ms = ticks * self._precision_ms, self._at.slot_ms
        return at_ms + (slot_ms - at_ms) % self._window_ms

    def _next_turn(self) -> bool:
        """Begin a turn at the first due slot that has timers; return whether there is one."""
        end_ms = self._at.turn_ms + self._window_ms
        if end_ms >= self._query.to_ms:
            return False
        later_ms = self._timers.units.wheel.next_live(end_ms, self._wheel_end_ms) or LONG_MAX
        next_ms = min(self._at.next_ms or LONG_MAX, later_ms)
        if next_ms == LONG_MAX:
            return False
        self._at = Cursor(next_ms, turn_ms=next_ms)
        return True

    def _move_to(self, slot_ms: int) -> None:
        self._at = self._at._replace(slot_ms=slot_ms, due_ms=-1, phys_offset=-1)

    def _count(self, most: int) -> int:
        """Return the number of units to read next; begin with few if few are requested."""
        self._size = max(self._size * 2, self._query.skip - self.skipped + self._left)
        return min(self._size, most)

    def _visit(self, slots: Rows) -> None:
        """Add the matching timers of the next part of a due slot."""
        units, skip = self._timers.units, self._timers.settled_timers.offsets
        due_slot_ms, count = int(self._due_slots(slots["tick"])[0]), self._count(PART_ROWS)
        pieces, ends = [], list[Key]()
        for slot_ms in (slots["tick"] * self._precision_ms).tolist():
            after = self._after(slot_ms, due_slot_ms)
            part = units.read_slot_part(slot_ms, count, after=after, skip=skip)
            self._looked_at += max(units.wheel.num(slot_ms), int(part.rows.size), 1)
            if part.broken is not None:
                self.damage.append(str(part.broken))
            if not part.complete:
                ends.append((int(part.rows[-1]["due_ms"]), int(part.rows[-1]["phys_offset"])))
            pieces.append(_found(part.rows, staged=False))
            pieces[-1]["slot_ms"] = slot_ms
        rows = np.concatenate(pieces)
        if ends:  # the slot that was read the least far limits the part
            rows = rows[~is_after(rows, min(ends))]
        here = self._in_due_slots(rows, np.full(rows.size, due_slot_ms))
        if not self._take(here[self._query.matches(here)]):
            return
        if ends and here.size == rows.size:
            self._at = Cursor(due_slot_ms, *min(ends), *self._at[3:])
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
            rows: (n,) FOUND, whose `slot_ms` is their slot now.
            visited: (n,) due slot that is visited in the slot of each row.
        """
        left_ms = np.maximum(rows["due_ms"] - 1 - rows["slot_ms"], 0)
        due_slots = rows["slot_ms"] + left_ms // self._window_ms * self._window_ms
        later = due_slots[due_slots > visited]
        if later.size:
            next_ms = min(self._at.next_ms or LONG_MAX, int(later.min()))
            self._at = self._at._replace(next_ms=next_ms)
        is_here = due_slots == visited
        rows = rows[is_here]
        rows["slot_ms"] = visited[is_here]
        return without_duplicates(rows)

    def read(self, slots: Rows) -> Rows:
        """Return the timers of some slots, (n,) FOUND, in any order."""
        units, skip = self._timers.units, self._timers.settled_timers.offsets
        out = np.zeros(int(np.maximum(slots["num"], 0).sum()) + 256, FOUND)
        count = -1
        while count < 0:
            cursors = check_slots(slots, units.log.end)
            count = 0
            for file in reversed(units.log.files):
                count = kernels.collect_slots(
                    file.data, file.base, cursors, self._precision_ms, skip, out, count
                )
                if count < 0:
                    out = np.zeros(out.size * 2, FOUND)
                    break
        self._looked_at += count + int(slots.size)
        for cursor in cursors[cursors["fault"] != 0]:
            error = chain_error(units.log, int(cursor["pos"]), int(cursor["fault"]))
            self.damage.append(str(error))
        return without_settled(out[:count])

    def _after(self, slot_ms: int, due_slot_ms: int) -> Key | None:
        """Return the timer of a slot after which the walk continues in a due slot."""
        start, position = self._at, self._timers.position
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
        passed = rows[: skip + self._left]
        self.skipped += skip
        if passed.size:
            self._taken.append(passed[skip:])
            self._left -= int(passed.size) - skip
            columns = ("slot_ms", "due_ms", "phys_offset")
            self._at = self._at._replace(**{name: int(passed[-1][name]) for name in columns})
        return self._left > 0


def _found(rows: Rows, *, staged: bool) -> Rows:
    out = np.zeros(rows.size, FOUND)
    for column in ("due_ms", "phys_offset", "topic_hash"):
        out[column] = rows[column]
    out["staged"] = staged
    return out


def without_settled(rows: Rows) -> Rows:
    """Return timers without those that have a settled unit in the same slot."""
    is_settled = rows["due_ms"] < 0
    if not is_settled.any():
        return rows
    order = np.lexsort((rows["phys_offset"], rows["slot_ms"]))
    rows, is_settled = rows[order], is_settled[order]
    numbers = np.cumsum(
        (np.diff(rows["phys_offset"], prepend=-1) != 0)
        | (np.diff(rows["slot_ms"], prepend=-1) != 0)
    )
    settled_numbers = np.unique(numbers[is_settled])
    return np.asarray(rows[~is_among(numbers, settled_numbers)])


def without_duplicates(rows: Rows) -> Rows:
    """Return timers slot by slot in due order, each once."""
    rows = rows[np.lexsort((rows["phys_offset"], rows["due_ms"], rows["slot_ms"]))]
    second = np.zeros(rows.size, np.bool_)
    second[1:] = rows["phys_offset"][1:] == rows["phys_offset"][:-1]
    return rows[~second]


def first_rows(rows: Rows, count: int) -> Rows:
    """Return the `count` rows that are due first, by (due_ms, phys_offset), in order."""
    if rows.size > count:
        limit_ms = np.partition(rows["due_ms"], count - 1)[count - 1]
        sooner, same = rows[rows["due_ms"] < limit_ms], rows[rows["due_ms"] == limit_ms]
        left = count - sooner.size
        if left < same.size:
            last = np.partition(same["phys_offset"], left - 1)[left - 1]
            same = same[same["phys_offset"] <= last]
        rows = np.concatenate([sooner, same])
    return rows[np.lexsort((rows["phys_offset"], rows["due_ms"]))]


def _by_key(timers: TimerStore, query: Query) -> Page:
    """Return the pending timers with a key, found through the key index."""
    end_ms = timers.clock.now_ms() + CLOCK_SLACK_MS
    topics = [TIMER_TOPIC, *([SCHEDULE_TOPIC] if timers.transfers.owned else [])]
    offsets = [
        np.array(timers.store.query_keys(topic, query.key, KEY_RECORDS_MAX, 0, end_ms), np.int64)
        for topic in topics
    ]
    timed = timers.records.read(distinct(*offsets))
    pending = timers.decisions.is_pending(timed)
    rows = _found(timed[pending], staged=False)
    rows["staged"] = timers.stage.contains(rows["phys_offset"], rows["due_ms"])
    rows = first_rows(rows, max(int(rows.size), 1))
    shown = [describe(timers, row) for row in rows]
    fits = [timer for timer in shown if query.includes(timer)]
    page = fits[query.skip : query.skip + query.limit]
    return Page(page, min(query.skip, len(fits)), None, [])


def describe(timers: TimerStore, row: Row) -> dict[str, object]:
    """Return the data of one timer and its record for an operator."""
    phys_offset, due_ms = int(row["phys_offset"]), int(row["due_ms"])
    shown: dict[str, object] = {
        "due_ms": due_ms or None,
        "staged": bool(row["staged"]),
        "commit_log_offset": phys_offset,
        "topic": None,
    }
    try:
        record = timers.store.read_record(phys_offset)
    except RecordUnreadable as error:
        return {**shown, "unreadable": str(error)}
    properties = record.properties
    if not due_ms:
        shown["due_ms"] = due_ms_of(properties, record.store_ms, timers.config.precision_ms)
    return {
        **shown,
        "topic": properties.get("REAL_TOPIC"),
        "queue_id": number_of(properties.get("REAL_QID")),
        "unique_key": properties.get("UNIQ_KEY", ""),
        "keys": properties.get("KEYS", ""),
        "tag": properties.get("TAGS", ""),
        "stored_ms": record.store_ms,
        "body_bytes": len(record.body),
        "record_bytes": record.total_size,
        "timer_queue_offset": record.queue_offset,
    }
