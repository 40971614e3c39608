"""Loading of slots into the near stage: small ones inline, large ones in a thread.

    begin    loop     capture the slot: the end of its chain, the settled timers
    work     thread   walk the chain, separate timers that roll, sort
    finish   loop     add timers linked meanwhile, remove timers settled meanwhile

Reading and sorting a slot with a million timers takes some tenths of a second, which must not delay
other traffic. Meanwhile the slot counts as not loaded: new timers are linked into it, and its
timers can be cancelled or moved. The thread reads the log's files and a captured slot. The units
that it reads change only when timers are settled, and the event loop records these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from duemq_common.errors import CorruptStore
from message_store.ranges import is_in
from timer_store import layout
from timer_store.dequeue.near_stage import Run, sorted_run
from timer_store.layout import Offsets, Rows
from timer_store.log.units import TimerUnits
from timer_store.log.wheel import Slot, TimerWheel
from timer_store.progress import Key, SettledTimers, is_after

LARGE = 16_384  # timers; reading more inline would block the loop for some ms
NO_ROWS = np.empty(0, layout.STAGED)


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """A slot, or a part of it.

    Attributes:
        run: Timers that are delivered from this slot.
        rolls: (n,) `layout.STAGED` that are rolled into a later slot.
        joined: (n,) `layout.STAGED` that were linked into the slot during the read.
        found: Number of units found; units are missing if the count of the slot is higher.
        last: Key of the last timer of a part.
        complete: Whether the slot has no pending timers after these.
        broken: Error of a chain that ends too early.
        record_bytes: Bytes of the records of `run`.
    """

    run: Run
    rolls: Rows
    joined: Rows
    found: int
    num: int
    last: Key | None
    complete: bool
    broken: CorruptStore | None
    record_bytes: int


@dataclass(frozen=True, slots=True)
class SlotRead:
    """Unfinished read of a slot in the thread."""

    slot_ms: int
    after: Key | None
    log_end: int  # of the timer log; later units were linked during the read
    future: Future[LoadedRows]


class CapturedSlot:
    """Copy of a single slot of the wheel, for a walk in a thread."""

    def __init__(self, wheel: TimerWheel, slot_ms: int) -> None:
        self.precision_ms = wheel.precision_ms
        self._slot, self._tick = wheel.slot(slot_ms), wheel.tick(slot_ms)

    def slot(self, _time_ms: int) -> Slot:
        """Return the slot."""
        return self._slot

    def tick(self, _time_ms: int) -> int:
        """Return its tick."""
        return self._tick


class SlotLoader:
    """Loader of one timer store's slots. Belongs to the event loop's thread."""

    def __init__(self, units: TimerUnits, settled_timers: SettledTimers) -> None:
        self._units, self._settled_timers = units, settled_timers
        self.pool: ThreadPoolExecutor | None = None
        self._wake: Callable[[], None] = _wake_none
        self._begun: SlotRead | None = None

    @contextmanager
    def threaded(self, wake: Callable[[], None]) -> Iterator[None]:
        """Read large slots in a thread while the block is open.

        Args:
            wake: Called from that thread when a slot was read; `read` then returns it.
        """
        with ThreadPoolExecutor(1, "timer slots") as self.pool:
            self._wake = wake
            try:
                yield
            finally:
                self.pool, self._wake = None, _wake_none

    @property
    def busy(self) -> bool:
        """Whether a slot is being read: `read` returns nothing until `wake` is called."""
        return self._begun is not None and not self._begun.future.done()

    def read(self, slot_ms: int, count_max: int, after: Key | None) -> LoadedRows | None:
        """Return a slot, or the next part of it; None while it is being read.

        Args:
            count_max, after: See `TimerUnits.read_slot_part`.
        """
        if self._begun is not None:
            if self.busy:
                return None
            if (self._begun.slot_ms, self._begun.after) == (slot_ms, after):
                return self._finish()
            self.drop()
        num = self._units.wheel.num(slot_ms)
        skip = self._settled_timers.offsets
        if self.pool is None or num < LARGE:
            return load(self._units, slot_ms, num, count_max, after, skip)
        frozen = self._frozen(slot_ms)
        self._settled_timers.start_recording()
        future = self.pool.submit(partial(load, frozen, slot_ms, num, count_max, after, skip))
        self._begun = SlotRead(slot_ms, after, self._units.log.end, future)
        wake = self._wake
        future.add_done_callback(lambda _: wake())
        return None

    def drop(self) -> None:
        """Wait for the thread, and discard its result."""
        if self._begun is not None:
            self._begun.future.exception()
            self._begun = None
            self._settled_timers.stop_recording()

    def _frozen(self, slot_ms: int) -> TimerUnits:
        log, wheel = copy(self._units.log), CapturedSlot(self._units.wheel, slot_ms)
        log.files = list(log.files)
        as_wheel: Any = wheel
        return TimerUnits(log, as_wheel, self._units.window_ms)

    # -- changes during the read ----------------------------------------------------------------

    def _finish(self) -> LoadedRows:
        begun, self._begun = self._begun, None
        recorded = self._settled_timers.stop_recording()
        assert begun is not None
        loaded = begun.future.result()
        if recorded.size:
            loaded = _without(loaded, recorded)
        joined = self._joined(begun, loaded)
        passes = joined["due_ms"] > begun.slot_ms + self._units.precision_ms
        rolls = np.concatenate([loaded.rolls, joined[passes]])
        found = loaded.found + joined.size
        return replace(loaded, rolls=rolls, joined=joined[~passes], found=found)

    def _joined(self, begun: SlotRead, loaded: LoadedRows) -> Rows:
        """Return the timers that were linked into the slot since it was begun, STAGED."""
        tick = self._units.wheel.tick(begun.slot_ms)
        parts = [NO_ROWS]
        for units in self._units.log.scan(begun.log_end):
            here = (units["slot_ms"] // self._units.precision_ms == tick) & (units["due_ms"] > 0)
            here &= units["magic"] & (layout.MAGIC_ROLL | layout.MAGIC_DELETE) != (
                layout.MAGIC_DELETE
            )
            if here.any():
                parts.append(_staged(units[here]))
        rows = np.concatenate(parts)
        if not rows.size:
            return rows
        rows = rows[~self._settled_timers.has(rows["phys_offset"])]
        for known in (loaded.run.rows, loaded.rolls):  # a new unit may be a copy of one read before
            rows = rows[~is_in(rows["phys_offset"], known["phys_offset"])]
        _, firsts = np.unique(rows["phys_offset"], return_index=True)
        rows = rows[np.sort(firsts)]
        keep = np.ones(rows.size, np.bool_)
        if begun.after is not None:
            keep &= is_after(rows, begun.after)
        if loaded.last is not None:
            keep &= ~is_after(rows, loaded.last)
        return rows[keep]


def load(
    units: TimerUnits, slot_ms: int, num: int, count_max: int, after: Key | None, skip: Offsets
) -> LoadedRows:
    """Read a slot, or a part of it, and sort it. Changes nothing, so any thread may call it.

    Args:
        num: Number of timers that the slot counts.
        skip: (n,) i8 ascending: settled timers.
    """
    part = units.read_slot_part(slot_ms, count_max, after=after, skip=skip)
    rows, rolls, last = part.rows, part.rows[:0], None
    if not part.complete:
        last = int(rows[-1]["due_ms"]), int(rows[-1]["phys_offset"])
    passes = rows["due_ms"] > slot_ms + units.precision_ms
    if passes.any():
        rows, rolls = rows[~passes], rows[passes]
    return LoadedRows(
        run=sorted_run(rows),
        rolls=rolls,
        joined=NO_ROWS,
        found=int(part.rows.size),
        num=num,
        last=last,
        complete=part.complete,
        broken=part.broken,
        record_bytes=int(rows["record_size"].sum(dtype=np.int64)),
    )


def _without(loaded: LoadedRows, settled: Offsets) -> LoadedRows:
    """Remove timers that were settled during the read, without counting them as missing."""
    rows = loaded.run.rows
    run = Run(rows[~is_in(rows["phys_offset"], settled)])
    rolls = loaded.rolls[~is_in(loaded.rolls["phys_offset"], settled)]
    return replace(loaded, run=run, rolls=rolls, num=loaded.num - int(settled.size))


def _staged(units: Rows) -> Rows:
    """Return (n,) `layout.STAGED` of pending (n,) `layout.LOGGED`."""
    rows = np.zeros(units.size, layout.STAGED)
    for column in (
        "due_ms",
        "phys_offset",
        "pos",
        "write_ms",
        "record_size",
        "topic_hash",
        "magic",
    ):
        rows[column] = units[column]
    return rows


def _wake_none() -> None:
    """Wake nothing, because there is no event loop."""
