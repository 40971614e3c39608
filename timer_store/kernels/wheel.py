"""Compiled access to the wheel's slots, in their byte order on disk.

`pages` has a byte of PAGE_* flags for each page of 4096 bytes. Scans skip unused pages, so that the
memory of an empty wheel is not touched.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_i8, put_i4, put_i8
from message_store.kernels.kernel import kernel
from timer_store.layout import SLOT_BYTES, TIMER_SLOT, WHEEL_SLOTS, Rows

PAGE_BYTES: Final = 4_096
PAGE_SLOTS: Final = PAGE_BYTES // SLOT_BYTES
PAGE_USED, PAGE_CHANGED = 1, 2
assert WHEEL_SLOTS % PAGE_SLOTS == 0, "a page never wraps around"

assert TIMER_SLOT.fields is not None
TICK_AT, FIRST_AT, LAST_AT, NUM_AT, MAGIC_AT = (
    int(TIMER_SLOT.fields[name][1]) for name in ("tick", "first_pos", "last_pos", "num", "magic")
)


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
            out[n]["magic"] = get_i4(wheel, position + MAGIC_AT)
            n += 1
        i += 1
    return n, count


@kernel
def stray_slots(wheel: Bytes, pages: Bytes, end_tick: int) -> int:
    """Return the number of slots with an impossible tick: `end_tick` or more, or negative."""
    found = 0
    for page in range(pages.size):
        if pages[page] & PAGE_USED:
            for index in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SLOT_BYTES):
                # read each slot of a used page; unused pages are not touched
                tick = get_i8(wheel, index + TICK_AT)
                if tick >= end_tick or tick < 0:
                    found += 1
    return found


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
