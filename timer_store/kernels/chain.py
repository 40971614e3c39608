"""Compiled walk along the chains of slots in the timer log.

A chain goes from a slot's newest unit to its oldest, and every step goes back in the log. So a
walk takes the files from the last to the first and visits each once, whatever number of chains it
follows: a kernel gets one file and follows every cursor as far as it stays in it.

    file 0                file 1                file 2
    .....a<----a<---------------a<------------------a   cursor a: pos, until it is -1 or before
    ..b<----------------b<-------b                      the first file

`data` is a file, `base` the log position of its first byte. Every unit is checked before it is used
(FAULT_*): its place, size and magic are possible, it points back, and it belongs to the slot.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_i8
from message_store.kernels.kernel import kernel
from timer_store.layout import (
    DUE_COPIED,
    MAGIC_DELETE,
    MAGIC_MAX,
    MAGIC_ROLL,
    STAGED_PENDING,
    STAGED_SETTLED,
    TIMER_UNIT,
    UNIT_BYTES,
    Rows,
)

FAULT_PLACE = 1  # not a multiple of the unit's size, or not in the file
FAULT_SIZE = 2  # the size field is not that of a unit
FAULT_MAGIC = 3  # no combination of MAGIC_*
FAULT_PREV = 4  # the unit points forward, or to itself
FAULT_SLOT = 5  # the unit belongs to another slot
FAULT_TIMES = 6  # the due time of the unit cannot belong to its slot
WALK_LEFT, WALK_FULL = 0, 1  # the chain left the file or ended; there is no room for a row

assert TIMER_UNIT.fields is not None
# offsets of the fields in a unit, so that a kernel reads only those that it needs
_AT: Final = {name: int(TIMER_UNIT.fields[name][1]) for name in TIMER_UNIT.names or ()}
PREV_AT, MAGIC_AT, WRITE_AT, DELAY_AT = (
    _AT[name] for name in ("prev_pos", "magic", "write_ms", "delay_ms")
)
PHYS_AT, RECORD_AT, HASH_AT, DUE_AT = (
    _AT[name] for name in ("phys_offset", "record_size", "topic_hash", "due_ms")
)

# State of a walk along one chain: (WALK_SIZE,) i8.
(
    WALK_POS,  # the next unit, -1: done
    WALK_ROWS,  # rows made
    WALK_SETTLED,  # settled units among them
    WALK_MARKERS,  # markers among them that do not roll
    WALK_PHYS,  # the smallest phys_offset so far
    WALK_MIXED,  # 1: the units are not in the order of the commit log
    WALK_FAULT,  # FAULT_* of the unit at WALK_POS
    WALK_SIZE,
) = range(8)


@kernel
def unit_fault(data: Bytes, start: int, pos: int) -> int:
    """Return the fault of the unit at data[start], which is at log position `pos`, or 0."""
    if start % UNIT_BYTES != 0 or start + UNIT_BYTES > data.size:
        return FAULT_PLACE
    # every unit begins with its size, as in Apache's TimerLog
    if get_i4(data, start) != UNIT_BYTES:
        return FAULT_SIZE
    magic = get_i4(data, start + MAGIC_AT)
    if magic < 0 or magic > MAGIC_MAX:
        return FAULT_MAGIC
    prev = get_i8(data, start + PREV_AT)
    # a chain that only goes back ends after a bounded number of steps, whatever the damage
    if prev >= pos or prev < -1:
        return FAULT_PREV
    return 0


@kernel
def slot_ms_of(data: Bytes, position: int) -> int:
    """Return the time whose slot the unit at data[position] belongs to."""
    return get_i8(data, position + WRITE_AT) + get_i4(data, position + DELAY_AT)


@kernel
def chain_fault(data: Bytes, start: int, pos: int, tick: int, precision_ms: int) -> int:
    """Return the fault of a unit in the chain of slot `tick`, or 0."""
    fault = unit_fault(data, start, pos)
    if fault == 0 and slot_ms_of(data, start) // precision_ms != tick:
        return FAULT_SLOT
    return fault


@kernel
def find_sorted(values: Any, first: int, end: int, value: int) -> int:
    """Return the index of `value` in the ascending values[first:end], -1 if it is absent."""
    low, high = np.int64(first), np.int64(end)
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    if low < end and values[low] == value:
        return low
    return np.int64(-1)


@kernel
def due_of(data: Bytes, position: int, precision_ms: int) -> int:
    """Return the due time of a unit, below 0: settled, 0: it rolls and has no due time.

    Apache's units have no due time: they are due at the end of their slot.
    """
    due_ms = get_i8(data, position + DUE_AT)
    # a unit of Apache that rolls has no due time yet: only its record has one
    if due_ms == 0 and get_i4(data, position + MAGIC_AT) & MAGIC_ROLL == 0:
        return slot_ms_of(data, position) + precision_ms
    return due_ms


@kernel
def times_fault(data: Bytes, position: int, precision_ms: int, window_ms: int) -> int:
    """Return FAULT_TIMES if the due time of a pending unit cannot belong to its slot, or 0.

    `enqueue` puts a timer into its own slot (the slot time is due_ms - 1), whole roll windows
    before that, or, if it is overdue, at the start of the slot that is read.
    """
    due_ms, slot_ms = get_i8(data, position + DUE_AT), slot_ms_of(data, position)
    # A due time of 0 is that of a unit of Apache, a negative one that of a settled timer.
    if due_ms <= 0 or due_ms - 1 == slot_ms:
        return 0
    # an overdue timer was put at the start of the slot that was read then
    if due_ms - 1 < slot_ms:
        return 0 if slot_ms % precision_ms == 0 else FAULT_TIMES
    # later than its slot: only a unit that rolls, by whole windows
    if (
        get_i4(data, position + MAGIC_AT) & MAGIC_ROLL == 0
        or (due_ms - 1 - slot_ms) % window_ms != 0
    ):
        return FAULT_TIMES
    return 0


@kernel
def slot_fault(data: Bytes, start: int, pos: int, slot: Any) -> int:
    """Return the fault of a unit in the chain of `slot`, also of its times, or 0.

    Args:
        slot: (tick, precision in ms, roll window in ms).
    """
    fault = chain_fault(data, start, pos, slot[0], slot[1])
    return fault if fault != 0 else times_fault(data, start, slot[1], slot[2])


@kernel
def stage_unit(data: Bytes, start: int, pos: int, precision_ms: int, row: Any) -> None:
    """Fill a row of layout.STAGED."""
    row["due_ms"] = due_of(data, start, precision_ms)
    row["phys_offset"] = get_i8(data, start + PHYS_AT)
    row["pos"] = pos
    row["write_ms"] = get_i8(data, start + WRITE_AT)
    row["record_size"] = get_i4(data, start + RECORD_AT)
    row["topic_hash"] = get_i4(data, start + HASH_AT)
    row["magic"] = get_i4(data, start + MAGIC_AT)
    row["state"] = STAGED_PENDING if row["due_ms"] >= 0 else STAGED_SETTLED


@kernel
def is_marker(magic: int) -> bool:
    """Return whether a unit cancels others of its slot. Source: TimerMessageStore.dequeue"""
    return magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE


@kernel
def track_order(walk: Any, phys_offset: int) -> None:
    """Record whether the log offsets of a chain's records descend, from the newest unit on."""
    # the walk goes from new to old, so each offset must be smaller than all before
    if phys_offset >= walk[WALK_PHYS]:
        walk[WALK_MIXED] = 1
    else:
        walk[WALK_PHYS] = phys_offset


