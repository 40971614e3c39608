"""Near stage: timers of the loaded slots, sorted for delivery at their millisecond.

    add ---> runs, each sorted by (due time, log offset); neighbours of similar size are merged
                |  the next whole milliseconds of all runs, merged; topics in turn within each
                v
             fronts, in the order of delivery ---> take
                ^                                            |
                +---------------- put back (refused) --------+

The order within a millisecond is fixed when the millisecond moves to a front: the first timer of
each topic in log order, then the second of each, and so on. A timer that is added to the
millisecond later is delivered after these. Fronts do not overlap in time, so timers are always
delivered in due order.

A settled timer (cancelled, moved, fired) stays as a marked row until it is skipped; it is not
counted. `take` removes timers from the stage; `put_back` adds refused ones again.

The module does not read the time. A stage belongs to the event loop's thread; only `load_slot` and
`sorted_run` may run in another thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from duemq_common.errors import CorruptStore
from timer_store import layout
from timer_store.kernels import stage as kernels
from timer_store.layout import Mask, Offsets, Rows
from timer_store.log.units import TimerUnits
from timer_store.progress import Key

NEVER_MS = 1 << 62
SMALL = 32  # up to this many rows NumPy's sort is faster than radix passes
MERGE_ROWS = 65_536  # maximum size of merged runs that do not overlap
FRONT_ROWS = 2_048  # minimum rows of a front, if as many are due
NOTHING = np.empty(0, layout.STAGED)


class Run:
    """Sorted rows from `first` to `end`; the row at `first` is pending.

    Attributes:
        rows: (n,) `layout.STAGE_ROW`.
        head_ms: Due time of the row at `first`; NEVER_MS at the end of the run.
        last_ms: Due time of the last row.
    """

    __slots__ = ("end", "first", "head_ms", "last_ms", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows, self.first, self.end = rows, 0, int(rows.size)
        self.last_ms = int(rows[-1]["due_ms"]) if rows.size else -NEVER_MS
        self.head_ms = NEVER_MS
        self.move_to(0)

    def __len__(self) -> int:
        return self.end - self.first

    def move_to(self, first: int) -> None:
        """Advance to row `first`, or to the next pending row after it."""
        if first < self.end and self.rows[first]["write_ms"] < 0:
            first = kernels.skip_settled(self.rows, first, self.end)
        self.first = first
        self.head_ms = int(self.rows[first]["due_ms"]) if first < self.end else NEVER_MS

    def bound(self, due_ms: int) -> int:
        """Return the first row that is due after `due_ms`."""
        if self.last_ms <= due_ms:
            return self.end
        return int(kernels.bound(self.rows, self.first, self.end, due_ms))

    def left(self) -> Rows:
        """Return the remaining rows."""
        return self.rows[self.first : self.end]


def sorted_run(rows: Rows) -> Run:
    """Return (n,) `layout.STAGED` rows, all pending, as a run. May run in any thread."""
    staged = np.empty(rows.size, layout.STAGE_ROW)
    kernels.copy_staged(rows, _order(rows), staged)
    return Run(staged)


def _order(rows: Rows) -> npt.NDArray[np.int32]:
    """Return the order by (due_ms, phys_offset)."""
    if rows.size == 1:
        return np.zeros(1, np.int32)
    if rows.size <= SMALL:
        return np.lexsort((rows["phys_offset"], rows["due_ms"])).astype(np.int32)
    order = np.arange(rows.size, dtype=np.int32)
    for column in ("phys_offset", "due_ms"):
        keys = np.ascontiguousarray(rows[column])
        if column == "due_ms" or not kernels.ascends(keys):
            order = _sorted_by(keys, order)
    return order


def _sorted_by(keys: Offsets, order: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return `order` sorted stably by keys[order]; a pass for each digit in which keys differ."""
    low = int(keys.min())
    spread = int(keys.max()) - low
    counts = np.empty(kernels.DIGITS, np.int64)
    for shift in range(0, spread.bit_length(), kernels.DIGIT_BITS):
        out = np.empty_like(order)
        kernels.radix_pass(keys, low, shift, order, out, counts)
        order = out
    return order


