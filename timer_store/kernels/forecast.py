"""Compiled counts of slots, and their correction: rolling timers count at their due time."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_i8
from message_store.kernels.kernel import kernel
from timer_store.kernels.chain import (
    DUE_AT,
    MAGIC_AT,
    PHYS_AT,
    find_sorted,
    slot_ms_of,
    unit_fault,
)
from timer_store.kernels.wheel import (
    LAST_AT,
    NUM_AT,
    PAGE_BYTES,
    PAGE_SLOTS,
    PAGE_USED,
    TICK_AT,
    slot_at,
)
from timer_store.layout import MAGIC_DELETE, MAGIC_ROLL, SLOT_BYTES, UNIT_BYTES, WHEEL_BYTES


@kernel
def bin_of(time_ms: int, from_ms: int, width_ms: int, bins: int) -> int:
    """Return the bin of a time; the first bin is for earlier times, the last for later ones."""
    if time_ms < from_ms:
        return 0
    return min((time_ms - from_ms) // width_ms + 1, bins - 1)


@kernel
def next_count(wheel: Bytes, pages: Bytes, tick: int, position: int, end_tick: int) -> Any:
    """Return the first slot with timers from `tick` on: (tick, byte position, timers).

    The tick is `end_tick` or later without one. A slot without a chain of units, or of another lap,
    has none.

    Args:
        position: Byte position of the slot of `tick`; `WHEEL_BYTES` is position 0.
    """
    while tick < end_tick:
        if position >= WHEEL_BYTES:
            position -= WHEEL_BYTES
        if pages[position // PAGE_BYTES] & PAGE_USED == 0:  # to the first slot of the next page
            slots = PAGE_SLOTS - position // SLOT_BYTES % PAGE_SLOTS
            tick, position = tick + slots, position + slots * SLOT_BYTES
            continue
        if get_i8(wheel, position + TICK_AT) == tick and get_i8(wheel, position + LAST_AT) >= 0:
            num = np.int64(get_i4(wheel, position + NUM_AT))
            if num > 0:
                return tick, position, num
        tick, position = tick + 1, position + SLOT_BYTES
    return tick, position, np.int64(0)


@kernel
def bin_slots(wheel: Bytes, pages: Bytes, ticks: Any, numbers: Any, bins: Any) -> None:
    """Add the timers of slots to the bins in which the slots begin.

    Args:
        ticks: (first tick, tick to end before), at most one lap.
        numbers: (start of the first bin, width of a bin, precision), in ms.
        bins: (n,) i8 in and out; see `bin_of`.
    """
    from_ms, width_ms, precision_ms = numbers
    index, end_ms = np.int64(0), np.int64(0)
    tick, position, num = next_count(wheel, pages, ticks[0], slot_at(ticks[0]), ticks[1])
    while tick < ticks[1]:
        slot_ms = tick * precision_ms
        # ticks ascend: a division for each bin, not for each slot
        if slot_ms >= end_ms:
            index = bin_of(slot_ms, from_ms, width_ms, bins.size)
            end_ms = from_ms + index * width_ms
        bins[index] += num
        tick, position, num = next_count(wheel, pages, tick + 1, position + SLOT_BYTES, ticks[1])


@kernel
def fullest_slots(wheel: Bytes, pages: Bytes, ticks: Any, limit: int, fullest: Any) -> Any:
    """Find the slots with the most timers; return (slots with timers, with `limit` or more).

    Args:
        ticks: (first tick, tick to end before), at most one lap.
        fullest: (n, 2) i8 out, zero before: timers and tick, most timers first, then later first.
    """
    used, full = np.int64(0), np.int64(0)
    tick, position, num = next_count(wheel, pages, ticks[0], slot_at(ticks[0]), ticks[1])
    while tick < ticks[1]:
        used += 1
        if num >= limit:
            full += 1
        # ticks ascend, so a slot goes before those with as many timers
        i = fullest.shape[0]
        while i > 0 and fullest[i - 1, 0] <= num:
            if i < fullest.shape[0]:
                fullest[i, 0], fullest[i, 1] = fullest[i - 1, 0], fullest[i - 1, 1]
            i -= 1
        if i < fullest.shape[0]:
            fullest[i, 0], fullest[i, 1] = num, tick
        tick, position, num = next_count(wheel, pages, tick + 1, position + SLOT_BYTES, ticks[1])
    return used, full


@kernel
def move_rolled(data: Bytes, base: int, span: Any, numbers: Any, skip: Any, bins: Any) -> int:
    """Move the rolling units of a file from the bin of their slot to that of their due time.

    Args:
        data, base: File of the timer log, and the log position of its first byte.
        span: (log position to begin at, log position to end at).
        numbers: (6,) i8: start of the first bin, width of a bin, precision, start of the first
            slot that is not staged completely, all in ms; and (due_ms, phys_offset) of the last
            timer of that slot that is staged or rolled, -1 if none is.
        skip: (n,) i8 ascending: records of settled timers.
        bins: (n,) i8 in and out.

    Returns the number of moved units.
    """
    from_ms, width_ms, precision_ms, staged_ms = numbers[0], numbers[1], numbers[2], numbers[3]
    part_ms, part_phys = numbers[4], numbers[5]
    pos, moved = span[0], 0
    while pos < span[1]:
        start = pos - base
        # units are all of one size, so the next one is found after damage, too
        if unit_fault(data, start, pos) == 0:
            rolls = get_i4(data, start + MAGIC_AT) & (MAGIC_ROLL | MAGIC_DELETE) == MAGIC_ROLL
            due_ms = get_i8(data, start + DUE_AT)
            if rolls and due_ms > 0:
                slot_ms = slot_ms_of(data, start) // precision_ms * precision_ms
                phys_offset = get_i8(data, start + PHYS_AT)
                # earlier slots are in the near stage, whose timers are counted by due time
                passed = slot_ms < staged_ms
                if slot_ms == staged_ms:  # rolled with a part: its later unit is counted
                    passed = due_ms < part_ms or (due_ms == part_ms and phys_offset <= part_phys)
                if not passed and find_sorted(skip, 0, skip.size, phys_offset) < 0:
                    # the caller counted the unit in its slot
                    bins[bin_of(slot_ms, from_ms, width_ms, bins.size)] -= 1
                    bins[bin_of(due_ms - 1, from_ms, width_ms, bins.size)] += 1
                    moved += 1
        pos += UNIT_BYTES
    return moved
