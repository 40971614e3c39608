"""Compiled collection of the timers of many slots, for lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_i8
from message_store.kernels.kernel import kernel
from timer_store.kernels.chain import (
    HASH_AT,
    MAGIC_AT,
    PHYS_AT,
    PREV_AT,
    chain_fault,
    due_of,
    find_sorted,
)
from timer_store.layout import MAGIC_DELETE, Rows


@kernel
def collect_slots(
    data: Bytes, base: int, cursors: Rows, precision_ms: int, skip: Any, out: Rows, count: int
) -> int:
    """Follow the chains of some slots through a file, and collect their timers.

    Args:
        cursors: (n,) layout.CURSOR.
        skip: (n,) i8 ascending: records that count as settled.
        out: (m,) listed_rows.LISTED; settled timers have due_ms -1.
        count: Number of rows of `out` that are filled.

    Returns the number of filled rows afterwards, -1 if `out` is full.
    """
    n = np.int64(count)
    for i in range(cursors.size):
        cursor = cursors[i]
        while cursor["pos"] >= base and cursor["fault"] == 0:
            pos = cursor["pos"]
            start = pos - base
            fault = chain_fault(data, start, pos, cursor["tick"], precision_ms)
            cursor["fault"] = fault
            if fault != 0:
                break
            # markers are not timers of a user, also while they roll
            if get_i4(data, start + MAGIC_AT) & MAGIC_DELETE == 0:
                # the cursor stays at this unit
                if n == out.size:
                    return -1
                phys_offset = get_i8(data, start + PHYS_AT)
                due_ms = due_of(data, start, precision_ms)
                settled = due_ms < 0 or find_sorted(skip, 0, skip.size, phys_offset) >= 0
                out[n]["due_ms"] = -1 if settled else due_ms
                out[n]["phys_offset"] = phys_offset
                out[n]["slot_ms"] = cursor["tick"] * precision_ms
                out[n]["topic_hash"] = get_i4(data, start + HASH_AT)
                out[n]["staged"] = False
                n += 1
            cursor["pos"] = get_i8(data, start + PREV_AT)
    return n