class LoadedRows(Struct, frozen=True):
    """A slot, or a part of it.

    Attributes:
        run: Timers that are delivered from this slot.
        rolls: (n,) `layout.STAGED` that are rolled into a later slot.
        joined: (n,) `layout.STAGED` that were linked into the slot during the read.
        unit_count: Number of units found; units are missing if the count of the slot is higher.
        last: Key of the last timer of a part.
        complete: Whether the slot has no pending timers after these.
        broken: Error of a chain that ends too early.
        record_bytes: Bytes of the records of `run`.
    """

    run: Run
    rolls: Rows
    joined: Rows
    unit_count: int
    num: int
    last: Key | None
    complete: bool
    broken: CorruptStore | None
    record_bytes: int


def load_slot(
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
        joined=NOTHING,
        unit_count=int(part.rows.size),
        num=num,
        last=last,
        complete=part.complete,
        broken=part.broken,
        record_bytes=int(rows["record_size"].sum(dtype=np.int64)),
    )


class NearStage:
    """Near stage of one timer store: timers of the loaded slots.

    Args:
        rows_max: Maximum number of rows.
    """

    def __init__(self, rows_max: int = 1 << 20) -> None:
        self._rows_max = rows_max
        self._runs: list[Run] = []
        self._fronts: list[Run] = []  # the last one is delivered next
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """Number of rows that may be loaded now; new timers of a loaded slot may exceed it."""
        count = sum(map(len, self._runs)) + sum(map(len, self._fronts))
        return max(self._rows_max - count, 0)

    @property
    def next_due_ms(self) -> int | None:
        """Due time of the first pending timer, None if there is none."""
        first_ms = min(self._front_ms, self._runs_ms())
        return None if first_ms == NEVER_MS else first_ms

    @property
    def _front_ms(self) -> int:
        return self._fronts[-1].head_ms if self._fronts else NEVER_MS

    def _runs_ms(self) -> int:
        return min([run.head_ms for run in self._runs], default=NEVER_MS)

    def clear(self) -> None:
        """Remove all timers."""
        self._runs.clear()
        self._fronts.clear()
        self._count = 0

    # -- in -------------------------------------------------------------------------------------

    def add(self, rows: Rows) -> None:
        """Add timers of a slot that is being loaded, or new timers of a loaded slot.

        Args:
            rows: (n,) `layout.STAGED`, in any order: pending timers that are not staged yet.
        """
        if rows.size:
            self.add_run(sorted_run(rows))

    def add_run(self, run: Run) -> None:
        """Add a run that was sorted in another thread."""
        if not run:
            return
        self._count += len(run)
        self._runs.append(run)
        while len(self._runs) > 1 and _should_merge(*self._runs[-2:]):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(older, newer))

    def put_back(self, rows: Rows) -> None:
        """Put back refused rows of the last `take`; the next `take` returns them first, in order.

        Args:
            rows: (n,) `layout.STAGED` that `take` returned; after several calls of `take`, the
                rows of all of them.
        """
        if not rows.size:
            return
        staged = np.empty(rows.size, layout.STAGE_ROW)
        kernels.copy_staged(rows, np.arange(rows.size, dtype=np.int32), staged)
        if int(rows[-1]["due_ms"]) > self._front_ms:
            self.add(rows)
            return
        self._count += int(rows.size)
        self._fronts.append(Run(staged))

    # -- out ------------------------------------------------------------------------------------

    def take(self, now_ms: int, count_max: int, bytes_max: int) -> Rows:
        """Remove and return due timers, in due order, topics in turn.

        Args:
            bytes_max: Maximum bytes of all their records; a single row may exceed it.

        Returns (n,) `layout.STAGED`, empty if nothing is due.
        """
        pieces: list[Rows] = []
        left, room = count_max, bytes_max
        while left > 0:
            until_ms = min(now_ms, self._runs_ms())
            if self._front_ms > until_ms:
                if not self._make_front(now_ms, left):
                    break
                continue
            front = self._fronts[-1]
            end = front.bound(until_ms)
            out = np.empty(min(left, end - front.first), layout.STAGED)
            limits = (left, room, 0 if pieces else 1)
            first, count, size = kernels.take_batch(front.rows, front.first, end, limits, out)
            self._move(front, first)
            left, room = left - count, room - size
            if count:
                pieces.append(out[:count])
            if first < end:
                break
        batch = _joined(pieces)
        self._count -= int(batch.size)
        return batch

    def following(self, now_ms: int, count_max: int, bytes_max: int) -> Rows:
        """Return the timers that the next `take` returns if nothing changes; remove nothing.

        They may be fewer, or none, because only timers that are already in order are examined.
        """
        until_ms = min(now_ms, self._runs_ms())
        if self._front_ms > until_ms:
            return NOTHING
        front = self._fronts[-1]
        end = front.bound(until_ms)
        out = np.empty(min(count_max, end - front.first), layout.STAGED)
        _, count, _ = kernels.take_batch(
            front.rows, front.first, end, (count_max, bytes_max, 1), out
        )
        return out[:count]

    def _move(self, front: Run, first: int) -> None:
        front.move_to(first)
        if not front:
            self._fronts.pop()

    def _make_front(self, now_ms: int, count: int) -> bool:
        """Move the next whole milliseconds of the runs to a front; return False if none is due."""
        limit_ms = min(now_ms, self._front_ms - 1)
        runs = [run for run in self._runs if run.head_ms <= limit_ms]
        if not runs:
            return False
        count = max(count, FRONT_ROWS)
        for run in runs:
            if len(run) > count:
                limit_ms = min(limit_ms, int(run.rows[run.first + count - 1]["due_ms"]))
        front: Run | None = None
        for run in runs:
            end = run.bound(limit_ms)
            if end > run.first:
                part = Run(run.rows[run.first : end])
                front = part if front is None else _merged(front, part)
                run.move_to(end)
        self._runs = [run for run in self._runs if run]
        assert front is not None
        self._fronts.append(_in_turn(front))
        return True

    def pending_rows(self) -> Iterator[Rows]:
        """Yield the pending rows, (n,) `layout.STAGE_ROW`, in unordered pieces. Read only."""
        for run in (*self._runs, *self._fronts):
            left = run.left()
            settled = left["write_ms"] < 0
            yield left[~settled] if settled.any() else left

    # -- settled before their time --------------------------------------------------------------

    def settle(self, phys_offsets: Offsets, due_ms: Offsets) -> Mask:
        """Settle timers; return which of them were pending in the stage.

        Args:
            phys_offsets: (n,) i8.
            due_ms: (n,) i8: due times, by which rows are found.
        """
        is_pending = self._find(phys_offsets, due_ms, settle=True)
        settled = int(np.count_nonzero(is_pending))
        if settled:
            self._count -= settled
            for runs in (self._runs, self._fronts):
                for run in runs:
                    run.move_to(run.first)
                runs[:] = [run for run in runs if run]
        return is_pending

    def contains(self, phys_offsets: Offsets, due_ms: Offsets) -> Mask:
        """Return which timers are pending in the stage. Arguments: see `settle`."""
        return self._find(phys_offsets, due_ms, settle=False)

    def _find(self, phys_offsets: Offsets, due_ms: Offsets, *, settle: bool) -> Mask:
        is_pending = np.zeros(phys_offsets.size, np.bool_)
        if not self._count or not is_pending.size:
            return is_pending
        phys_offsets = np.ascontiguousarray(phys_offsets, np.int64)
        due_ms = np.ascontiguousarray(due_ms, np.int64)
        for runs, turns in ((self._fronts, 1), (self._runs, 0)):
            for run in runs:
                span = (run.first, run.end, turns)
                kernels.find(run.rows, span, phys_offsets, due_ms, settle, is_pending)
        return is_pending


