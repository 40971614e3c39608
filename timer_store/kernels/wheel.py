"""Compiled wheel: its slots in their byte order on disk, and the units linked into them.

next_live, ...     scan slots
link               encodes rows as units; each points at the previous one of its slot, which points
                   at the newest
unlink             restores the slots if the units cannot be written
write_tombstones   marks units as settled
relink             rebuilds the wheel from the units of a file, and lists wrong pointers

`pages` has a byte of PAGE_* flags for each page of 4096 bytes. Scans skip unused pages, so that the
memory of an empty wheel is not touched.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_i8, put_i4, put_i8
from message_store.kernels.kernel import kernel
from timer_store.kernels.chain import (
    DELAY_AT,
    DUE_AT,
    HASH_AT,
    MAGIC_AT,
    PHYS_AT,
    PREV_AT,
    RECORD_AT,
    WRITE_AT,
    slot_ms_of,
    times_fault,
    unit_fault,
)
from timer_store.layout import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    SLOT_BYTES,
    TIMED_BROKEN,
    TIMED_MARKER,
    TIMER_SLOT,
    UNIT_BYTES,
    WHEEL_SLOTS,
    Rows,
)

PAGE_BYTES: Final = 4_096
PAGE_SLOTS: Final = PAGE_BYTES // SLOT_BYTES
PAGE_USED, PAGE_CHANGED = 1, 2
assert WHEEL_SLOTS % PAGE_SLOTS == 0, "a page never wraps around"

assert TIMER_SLOT.fields is not None
TICK_AT, FIRST_AT, LAST_AT, NUM_AT, SLOT_MAGIC_AT = (
    int(TIMER_SLOT.fields[name][1]) for name in ("tick", "first_pos", "last_pos", "num", "magic")
)
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
# A slot before `link` changed it: its position in the wheel, and its fields.
UNDO_AT, UNDO_TICK, UNDO_FIRST, UNDO_LAST, UNDO_NUM = range(5)
UNDO_COLUMNS = 5
UNTOUCHED = -1  # in UNDO_AT: the row changed no slot
PREFETCH_ROWS = 32  # about the number of memory reads that a core overlaps
FIX_TOO_FAR = -2  # in place of a prev_pos: the unit is more than a lap ahead


class Adding(NamedTuple):
    """Values that all units of a `link` share."""

    log_end: int  # log position of the first unit
    write_ms: int
    read_ms: int  # the first slot that is not completely delivered
    precision_ms: int


class Relinking(NamedTuple):
    """Values that all units of a `relink` share."""

    first_tick: int  # slots before it stay empty
    precision_ms: int
    window_ms: int  # roll window
    min_pos: int  # first position of the log


@kernel
def slot_at(tick: int) -> int:
    """Return the byte position of the slot of a tick. Source: TimerWheel.getSlotIndex"""
    return tick % WHEEL_SLOTS * SLOT_BYTES


@kernel
def put_slot(
    wheel: Bytes, pages: Bytes, position: int, tick: int, first_pos: int, last_pos: int, num: int
) -> None:
    """Write a slot, except its magic. Source: TimerWheel.putSlot"""
    put_i8(wheel, position + TICK_AT, tick)
    put_i8(wheel, position + FIRST_AT, first_pos)
    put_i8(wheel, position + LAST_AT, last_pos)
    put_i4(wheel, position + NUM_AT, num)
    pages[position // PAGE_BYTES] = PAGE_USED | PAGE_CHANGED


@kernel
def add_num(wheel: Bytes, pages: Bytes, ticks: Any, by: int) -> None:
    """Add `by` to the number of timers in the slots of `ticks` that belong to that lap."""
    for i in range(ticks.size):
        position = slot_at(ticks[i])
        # after a lap the slot belongs to another time
        if ticks[i] > 0 and get_i8(wheel, position + TICK_AT) == ticks[i]:
            put_i4(wheel, position + NUM_AT, get_i4(wheel, position + NUM_AT) + by)
            pages[position // PAGE_BYTES] |= PAGE_CHANGED


@kernel
def next_live(wheel: Bytes, pages: Bytes, first_tick: int, count: int) -> int:
    """Return the first of `count` ticks from `first_tick` whose slot has units, -1 without one."""
    i = np.int64(0)
    while i < count:
        tick = first_tick + i
        position = slot_at(tick)
        if (
            pages[position // PAGE_BYTES] & PAGE_USED == 0
        ):  # skip to the first slot of the next page
            i += PAGE_SLOTS - position // SLOT_BYTES % PAGE_SLOTS
            continue
        if get_i8(wheel, position + TICK_AT) == tick and get_i8(wheel, position + LAST_AT) >= 0:
            return tick
        i += 1
    return np.int64(-1)


@kernel
def live_slots(wheel: Bytes, pages: Bytes, first_tick: int, count: int, out: Rows) -> Any:
    """List the slots with units among `count` ticks from `first_tick` on, in the order of time.

    Args:
        out: (n,) layout.SLOT.

    Returns (listed slots, passed ticks: fewer than `count` if `out` is full).
    """
    n = 0
    i = np.int64(0)
    while i < count:
        tick = first_tick + i
        position = slot_at(tick)
        if (
            pages[position // PAGE_BYTES] & PAGE_USED == 0
        ):  # skip to the first slot of the next page
            i += PAGE_SLOTS - position // SLOT_BYTES % PAGE_SLOTS
            continue
        if get_i8(wheel, position + TICK_AT) == tick and get_i8(wheel, position + LAST_AT) >= 0:
            if n == out.size:
                return n, i
            out[n]["tick"] = tick
            out[n]["first_pos"] = get_i8(wheel, position + FIRST_AT)
            out[n]["last_pos"] = get_i8(wheel, position + LAST_AT)
            out[n]["num"] = get_i4(wheel, position + NUM_AT)
            out[n]["magic"] = get_i4(wheel, position + SLOT_MAGIC_AT)
            n += 1
        i += 1
    return n, count


@kernel
def stray_slots(wheel: Bytes, pages: Bytes, end_tick: int) -> int:
    """Return the number of slots with an impossible tick: `end_tick` or more, or negative."""
    stray_count = 0
    for page in range(pages.size):
        if pages[page] & PAGE_USED:
            for index in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SLOT_BYTES):
                # read each slot of a used page; unused pages are not touched
                tick = get_i8(wheel, index + TICK_AT)
                if tick >= end_tick or tick < 0:
                    stray_count += 1
    return stray_count


@kernel
def slots_after(wheel: Bytes, pages: Bytes, log_end: int, out: Rows) -> int:
    """List the slots of any time whose newest unit is at or after `log_end`.

    Args:
        out: (n,) layout.CURSOR out: `tick`, and in `pos` the newest unit.

    Returns the number of such slots; those beyond the size of `out` are not listed.
    """
    n = 0
    for page in range(pages.size):
        if pages[page] & PAGE_USED:
            for index in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SLOT_BYTES):
                tick, last = get_i8(wheel, index + TICK_AT), get_i8(wheel, index + LAST_AT)
                # the tick must be one of this slot: damage may have changed it
                if tick > 0 and last >= log_end and slot_at(tick) == index:
                    if n < out.size:
                        out[n]["tick"], out[n]["pos"] = tick, last
                    n += 1
    return n


@kernel
def set_slots(wheel: Bytes, pages: Bytes, ticks: Any, last_pos: Any, nums: Any) -> None:
    """Set the newest unit (below 0 empties the slot) and the number of timers of slots."""
    for i in range(ticks.size):
        position = slot_at(ticks[i])
        if last_pos[i] < 0:
            put_slot(wheel, pages, position, 0, 0, 0, 0)
        else:
            # the oldest unit cannot be newer than the newest
            first = min(get_i8(wheel, position + FIRST_AT), last_pos[i])
            put_slot(wheel, pages, position, ticks[i], first, last_pos[i], nums[i])


@kernel
def put_unit(out: Bytes, position: int, prev_pos: int, magic: int, times: Any, row: Any) -> None:
    """Write one unit; `times`: (write_ms, slot_ms). Source: TimerLog.append"""
    write_ms, slot_ms = times
    delay_ms = slot_ms - write_ms
    # After an outage of weeks the difference does not fit into 32 bits. Only the sum of both
    # fields determines the slot, so write_ms gets the complete time.
    if delay_ms < INT_MIN or delay_ms > INT_MAX:
        write_ms, delay_ms = slot_ms, np.int64(0)
    put_i4(out, position, UNIT_BYTES)
    put_i8(out, position + PREV_AT, prev_pos)
    put_i4(out, position + MAGIC_AT, magic)
    put_i8(out, position + WRITE_AT, write_ms)
    put_i4(out, position + DELAY_AT, delay_ms)
    put_i8(out, position + PHYS_AT, row["phys_offset"])
    put_i4(out, position + RECORD_AT, row["record_size"])
    put_i4(out, position + HASH_AT, row["topic_hash"])
    put_i8(out, position + DUE_AT, row["due_ms"])


@kernel
def prefetch_slots(rows: Rows, first: int, wheel: Bytes, adding: Adding, undo: Any) -> None:
    """Read from the slots of the next PREFETCH_ROWS rows, so that `link` finds them in the cache.

    The slots of a batch are scattered over the wheel, so `link` alone would wait for memory at each
    row. These reads are independent, so the processor overlaps them. The result is stored in
    `undo`, which `link` overwrites, to keep the compiler from removing the reads.
    """
    for i in range(first, min(first + PREFETCH_ROWS, rows.size)):
        slot_start = slot_at(max(rows[i]["slot_ms"], adding.read_ms) // adding.precision_ms)
        undo[i, UNDO_AT], undo[i, UNDO_TICK] = slot_start, get_i8(wheel, slot_start + TICK_AT)


@kernel
def link(rows: Rows, adding: Adding, wheel: Bytes, pages: Bytes, out: Bytes, undo: Any) -> Any:
    """Encode rows as units and link them into their slots.

    Args:
        rows: (n,) layout.TIMED; TIMED_BROKEN rows are skipped.
        out: (n * 52,) u1 out: the units.
        undo: (n, UNDO_COLUMNS) i8 out: the slots as they were.

    Returns (linked rows, new units). It stops before a row whose slot has undelivered timers of
    another lap, and before a row more than one lap ahead. Source: TimerMessageStore.doEnqueue
    """
    pos, write_ms = adding.log_end, adding.write_ms
    read_ms, precision_ms = adding.read_ms, adding.precision_ms
    read_tick = read_ms // precision_ms
    units = 0
    for i in range(rows.size):
        if i % PREFETCH_ROWS == 0:
            prefetch_slots(rows, i, wheel, adding, undo)
        row = rows[i]
        undo[i, UNDO_AT] = UNTOUCHED
        # it goes to quarantine and needs no unit
        if row["kind"] == TIMED_BROKEN:
            continue
        slot_ms = max(row["slot_ms"], read_ms)  # an overdue timer goes into the slot being read
        tick = slot_ms // precision_ms
        start = slot_at(tick)
        old_tick = get_i8(wheel, start + TICK_AT)
        # Stop at a slot that an undelivered lap still uses, or that is a whole lap ahead.
        if tick - read_tick >= WHEEL_SLOTS or (old_tick != tick and old_tick >= read_tick):
            return i, units
        first, last = get_i8(wheel, start + FIRST_AT), get_i8(wheel, start + LAST_AT)
        num = np.int64(get_i4(wheel, start + NUM_AT))
        # `unlink` restores these if the log cannot be written
        undo[i, UNDO_AT], undo[i, UNDO_TICK] = start, old_tick
        undo[i, UNDO_FIRST], undo[i, UNDO_LAST], undo[i, UNDO_NUM] = first, last, num
        # A slot that still has the units of a delivered lap begins a new chain.
        if old_tick != tick or last < 0:
            first, last, num = pos, np.int64(-1), np.int64(0)
        magic = MAGIC_DEFAULT
        # In a slot before that of its due time, a timer is rolled when the slot is loaded.
        if tick < (row["due_ms"] - 1) // precision_ms:
            magic |= MAGIC_ROLL
        if row["kind"] == TIMED_MARKER:
            # a marker, which does not count as a timer
            magic |= MAGIC_DELETE
        else:
            num += 1
        put_unit(out, units * UNIT_BYTES, last, magic, (write_ms, slot_ms), row)
        put_slot(wheel, pages, start, tick, first, pos, num)
        pos += UNIT_BYTES
        units += 1
    return rows.size, units


@kernel
def unlink(undo: Any, count: int, wheel: Bytes, pages: Bytes) -> None:
    """Restore the slots as they were before the first `count` rows of a `link`."""
    # Backwards, because several rows may have changed one slot: the first has its oldest state.
    for i in range(count - 1, -1, -1):
        slot = undo[i]
        if slot[UNDO_AT] != UNTOUCHED:
            put_slot(
                wheel,
                pages,
                slot[UNDO_AT],
                slot[UNDO_TICK],
                slot[UNDO_FIRST],
                slot[UNDO_LAST],
                slot[UNDO_NUM],
            )


@kernel
def write_tombstones(block: Bytes, base: int, positions: Any, due: Any) -> None:
    """Write tombstones to units; an Apache broker reads them as markers.

    Args:
        block: in and out: bytes of the log from position `base` on.
        positions: (n,) i8: log positions of the units.
        due: (n,) i8: new due_ms of each unit.

    Source: TimerDequeueGetMessageService.run
    """
    for i in range(positions.size):
        put_i4(block, positions[i] - base + MAGIC_AT, MAGIC_DELETE)
        put_i8(block, positions[i] - base + DUE_AT, due[i])


@kernel
def relink(data: Bytes, span: Any, wheel: Bytes, pages: Bytes, into: Relinking, fixes: Any) -> Any:
    """Link the units of a file into a cleared wheel, in the order of the log.

    Args:
        span: (log position of data[0], position to begin at, position to end at).
        fixes: (n, 2) i8 out: position of a unit and its correct prev_pos, or FIX_TOO_FAR for a
            unit that is not linked.

    Returns (position to continue at, number of fixes). It stops when `fixes` is full.
    Source: TimerMessageStore.recoverAndRevise
    """
    base, pos, end = span
    n = 0
    while pos < end and n < fixes.shape[0]:
        start = pos - base
        # The slot of a unit whose times do not match is unknown.
        fault = unit_fault(data, start, pos)
        if fault != 0 or times_fault(data, start, into.precision_ms, into.window_ms) != 0:
            return pos, n
        tick = slot_ms_of(data, start) // into.precision_ms
        # its slot would be that of another lap
        if tick - into.first_tick >= WHEEL_SLOTS:
            fixes[n, 0], fixes[n, 1] = pos, FIX_TOO_FAR
            n += 1
        # earlier slots were delivered: their units stay out of the wheel
        elif tick >= into.first_tick:
            # the order of the log is that of the chain, so the previous unit of a slot is known
            # here
            prev = append_to_chain(data, start, pos, tick, wheel, pages)
            named = get_i8(data, start + PREV_AT)
            # A pointer into a removed file is not wrong: the chain ends there.
            if named != prev and not (prev < 0 and named < into.min_pos):
                fixes[n, 0], fixes[n, 1] = pos, prev
                n += 1
        pos += UNIT_BYTES
    return pos, n


@kernel
def append_to_chain(
    data: Bytes, start: int, pos: int, tick: int, wheel: Bytes, pages: Bytes
) -> int:
    """Make a unit the newest of its slot; return the previous newest one, -1 without one."""
    to = slot_at(tick)
    first, last = get_i8(wheel, to + FIRST_AT), get_i8(wheel, to + LAST_AT)
    num = np.int64(get_i4(wheel, to + NUM_AT))
    if get_i8(wheel, to + TICK_AT) != tick:  # the slot belongs to an earlier lap: start a new chain
        first, last, num = pos, np.int64(-1), np.int64(0)
    if get_i8(data, start + DUE_AT) >= 0 and get_i4(data, start + MAGIC_AT) & MAGIC_DELETE == 0:
        num += 1
    put_slot(wheel, pages, to, tick, first, pos, num)
    return last
