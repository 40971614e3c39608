"""Compiled loops of the broker's own counters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.kernel import kernel


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
