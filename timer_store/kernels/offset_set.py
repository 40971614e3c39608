"""Compiled loops of a set of log offsets: a table of slots, of which at most half are used.

slots   | -1 | 4711 | -1 | -1 | 815 | 1204 | -1 | ...     an offset is in the slot of its hash,
                                                          or in the next free one after it
"""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.kernel import kernel

EMPTY = -1
MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: multiples of 8 spread, too


@kernel
def slot_of(slots: Any, offset: int) -> int:
    """Return the slot that has an offset, or else the free slot for it."""
    mask = np.uint64(slots.size - 1)
    product = np.uint64(offset) * np.uint64(MULTIPLIER)
    # the high bits depend on all bits of the offset, the low ones on its low bits only
    slot = (product >> np.uint64(32)) & mask
    while slots[slot] != EMPTY and slots[slot] != offset:
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def add_offsets(slots: Any, offsets: Any) -> int:
    """Add log offsets; return how many of them are new.

    Args:
        slots: (2^k,) i8 in and out; at least twice as many as offsets after the call.
        offsets: (n,) i8, not negative. EMPTY is skipped.
    """
    count = np.int64(0)
    for i in range(offsets.size):
        slot = slot_of(slots, offsets[i])
        # for EMPTY, the slot that is returned is free: nothing changes
        if slots[slot] != offsets[i]:
            slots[slot] = offsets[i]
            count += 1
    return count


@kernel
def mark_present(slots: Any, offsets: Any, is_present: Any) -> None:
    """Set is_present[i] if offsets[i] is in the set; `is_present`: (n,) b1 in and out."""
    for i in range(offsets.size):
        if slots[slot_of(slots, offsets[i])] == offsets[i]:
            is_present[i] = True
