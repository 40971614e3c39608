"""Compiled loops that prove that records and units of queues belong together.

place        one hash of log offset, queue offset and size
add_records  exclusive or of the places of records, by queue
add_units    exclusive or of the places of the units of one queue
"""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.kernel import kernel
from message_store.layout import SYS_COMMIT, SYS_TRANSACTION_MASK

INNER_BATCH = 0x80
"""Bit of sys_flag: the record is in a queue of another kind (BatchCQ)."""


@kernel
def place(phys_offset: int, number: int, size: int) -> Any:
    """Return the hash of a place: log offset of a record, its queue offset and its size."""
    value = np.uint64(phys_offset) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(32)) ^ np.uint64(number)) * np.uint64(0xC2B2AE3D27D4EB4F)
    value = (value ^ (value >> np.uint64(29)) ^ np.uint64(size)) * np.uint64(0x165667B19E3779F9)
    return value ^ (value >> np.uint64(32))


@kernel
def add_records(rows: Any, keys: Any, sums: Any) -> int:
    """Add the records that have units; return the number of rows read.

    The table is open addressing; a row that finds it more than half full is not read.

    Args:
        rows: (n,) SCANNED.
        keys: (slots,) i8 in and out: topic index << 32 | queue id; -1: unused. The number of
            slots is a power of two.
        sums: (slots,) u8 in and out.
    """
    used = 0
    for k in range(keys.size):
        used += 1 if keys[k] >= 0 else 0
    for i in range(rows.size):
        kind = rows[i]["sys_flag"] & SYS_TRANSACTION_MASK
        hidden = (kind != 0 and kind != SYS_COMMIT) or rows[i]["sys_flag"] & INNER_BATCH != 0
        if hidden or rows[i]["queue_id"] < 0:  # Apache writes no unit of a half message
            continue
        key = (np.int64(rows[i]["topic_index"]) << 32) | np.int64(rows[i]["queue_id"])
        slot = ((key ^ (key >> 29)) * 0x9E3779B1) & (keys.size - 1)
        while keys[slot] >= 0 and keys[slot] != key:
            slot = (slot + 1) & (keys.size - 1)
        if keys[slot] < 0:
            # in a fuller table searches get long
            if 2 * used >= keys.size:
                return i
            keys[slot] = key
            used += 1
        # the places of a record and of its unit are equal, so both cancel out, in any order
        sums[slot] ^= place(
            rows[i]["phys_offset"], rows[i]["queue_offset"], np.int64(rows[i]["record_size"])
        )
    return np.int64(rows.size)


@kernel
def add_units(offsets: Any, numbers: Any, sizes: Any, first: int) -> Any:
    """Return the exclusive or of the places of units that point at or after log offset `first`."""
    total = np.uint64(0)
    for i in range(offsets.size):
        if offsets[i] >= first:
            total ^= place(offsets[i], numbers[i], np.int64(sizes[i]))
    return total