@kernel
def collect(data: Bytes, base: int, slot: Any, skip: Any, walk: Any, out: Rows) -> int:
    """Follow one chain through a file; fill `out` from the end, so that the oldest unit is first.

    Args:
        slot: (tick, precision in ms, roll window in ms).
        skip: (n,) i8 ascending: records that count as settled.
        walk: (WALK_SIZE,) i8: state of the walk.
        out: (n,) layout.STAGED.
    """
    pos = walk[WALK_POS]
    while pos >= base:
        # WALK_POS stays at this unit: the caller continues with more room
        if walk[WALK_ROWS] == out.size:
            return WALK_FULL
        start = pos - base
        walk[WALK_FAULT] = slot_fault(data, start, pos, slot)
        if walk[WALK_FAULT] != 0:
            return WALK_LEFT
        track_order(walk, get_i8(data, start + PHYS_AT))
        # A copied unit makes no row: its copy represents the timer, in another slot.
        if get_i8(data, start + DUE_AT) != DUE_COPIED:
            walk[WALK_ROWS] += 1
            # the walk is newest first; the rows become oldest first without a reversal
            row = out[out.size - walk[WALK_ROWS]]
            stage_unit(data, start, pos, slot[1], row)
            if skip.size > 0 and find_sorted(skip, 0, skip.size, row["phys_offset"]) >= 0:
                row["state"] = STAGED_SETTLED
            if row["state"] == STAGED_SETTLED:
                walk[WALK_SETTLED] += 1
            elif is_marker(row["magic"]):
                walk[WALK_MARKERS] += 1
        # the unit is complete only now, so that a stop in between repeats it
        pos = get_i8(data, start + PREV_AT)
        walk[WALK_POS] = pos
    return WALK_LEFT


