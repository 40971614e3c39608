"""Compiled loops of the broker: its counters, and what pulls look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.kernel import kernel

LISTED = 2


@kernel
def count_puts(rows: npt.NDArray[Any], count: int, puts: npt.NDArray[np.int64]) -> Any:
    """Add each stored row to puts[topic] (messages, bytes); return (messages, bytes) of all."""
    messages, size = 0, np.int64(0)
    for i in range(count):
        row = rows[i]
        if row["status"] == 0:
            puts[row["topic_index"], 0] += 1
            puts[row["topic_index"], 1] += row["record_size"]
            messages += 1
            size += row["record_size"]
    return messages, size


@kernel
def count_timers(rows: npt.NDArray[Any], count: int) -> int:
    """Return how many rows ask for a delivery time."""
    found = 0
    for i in range(count):
        if rows[i]["timer_kind"] != 0:
            found += 1
    return found


@kernel
def leading_units(
    units: npt.NDArray[Any], log_min: int, blank_size: int, count_max: int, bytes_max: int
) -> int:
    """Return how many leading units a pull of everything gets; -1 if one of them is no message.

    Args:
        units: (n,) layout.UNIT, n >= 1.
        log_min: units of records before it are no messages (any more), nor are those of
            `blank_size`.
        count_max, bytes_max: what fits into one answer; one unit always does.
    """
    total = np.int64(0)
    count = min(np.int64(units.size), np.int64(count_max))
    for i in range(count):
        unit = units[i]
        if unit["phys_offset"] < log_min or unit["size"] == blank_size:
            return -1
        total += unit["size"]
        if total > bytes_max and i > 0:
            return i
    return count


@kernel
def watched_slots(rows: npt.NDArray[Any], count: int, watched: Any, out: Any) -> int:
    """List the queue slots of stored rows that are watched, each once; return how many.

    Args:
        watched: (slots,) u1: 1 if somebody waits; set to LISTED for those in `out`.
        out: (n,) i4, n >= count.
    """
    found = 0
    for i in range(count):
        slot = np.int64(rows[i]["queue_slot"])
        if rows[i]["status"] == 0 and 0 <= slot < watched.size and watched[slot] == 1:
            watched[slot] = LISTED
            out[found] = slot
            found += 1
    return found
