"""Loading of large slots, and of slots with old timers, in a thread.

    begin    loop     capture the slot: the end of its chain, the settled timers
    work     thread   walk the chain, separate timers that roll, sort, begin to read the records
    finish   loop     add timers linked meanwhile, remove timers settled meanwhile

Reading and sorting a slot with a million timers takes some tenths of a second, which must not delay
other traffic. Units and records of timers that were stored hours ago may not be in the page cache;
the disk needs 0.1 ms or more for each. Meanwhile the slot counts as not loaded: new timers are
linked into it, and its timers can be cancelled or moved. The thread reads the log's files and a
captured slot. The units that it reads change only when timers are settled, and the event loop
records these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from message_store.ranges import is_in
from timer_store import layout
from timer_store.dequeue.near_stage import NOTHING, LoadedRows, Run, load_slot
from timer_store.layout import Offsets, Rows
from timer_store.log.units import TimerUnits
from timer_store.log.wheel import Slot, TimerWheel
from timer_store.progress import Key, SettledTimers, is_after


class SlotRead(Struct, frozen=True):
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
    """Loader of one timer store's slots in a thread. Belongs to the event loop's thread.

    Args:
        prefetch: Begins to read records, by log offsets and sizes, into the page cache.
    Attributes:
        pool: The thread; None: no loop runs.
        begun: Unfinished read.
    """

    def __init__(
        self,
        units: TimerUnits,
        settled_timers: SettledTimers,
        prefetch: Callable[[Offsets, Offsets], object],
    ) -> None:
        self._units, self._settled_timers, self._prefetch = units, settled_timers, prefetch
        self.pool: ThreadPoolExecutor | None = None
        self._wake: Callable[[], None] = _wake_none
        self.begun: SlotRead | None = None

    @contextmanager
    def threaded(self, wake: Callable[[], None]) -> Iterator[None]:
        """Read slots in a thread while the block is open.

        Args:
            wake: Called from that thread when a slot was read; `finish` then returns it.
        """
        with ThreadPoolExecutor(1, "timer slots") as self.pool:
            self._wake = wake
            try:
                yield
            finally:
                self.pool, self._wake = None, _wake_none

    def begin(self, slot_ms: int, num: int, count_max: int, after: Key | None) -> None:
        """Begin to read a slot, or the next part of it, in the thread.

        Args:
            num: Number of timers that the slot counts.
            count_max, after: See `TimerUnits.read_slot_part`.
        """
        assert self.pool is not None
        frozen, skip = self._frozen(slot_ms), self._settled_timers.offsets
        self._settled_timers.start_recording()
        read = partial(load_slot, frozen, slot_ms, num, count_max, after, skip)
        future = self.pool.submit(partial(self._load, read))
        self.begun = SlotRead(slot_ms, after, self._units.log.end, future)
        wake = self._wake
        future.add_done_callback(lambda _: wake())

    def _load(self, read: Callable[[], LoadedRows]) -> LoadedRows:
        loaded = read()
        rows = loaded.run.rows
        self._prefetch(rows["phys_offset"], rows["record_size"])
        return loaded

    def drop(self) -> None:
        """Wait for the thread, and discard its result."""
        if self.begun is not None:
            self.begun.future.exception()
            self.begun = None
            self._settled_timers.stop_recording()

    def _frozen(self, slot_ms: int) -> TimerUnits:
        log, wheel = copy(self._units.log), CapturedSlot(self._units.wheel, slot_ms)
        log.files = list(log.files)
        as_wheel: Any = wheel
        return TimerUnits(log, as_wheel, self._units.window_ms)

    # -- changes during the read ----------------------------------------------------------------

    def finish(self, slot_ms: int, after: Key | None) -> LoadedRows | None:
        """Return the slot that was read; None if another slot, or part, is needed now."""
        begun = self.begun
        assert begun is not None
        if (begun.slot_ms, begun.after) != (slot_ms, after):
            self.drop()
            return None
        self.begun = None
        recorded = self._settled_timers.stop_recording()
        loaded = begun.future.result()
        if recorded.size:
            loaded = _without(loaded, recorded)
        joined = self._joined(begun, loaded)
        passes = joined["due_ms"] > begun.slot_ms + self._units.precision_ms
        rolls = np.concatenate([loaded.rolls, joined[passes]])
        unit_count = loaded.unit_count + joined.size
        return replace(loaded, rolls=rolls, joined=joined[~passes], unit_count=unit_count)

    def _joined(self, begun: SlotRead, loaded: LoadedRows) -> Rows:
        """Return the timers that were linked into the slot since it was begun, STAGED."""
        tick = self._units.wheel.tick(begun.slot_ms)
        parts = [NOTHING]
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
        for loaded_rows in (
            loaded.run.rows,
            loaded.rolls,
        ):  # a new unit may be a copy of one read before
            rows = rows[~is_in(rows["phys_offset"], loaded_rows["phys_offset"])]
        _, firsts = np.unique(rows["phys_offset"], return_index=True)
        rows = rows[np.sort(firsts)]
        keep = np.ones(rows.size, np.bool_)
        if begun.after is not None:
            keep &= is_after(rows, begun.after)
        if loaded.last is not None:
            keep &= ~is_after(rows, loaded.last)
        return rows[keep]


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
