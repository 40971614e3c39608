"""Units of timers in timer log and wheel: link, find, read and settle.

    wheel   slot --last_pos--> unit --prev_pos--> unit --prev_pos--> -1       newest first
    log     | a | b | a | c | b | a |...                                      `add` appends

`add` changes slots in memory and appends to the log: both or neither. Units are checked when they
are read (`kernels.chain`); a broken chain is reported as an error with its position, and the units
before it are returned. Units of another lap, of settled timers, and duplicate units of a record are
not returned.

Source: org.apache.rocketmq.store.timer.TimerMessageStore
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from duemq_common.errors import CorruptStore
from message_store.ranges import distinct, is_in
from timer_store import layout
from timer_store.kernels import chain, first_due
from timer_store.kernels import wheel as kernels
from timer_store.layout import NO_OFFSETS, UNIT_BYTES, Offsets, Rows
from timer_store.log import repair
from timer_store.log.chain_check import chain_error, cursors_of
from timer_store.log.repair import Relinked
from timer_store.log.timer_log import SCAN_UNITS, TimerLog, UnitFile
from timer_store.log.wheel import TimerWheel

ADD_ROWS: Final = 16_384  # maximum rows that are linked and written at once
PART_UNITS: Final = 1 << 20  # units of a slot per part
LONG_MAX: Final = (1 << 63) - 1


class SlotRows(NamedTuple):
    """Timers of one slot.

    Attributes:
        rows: (n,) `layout.STAGED`; due_ms is 0 for a rolled unit of an Apache broker, because only
            its record has the due time.
        markers: (n,) `layout.STAGED`: markers of this slot, without those that roll.
        complete: Whether the slot has no pending units after these.
        broken: Error of a chain that ends too early, None for a complete chain.
    """

    rows: Rows
    markers: Rows
    complete: bool
    broken: CorruptStore | None


class TimerUnits:
    """Owner of a timer log and a wheel. Belongs to one thread.

    Args:
        log: Timer log; the caller loads it.
        window_ms: Roll window; 1 if unknown, so that every rolled timer matches it.
    """

    def __init__(self, log: TimerLog, wheel: TimerWheel, window_ms: int = 1) -> None:
        self.log, self.wheel, self.window_ms = log, wheel, window_ms
        self._out = np.empty(ADD_ROWS * UNIT_BYTES, np.uint8)
        self._undo = np.empty((ADD_ROWS, kernels.UNDO_COLUMNS), np.int64)

    @property
    def precision_ms(self) -> int:
        """Width of a slot in ms."""
        return self.wheel.precision_ms

    # -- add ------------------------------------------------------------------------------------

    def add(self, rows: Rows, *, write_ms: int, read_ms: int) -> int:
        """Append a unit for each row and link it into its slot; return the number of rows done.

        It stops before a row whose slot has undelivered timers of another lap, and before a row a
        whole lap ahead. A row before `read_ms` is linked into that slot and keeps its due time.

        Args:
            rows: (n,) `layout.TIMED`; broken rows are counted and get no unit.
            write_ms: Current time, written into the units rounded down to the precision.
            read_ms: Start of the first slot that is not completely delivered.

        Raises:
            OSError: The disk refused the first of them; log and wheel are as they were.

        Source: TimerMessageStore.doEnqueue
        """
        assert read_ms >= self.precision_ms
        added = 0
        while added < rows.size:
            try:
                room = self.log.room()
                if not room:
                    self.log.close_file()
                    continue
                part = rows[added : added + min(room, ADD_ROWS)]
                done = self._add_part(part, write_ms, read_ms)
            except OSError:
                if not added:
                    raise
                return added
            added += done
            if done < part.size:
                break
        return added

    def _add_part(self, rows: Rows, write_ms: int, read_ms: int) -> int:
        precision_ms = self.wheel.precision_ms
        data, pages = self.wheel.data, self.wheel.pages
        adding = kernels.Adding(
            self.log.end,
            write_ms - write_ms % precision_ms,
            read_ms - read_ms % precision_ms,
            precision_ms,
        )
        done, made = kernels.link(rows, adding, data, pages, self._out, self._undo)
        if made:
            try:
                self.log.append(self._out[: made * UNIT_BYTES].data)
            except OSError:
                kernels.unlink(self._undo, done, data, pages)
                raise
        return int(done)

    # -- read -----------------------------------------------------------------------------------

    def read_slot(self, slot_ms: int, *, skip: Offsets = NO_OFFSETS) -> SlotRows:
        """Return the pending timers in the slot that covers `slot_ms`, oldest unit first.

        Args:
            skip: (n,) log offsets, ascending, of timers that are settled.

        Source: TimerMessageStore.dequeue
        """
        return self._read_up_to(slot_ms, skip, LONG_MAX)[0]

    def read_slot_part(
        self,
        slot_ms: int,
        count_max: int,
        *,
        after: tuple[int, int] | None = None,
        skip: Offsets = NO_OFFSETS,
    ) -> SlotRows:
        """Return a complete slot if it has at most `count_max` units, otherwise its next part.

        A part has the timers that are due first, by (due_ms, phys_offset), and no markers. Each
        part needs a walk over the complete slot, and memory for this part only.

        Args:
            after: Last timer of the previous part.
        """
        assert count_max > 0
        if after is None:
            slot_rows, full = self._read_up_to(slot_ms, skip, count_max)
            if not full:
                return slot_rows
            after = (-1, -1)
        return self._read_first(slot_ms, count_max, after, skip)

    def read_parts(self, slot_ms: int, *, skip: Offsets = NO_OFFSETS) -> Iterator[Rows]:
        """Yield the pending timers in a slot, (n,) `layout.STAGED`, in parts.

        If the chain is broken, the timers after the fault are omitted without an error.
        """
        after: tuple[int, int] | None = None
        while True:
            part = self.read_slot_part(slot_ms, PART_UNITS, after=after, skip=skip)
            yield part.rows
            if part.complete or not part.rows.size:
                return
            after = int(part.rows[-1]["due_ms"]), int(part.rows[-1]["phys_offset"])

    def _read_up_to(self, slot_ms: int, skip: Offsets, count_max: int) -> tuple[SlotRows, bool]:
        """Return a slot's units, and whether the slot has more than `count_max` of them."""
        slot = self.wheel.slot(slot_ms)
        out = np.empty(min(max(slot.num, 0) + 16, count_max), layout.STAGED)
        walk = new_walk(slot.last_pos)
        broken = None
        while (file := self._file_at(walk)) is not None:
            key = (slot.tick, self.precision_ms, self.window_ms)
            state = chain.collect(file.data, file.base, key, skip, walk, out)
            if walk[chain.WALK_FAULT]:
                break
            if state == chain.WALK_FULL:
                if out.size == count_max:
                    return SlotRows(out[:0], out[:0], False, None), True
                out = _grown(out, min(out.size * 2, count_max))
        if walk[chain.WALK_FAULT]:
            broken = self._broken(walk)
        rows, markers = _pending_rows(out[out.size - int(walk[chain.WALK_ROWS]) :], walk)
        return SlotRows(rows, markers, True, broken), False

    def _file_at(self, walk: Offsets) -> UnitFile | None:
        """Return the file in which a walk continues, None at the end of the walk.

        A position after the end of the log is a fault.
        """
        pos = int(walk[chain.WALK_POS])
        if pos < self.log.min_pos:
            return None
        if pos >= self.log.end:
            walk[chain.WALK_FAULT] = chain.FAULT_PLACE
            return None
        return self.log.files[self.log.index_of(pos)]

    def _broken(self, walk: Offsets) -> CorruptStore:
        return chain_error(self.log, int(walk[chain.WALK_POS]), int(walk[chain.WALK_FAULT]))

    def _read_first(
        self, slot_ms: int, count_max: int, after: tuple[int, int], skip: Offsets
    ) -> SlotRows:
        heap = np.empty((count_max, 3), np.int64)
        walk = self._walk_first(slot_ms, after, skip, heap)
        if walk[chain.WALK_MIXED] and walk[chain.WALK_SETTLED]:  # a record may have two units
            skip = distinct(skip, self._settled_in(slot_ms))
            walk = self._walk_first(slot_ms, after, skip, heap)
        count = int(walk[chain.WALK_ROWS])
        heap = heap[: min(count, count_max)]
        heap = heap[np.lexsort((heap[:, 2], heap[:, 1], heap[:, 0]))]
        second = np.zeros(len(heap), np.bool_)
        second[1:] = (heap[1:, :2] == heap[:-1, :2]).all(axis=1)
        rows = self.read(heap[~second, 2])
        broken = self._broken(walk) if walk[chain.WALK_FAULT] else None
        return SlotRows(rows, rows[:0], count <= count_max, broken)

    def _walk_first(
        self, slot_ms: int, after: tuple[int, int], skip: Offsets, heap: Offsets
    ) -> Offsets:
        slot = self.wheel.slot(slot_ms)
        walk = new_walk(slot.last_pos)
        key = (slot.tick, self.precision_ms, self.window_ms)
        while (file := self._file_at(walk)) is not None:
            first_due.collect_first(file.data, file.base, key, after, skip, walk, heap)
            if walk[chain.WALK_FAULT]:
                break
        return walk

    def _settled_in(self, slot_ms: int) -> Offsets:
        """Return the records of a slot's settled units."""
        parts = [NO_OFFSETS]
        walk = new_walk(self.wheel.slot(slot_ms).last_pos)
        out = np.empty(SCAN_UNITS, layout.STAGED)
        key = (self.wheel.tick(slot_ms), self.precision_ms, self.window_ms)
        while (file := self._file_at(walk)) is not None and not walk[chain.WALK_FAULT]:
            chain.collect(file.data, file.base, key, NO_OFFSETS, walk, out)
            rows = out[out.size - int(walk[chain.WALK_ROWS]) :]
            parts.append(rows["phys_offset"][rows["state"] == layout.STAGED_SETTLED])
            walk[chain.WALK_ROWS] = 0
        return distinct(*parts)

    def read(self, positions: Offsets) -> Rows:
        """Return the units at log positions as (n,) `layout.STAGED`, in the same order.

        Raises:
            CorruptStore: There is no unit at one of the positions.
        """
        rows = np.zeros(positions.size, layout.STAGED)
        rows["pos"] = -1
        for file in self._files_of(positions):
            chain.stage_at(file.data, file.base, positions, self.precision_ms, rows)
        missing = np.flatnonzero(rows["pos"] < 0)
        if missing.size:
            raise self.log.fault(int(positions[missing[0]]), "there is no unit")
        return rows

    def _files_of(self, positions: Offsets) -> list[UnitFile]:
        """Return the files from the first to the last of the positions."""
        if not positions.size:
            return []
        files, size = self.log.files, self.log.file_bytes
        low, high = int(positions.min()) - self.log.min_pos, int(positions.max()) - self.log.min_pos
        return files[max(low // size, 0) : max(high // size + 1, 0)]

    # -- single timers --------------------------------------------------------------------------

    def find(self, phys_offsets: Offsets, slot_ms: Offsets | int) -> Offsets:
        """Return the positions of timers' units in the timer log, -1 for timers without one.

        Settled units are not found. Each slot is walked at most once.

        Args:
            phys_offsets: (n,) log offsets of their records, in any order.
            slot_ms: (n,) or a single value: a time that the unit's slot covers.
        """
        ticks = np.empty(phys_offsets.size, np.int64)
        np.floor_divide(slot_ms, self.precision_ms, out=ticks)
        positions = np.full(phys_offsets.size, -1, np.int64)
        if not phys_offsets.size:
            return positions
        self._find_in_log_order(np.ascontiguousarray(phys_offsets), ticks, positions)
        left = np.flatnonzero(positions < 0)
        if left.size:
            positions[left] = self._find_in_chains(phys_offsets[left], ticks[left])
        return positions

    def _find_in_log_order(self, offsets: Offsets, ticks: Offsets, positions: Offsets) -> None:
        """Find units by binary search, because most units are in the order of their records."""
        files, precision_ms = self.log.files, self.precision_ms
        files = [file for file in files if self.log.end_in(file) > file.base]
        if len(files) == 1:
            [file] = files
            end = self.log.end_in(file)
            chain.find_in_log_order(
                file.data, file.base, end, offsets, ticks, precision_ms, positions
            )
            return
        firsts = [self._first_record(file) for file in files]
        which = np.searchsorted(np.maximum.accumulate(firsts), offsets, "right") - 1
        for index in np.unique(which[which >= 0]).tolist():
            file, in_file = files[index], np.flatnonzero(which == index)
            hits = np.full(in_file.size, -1, np.int64)
            end = self.log.end_in(file)
            chain.find_in_log_order(
                file.data, file.base, end, offsets[in_file], ticks[in_file], precision_ms, hits
            )
            positions[in_file] = hits

    def _first_record(self, file: UnitFile) -> int:
        """Return the log offset of the first unit's record in a file, 0 if the unit is damaged."""
        try:
            return int(self.log.unit(file.base)["phys_offset"])
        except CorruptStore:
            return 0

    def _find_in_chains(self, offsets: Offsets, ticks: Offsets) -> Offsets:
        """Find units by walking their slots."""
        order = np.lexsort((offsets, ticks))
        offsets, ticks = offsets[order], ticks[order]
        is_other = np.ones(offsets.size, np.bool_)  # differs from the previous one
        is_other[1:] = (np.diff(offsets) != 0) | (np.diff(ticks) != 0)
        out = np.empty(offsets.size, np.int64)
        out[order] = self._find_ordered(offsets[is_other], ticks[is_other])[np.cumsum(is_other) - 1]
        return out

    def _find_ordered(self, offsets: Offsets, ticks: Offsets) -> Offsets:
        """Return the positions of units, -1: none; arguments ascend by tick, then by record."""
        positions = np.full(offsets.size, -1, np.int64)
        starts = np.flatnonzero(np.diff(ticks, prepend=ticks[0] - 1))
        cursors = cursors_of(self.log, self.wheel, ticks[starts])
        cursors["first"], cursors["end"] = starts, np.append(starts[1:], offsets.size)
        cursors["count"] = cursors["end"] - cursors["first"]
        for file in reversed(self.log.files):
            chain.match(file.data, file.base, cursors, self.precision_ms, offsets, positions)
        return positions

    def settle(self, positions: Offsets, *, copied: bool = False) -> int:
        """Settle units before their due time; return the number of settled timers.

        Units get tombstones, which the next `log.sync` brings to the disk. Markers are not counted.
        Settled units and units in removed files do not change.

        Args:
            positions: (n,) in the timer log, in any order.
            copied: A copy of the unit was added to its slot and represents the timer.

        Raises:
            OSError: The log cannot be written; some units may have tombstones, no count changed.
            CorruptStore: There is no unit at one of the positions; nothing was written.
        """
        positions, due, ticks = self._tombstones(positions, copied=copied)
        self.log.write_tombstones(positions, due)
        kernels.add_num(self.wheel.data, self.wheel.pages, ticks, -1)
        return int(np.count_nonzero(ticks))

    def discount(self, positions: Offsets) -> None:
        """Decrease the counts of slots: the first step of `settle`.

        Raises:
            CorruptStore: There is no unit at one of the positions; nothing has changed.
        """
        _, _, ticks = self._tombstones(positions, copied=False)
        kernels.add_num(self.wheel.data, self.wheel.pages, ticks, -1)

    def write_tombstones(self, positions: Offsets, *, copied: bool = False) -> None:
        """Write tombstones to units, the second step of `settle`. May run in any thread.

        Args:
            copied: as in `settle`.

        Raises:
            OSError, CorruptStore: As `settle`.
        """
        positions, due, _ = self._tombstones(positions, copied=copied)
        self.log.write_tombstones(positions, due)

    def _tombstones(self, positions: Offsets, *, copied: bool) -> tuple[Offsets, Offsets, Offsets]:
        """Return (positions, ascending; new due_ms of their units; ticks whose counts decrease)."""
        positions = positions[positions >= self.log.min_pos]
        if (np.diff(positions) <= 0).any():  # often they ascend already
            positions = distinct(positions)
        due, ticks = np.zeros(positions.size, np.int64), np.zeros(positions.size, np.int64)
        if positions.size and int(positions[-1]) >= self.log.end:
            raise self.log.fault(int(positions[-1]), "there is no unit")
        for file in self._files_of(positions):
            low, high = np.searchsorted(positions, [file.base, file.base + file.size]).tolist()
            in_file, width_ms = positions[low:high], self.precision_ms
            state = chain.settle(
                file.data, file.base, in_file, width_ms, copied, due[low:high], ticks[low:high]
            )
            if state < 0:
                raise self.log.fault(int(in_file[-1 - state]), "there is no unit")
        return positions, due, ticks

    # -- after a crash --------------------------------------------------------------------------

    def repair(self, log_end: int) -> list[CorruptStore]:
        """Truncate the timer log to `log_end` and walk back the slots that point after it.

        For this and the next three methods, see `timer_store.log.repair`.
        """
        return repair.repair(self.log, self.wheel, log_end)

    def recount(self, slot_ms: Offsets) -> None:
        """Count the timers of some slots again."""
        repair.recount(self.log, self.wheel, slot_ms)

    def check(self, read_ms: int) -> list[CorruptStore]:
        """Return the faults of the slots from `read_ms` on."""
        return repair.check(self.log, self.wheel, read_ms)

    def relink(self, from_ms: int) -> Relinked:
        """Rebuild every slot from `from_ms` on from the log."""
        return repair.relink(self.log, self.wheel, from_ms, window_ms=self.window_ms)

    def clear(self) -> None:
        """Remove all units and empty all slots, to rebuild them from the queue."""
        self.wheel.clear()
        self.log.truncate(self.log.min_pos)

    def close(self) -> None:
        """Close log and wheel; changes that were not written back are lost."""
        self.log.close()
        self.wheel.close()


def _grown(out: Rows, size: int) -> Rows:
    """Return a larger array with the same rows at its end."""
    larger = np.empty(size, out.dtype)
    larger[size - out.size :] = out
    return larger


def _pending_rows(rows: Rows, walk: Offsets) -> tuple[Rows, Rows]:
    """Return (timers, markers) of the units of a walk, without settled and duplicate units."""
    markers = rows[:0]
    if walk[chain.WALK_MIXED]:
        rows = _without_duplicates(rows)
    if walk[chain.WALK_SETTLED]:
        rows = rows[rows["state"] == layout.STAGED_PENDING]
    if walk[chain.WALK_MARKERS]:
        roll_or_delete = layout.MAGIC_ROLL | layout.MAGIC_DELETE
        is_marker = (rows["magic"] & roll_or_delete) == layout.MAGIC_DELETE
        rows, markers = rows[~is_marker], rows[is_marker]
    return rows, markers


def _without_duplicates(rows: Rows) -> Rows:
    """Return the first unit of each record, without records that have a settled unit."""
    settled = rows["state"] == layout.STAGED_SETTLED
    if settled.any():
        rows = rows[~is_in(rows["phys_offset"], rows["phys_offset"][settled])]
    _, firsts = np.unique(rows["phys_offset"], return_index=True)
    return rows if firsts.size == rows.size else rows[np.sort(firsts)]


def new_walk(last_pos: int) -> Offsets:
    """Return the start of a walk along one chain."""
    walk = np.zeros(chain.WALK_SIZE, np.int64)
    walk[chain.WALK_POS], walk[chain.WALK_PHYS] = last_pos, LONG_MAX
    return walk