def _should_merge(older: Run, newer: Run) -> bool:
    """Return whether to merge two runs: of similar size, and overlapping in time or small."""
    if len(older) > 2 * len(newer):
        return False
    apart = older.last_ms < newer.head_ms or newer.last_ms < older.head_ms
    return not apart or len(older) + len(newer) <= MERGE_ROWS


def _merged(older: Run, newer: Run) -> Run:
    out = np.empty(len(older) + len(newer), layout.STAGE_ROW)
    count = kernels.merge(older.left(), newer.left(), out)
    return Run(out[:count])


def _in_turn(run: Run) -> Run:
    """Return the run with topics in turn inside each millisecond."""
    rows = run.left()
    if not kernels.is_mixed(rows):
        return run
    spots, ranks = np.empty((2, rows.size), np.int32)
    starts = np.empty(rows.size + 1, np.int32)
    table = np.zeros((_table_size(rows.size), 2), np.int32)
    out = np.empty(rows.size, layout.STAGE_ROW)
    kernels.interleave(rows, spots, ranks, starts, table, out)
    return Run(out)


def _table_size(count: int) -> int:
    """Return the size of a hash table for `count` entries: a power of two, half empty."""
    return 1 << max(2 * count - 1, 1).bit_length()


def _joined(pieces: list[Rows]) -> Rows:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else NOTHING
