"""Compiled loops of pulls and long polls."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.kernel import kernel

LISTED = 2  # value of a watched slot that is already in the result


@kernel
def leading_units(
    units: npt.NDArray[Any], log_min: int, blank_size: int, count_max: int, bytes_max: int
) -> int:
    """Return the number of leading units for a pull without filter; -1 if one is not a message.

    Args:
        units: (n,) layout.UNIT, n >= 1.
        log_min: Minimum log offset; earlier records were removed.
        blank_size: Size of padding units.
        count_max, bytes_max: Limits of one response; a single unit may exceed them.
    """
    total = np.int64(0)
    count = min(np.int64(units.size), np.int64(count_max))
    for i in range(count):
        unit = units[i]
        # removed records and padding: the general path finds the next offset
        if unit["phys_offset"] < log_min or unit["size"] == blank_size:
            return -1
        total += unit["size"]
        if total > bytes_max and i > 0:
            return i
    return count


@kernel
def watched_slots(rows: npt.NDArray[Any], count: int, watched: Any, out: Any) -> int:
    """Write the distinct watched queue slots of stored rows to `out`; return their number.

    Args:
        watched: (slots,) u1: 1 if the slot has long polls; set to LISTED for slots in `out`.
        out: (n,) i4, n >= count.
    """
    slot_count = 0
    for i in range(count):
        slot = np.int64(rows[i]["queue_slot"])
        if rows[i]["status"] == 0 and 0 <= slot < watched.size and watched[slot] == 1:
            # several rows of one queue resume its pulls once
            watched[slot] = LISTED
            out[slot_count] = slot
            slot_count += 1
    return slot_count
