"""List of pending timers in due order, page by page, without loading all of them.

    lap 0    near stage, then the slots after it: timers that are due in their slot
    lap k    the same slots again: timers that roll and are due k windows later

A timer that rolls is in slot T = due - k windows, so each lap is in due order, and so is the
sequence of laps. A cursor is the last timer returned. Timers that are enqueued or delivered between
two pages may or may not be listed; all others are returned once. (Timers that were rolled before
timerRollWindowSlot was changed are listed by their current slot.)

A timer of lap k that rolls between two pages moves to lap k - 1, one window later: when lap k - 1
is over, it would be missed. So a page of lap k begins with the slots one window, or several, after
those that were staged since the page before:

    before    lap k:      cursor . . T . . . . . . .
    now       lap k:      . . . . . staged . . . . .       T has rolled
              lap k - 1:  cursor + window . . T + window . . staged + window

One call reads a bounded number of units. It may return fewer timers than requested, even none, and
a cursor to continue with. Records are read only for the timers of the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from msgspec import Struct

from duemq_common.errors import RecordUnreadable
from duemq_common.text import java_hash
from message_store.ranges import distinct, is_in
from timer_store import layout
from timer_store.enqueue.due_time import due_ms_of, number_of
from timer_store.kernels import listing as kernels
from timer_store.layout import Mask, Offsets, Row, Rows
from timer_store.log.chain_check import chain_error, check_slots
from timer_store.names import SCHEDULE_TOPIC, TIMER_TOPIC
from timer_store.progress import is_after

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
    """Position in a list: in a slot, after a timer (-1: before the first one).

    `next_lap` is the next lap that is known to have timers, 0 if there is none.
    """

    lap: int = 0
    slot_ms: int = 0
    due_ms: int = -1
    phys_offset: int = -1
    next_lap: int = 0

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

    @property
    def narrowed(self) -> bool:
        """Whether the query has a time limit."""
        return self.from_ms > 0 or self.to_ms < LONG_MAX

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
        self._at = query.cursor
        self._taken: list[Rows] = [np.empty(0, FOUND)]
        self._left = query.limit
        self._looked_at, self._size = 0, PART_ROWS_MIN // 2
        self._rolled_ms = 0  # distance of the slots in hand from the slots before their rolls
        self.skipped = 0
        self.next_cursor: Cursor | None = None
        self.damage: list[str] = []

    def run(self) -> Rows:
        """Return (n,) FOUND, in the order of the list."""
        if self._at.lap == 0:
            self._take_staged()
        going = True
        while going and self._left and self._looked_at < self._units_max:
            slots = self._next_slots()
            if not slots.size:
                going = self._next_lap()
            elif slots.size == 1 and slots["num"][0] > TOGETHER_UNITS:
                self._visit(int(slots["tick"][0]) * self._precision_ms - self._rolled_ms)
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
        """Return the next slots of the walk: one large one, or several small ones."""
        query, staged_ms = self._query, self._timers.position.staged_ms
        to_ms = query.to_ms - self._at.lap * self._window_ms
        while self._at.lap and self._at.slot_ms < min(staged_ms, to_ms):
            first_ms = self._at.slot_ms
            rolls = -((first_ms - staged_ms) // self._window_ms)
            end_ms = min(to_ms, staged_ms - (rolls - 1) * self._window_ms)
            self._rolled_ms = rolls * self._window_ms
            slots = self._live_slots(first_ms + self._rolled_ms, end_ms + self._rolled_ms)
            if slots.size:
                return slots
            self._at = self._at._replace(slot_ms=end_ms, due_ms=-1)
        self._rolled_ms, position = 0, self._at
        first_ms = position.slot_ms
        first_ms = max(staged_ms, first_ms)
        if position.lap == 0 and query.from_ms:
            first_ms = max(first_ms, query.from_ms - 1)
        end_ms = min(staged_ms + layout.WHEEL_SLOTS * self._precision_ms, to_ms)
        return self._live_slots(first_ms, end_ms)

    def _live_slots(self, first_ms: int, end_ms: int) -> Rows:
        """Return the first slots with timers in [first_ms, end_ms) that are read in one step."""
        wheel = self._timers.units.wheel
        slots = next(wheel.live_parts(first_ms, end_ms, SLOTS_TOGETHER), NO_SLOTS)
        units = np.cumsum(np.maximum(slots["num"], 0))
        fits = int(np.searchsorted(units, self._count(TOGETHER_UNITS), "right"))
        return slots[: max(fits, 1)]

    def _next_lap(self) -> bool:
        """Continue in the next lap that has timers; return whether there is one."""
        position = self._at
        next_lap = 1 if position.lap == 0 and self._query.narrowed else position.next_lap
        if next_lap <= position.lap:
            return False
        self._at = Cursor(next_lap, self._timers.position.staged_ms)
        return True

    def _count(self, most: int) -> int:
        """Return the number of units to read next; begin with few if few are requested."""
        self._size = max(self._size * 2, self._query.skip - self.skipped + self._left)
        return min(self._size, most)

    def _visit(self, slot_ms: int) -> None:
        """Add the matching timers of the next part of a slot, which may have rolled."""
        timers, present_ms = self._timers, slot_ms + self._rolled_ms
        count, after = self._count(PART_ROWS), self._after(slot_ms)
        part = timers.units.read_slot_part(
            present_ms, count, after=after, skip=timers.settled_timers.offsets
        )
        self._looked_at += max(timers.units.wheel.num(present_ms), int(part.rows.size), 1)
        if part.broken is not None:
            self.damage.append(str(part.broken))
        rows = part.rows[np.lexsort((part.rows["phys_offset"], part.rows["due_ms"]))]
        laps = np.maximum(rows["due_ms"] - 1 - slot_ms, 0) // self._window_ms
        self._add_laps(laps)
        here = _found(rows[laps == self._at.lap], staged=False)
        here["slot_ms"] = slot_ms
        if not self._take(here[self._query.matches(here)]):
            return
        position = self._at
        if part.complete or not rows.size or bool((laps > position.lap).any()):
            self._at = Cursor(
                position.lap, slot_ms + self._precision_ms, next_lap=position.next_lap
            )
        else:
            last = int(rows[-1]["due_ms"]), int(rows[-1]["phys_offset"])
            self._at = Cursor(position.lap, slot_ms, *last, position.next_lap)

    def _visit_many(self, slots: Rows) -> None:
        """Add the matching timers of whole slots, which may have rolled."""
        rows = self.read(slots)
        rows["slot_ms"] -= self._rolled_ms
        slot_ms = rows["slot_ms"]
        ticks_ms = slots["tick"] * self._precision_ms - self._rolled_ms
        laps = np.maximum(rows["due_ms"] - 1 - slot_ms, 0) // self._window_ms
        self._add_laps(laps)
        here = (laps == self._at.lap) & self._query.matches(rows)
        for tick_ms in np.unique(ticks_ms[[0, -1]]).tolist():  # others are read in the next step
            after = self._after(tick_ms)
            if after is not None:
                here &= is_after(rows, after) | (slot_ms != tick_ms)
        if self._take(rows[here]):
            end_ms = int(ticks_ms[-1]) + self._precision_ms
            self._at = Cursor(self._at.lap, end_ms, next_lap=self._at.next_lap)

    def read(self, slots: Rows) -> Rows:
        """Return the timers of some slots, (n,) FOUND, slot by slot in due order."""
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
        return without_duplicates(out[:count])

    def _after(self, slot_ms: int) -> tuple[int, int] | None:
        """Return the timer of a slot after which the walk continues."""
        start, position = self._at, self._timers.position
        reached = []
        if start.slot_ms == slot_ms and start.due_ms >= 0:
            reached.append((start.due_ms, start.phys_offset))
        if position.part is not None and slot_ms == position.staged_ms:
            reached.append(position.part)
        if start.lap:
            reached.append((slot_ms + start.lap * self._window_ms, LONG_MAX))
        return max(reached, default=None)

    def _add_laps(self, laps: Offsets) -> None:
        position = self._at
        higher = laps[laps > position.lap]
        if higher.size and not self._rolled_ms:  # else they are in this lap, and read later
            next_lap = position.next_lap if position.next_lap > position.lap else LONG_MAX
            self._at = position._replace(next_lap=min(next_lap, int(higher.min())))

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


def without_duplicates(rows: Rows) -> Rows:
    """Return timers slot by slot in due order, without duplicate units and settled timers."""
    settled = rows["due_ms"] < 0
    if settled.any():
        rows = rows[~settled & ~is_in(rows["phys_offset"], rows["phys_offset"][settled])]
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