# -- the first of many --------------------------------------------------------------------------


# -- many chains --------------------------------------------------------------------------------


@kernel
def walk_back(data: Bytes, base: int, cursors: Rows, precision_ms: int, limit_pos: int) -> None:
    """Move every cursor back until it is before `limit_pos` or leaves the file."""
    for i in range(cursors.size):
        cursor = cursors[i]
        while cursor["pos"] >= base and cursor["pos"] >= limit_pos and cursor["fault"] == 0:
            pos = cursor["pos"]
            fault = chain_fault(data, pos - base, pos, cursor["tick"], precision_ms)
            cursor["fault"] = fault
            if fault == 0:
                cursor["pos"] = get_i8(data, pos - base + PREV_AT)


@kernel
def count_pending(data: Bytes, base: int, cursors: Rows, precision_ms: int) -> None:
    """Count each slot's pending timers: neither markers nor settled."""
    for i in range(cursors.size):
        cursor = cursors[i]
        while cursor["pos"] >= base and cursor["fault"] == 0:
            pos = cursor["pos"]
            start = pos - base
            fault = chain_fault(data, start, pos, cursor["tick"], precision_ms)
            cursor["fault"] = fault
            if fault != 0:
                break
            if (
                get_i8(data, start + DUE_AT) >= 0
                and get_i4(data, start + MAGIC_AT) & MAGIC_DELETE == 0
            ):
                cursor["count"] += 1
            cursor["pos"] = get_i8(data, start + PREV_AT)


@kernel
def check_units(data: Bytes, base: int, cursors: Rows, precision_ms: int) -> None:
    """Check the unit of every cursor that is in this file; the cursors do not move."""
    for i in range(cursors.size):
        cursor = cursors[i]
        position = cursor["pos"] - base
        if position >= 0 and position < data.size:
            cursor["fault"] = chain_fault(
                data, position, cursor["pos"], cursor["tick"], precision_ms
            )


@kernel
def match(
    data: Bytes, base: int, cursors: Rows, precision_ms: int, offsets: Any, positions: Any
) -> None:
    """Find the unit of each record: the newest one in the slot that is not settled.

    Args:
        cursors: offsets[first:end] are the records of a slot, ascending; `count` is the
            number not found yet. A cursor stops when `count` is 0.
        positions: (n,) i8 in and out: log positions, -1: not found yet.
    """
    for i in range(cursors.size):
        cursor = cursors[i]
        while cursor["pos"] >= base and cursor["fault"] == 0 and cursor["count"] > 0:
            pos = cursor["pos"]
            start = pos - base
            fault = chain_fault(data, start, pos, cursor["tick"], precision_ms)
            cursor["fault"] = fault
            if fault != 0:
                break
            j = find_sorted(offsets, cursor["first"], cursor["end"], get_i8(data, start + PHYS_AT))
            # The walk is newest first, so the first pending unit of a record is its newest.
            if j >= 0 and positions[j] < 0 and get_i8(data, start + DUE_AT) >= 0:
                positions[j] = pos
                cursor["count"] -= 1
            cursor["pos"] = get_i8(data, start + PREV_AT)


