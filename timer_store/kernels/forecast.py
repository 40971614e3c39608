"""Compiled correction of a forecast: rolling timers count at their due time, not in their slot."""

from __future__ import annotations

from typing import Any

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
from timer_store.layout import MAGIC_DELETE, MAGIC_ROLL, UNIT_BYTES


@kernel
def bin_of(time_ms: int, from_ms: int, width_ms: int, bins: int) -> int:
    """Return the bin of a time; the first bin is for earlier times, the last for later ones."""
    if time_ms < from_ms:
        return 0
    return min((time_ms - from_ms) // width_ms + 1, bins - 1)


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