@kernel
def find_in_log_order(
    data: Bytes, base: int, end: int, offsets: Any, ticks: Any, precision_ms: int, positions: Any
) -> None:
    """Find the units of records by binary search, assuming that units are in log order.

    Most units are in this order, because they are appended in queue order. A unit that is
    found is verified; a unit that is not found may still be in the file.

    Args:
        end: log position after the last unit of the file.
        offsets, ticks: (n,) i8: records, and the slots their units belong to.
        positions: (n,) i8 out: log positions; unchanged where no unit is found.
    """
    for i in range(offsets.size):
        # the first unit whose record is at or after the wanted one
        low, high = np.int64(0), np.int64((end - base) // UNIT_BYTES)
        while low < high:
            middle = (low + high) >> 1
            if get_i8(data, middle * UNIT_BYTES + PHYS_AT) < offsets[i]:
                low = middle + 1
            else:
                high = middle
        pos = base + low * UNIT_BYTES
        if pos < end and get_i8(data, pos - base + PHYS_AT) == offsets[i]:
            # The order is only assumed: verify that this is a pending unit of the slot.
            fault = chain_fault(data, pos - base, pos, ticks[i], precision_ms)
            if fault == 0 and get_i8(data, pos - base + DUE_AT) >= 0:
                positions[i] = pos


# -- units as columns ---------------------------------------------------------------------------


@kernel
def next_unit(data: Bytes, base: int, position: int, limit: int) -> int:
    """Return the position of the first unit in data[position:limit], `limit` if there is none."""
    while position < limit and unit_fault(data, position, base + position) != 0:
        position += UNIT_BYTES
    return position


@kernel
def read_units(data: Bytes, base: int, pos: int, end: int, out: Rows) -> int:
    """Decode the units at log positions pos..end up to the first fault; return their number.

    Args:
        out: (n,) layout.LOGGED.
    """
    n = 0
    while pos < end and n < out.size:
        start = pos - base
        if unit_fault(data, start, pos) != 0:
            return n
        row = out[n]
        row["pos"], row["prev_pos"] = pos, get_i8(data, start + PREV_AT)
        row["write_ms"], row["slot_ms"] = get_i8(data, start + WRITE_AT), slot_ms_of(data, start)
        row["phys_offset"], row["due_ms"] = (
            get_i8(data, start + PHYS_AT),
            get_i8(data, start + DUE_AT),
        )
        row["record_size"] = get_i4(data, start + RECORD_AT)
        row["topic_hash"] = get_i4(data, start + HASH_AT)
        row["magic"], row["pad"] = get_i4(data, start + MAGIC_AT), 0
        pos += UNIT_BYTES
        n += 1
    return n


@kernel
def stage_at(data: Bytes, base: int, positions: Any, precision_ms: int, out: Rows) -> int:
    """Fill out[i] (layout.STAGED) from the unit at positions[i] if it is in this file.

    Returns the number of filled rows.
    """
    n = 0
    for i in range(positions.size):
        position = positions[i] - base
        if position >= 0 and position < data.size and unit_fault(data, position, positions[i]) == 0:
            stage_unit(data, position, positions[i], precision_ms, out[i])
            n += 1
    return n


@kernel
def settle(
    data: Bytes, base: int, positions: Any, precision_ms: int, copied: bool, due: Any, ticks: Any
) -> int:
    """Return the values that settle units, without changing the units.

    Args:
        positions: (n,) i8 in this file.
        copied: The units are settled because there are copies of them.
        due: (n,) i8 out: the new due_ms of each unit.
        ticks: (n,) i8 out: the slot whose count decreases by one, 0: none.

    Returns the number of pending units, or -1 - i if there is no unit at positions[i].
    """
    pending = 0
    for i in range(positions.size):
        position = positions[i] - base
        if unit_fault(data, position, positions[i]) != 0:
            return -1 - i
        due[i], ticks[i] = get_i8(data, position + DUE_AT), 0
        # a unit that is settled already keeps its value and counts in no slot
        if due[i] >= 0:
            slot_ms = slot_ms_of(data, position)
            # below DUE_COPIED in any case, also for a unit of Apache's, whose due_ms is 0
            due[i] = DUE_COPIED if copied else min(-due[i], -slot_ms - 2)
            pending += 1
            # markers are not part of the slot's number of timers
            if get_i4(data, position + MAGIC_AT) & MAGIC_DELETE == 0:
                ticks[i] = slot_ms // precision_ms
    return pending
