"""Kernel that counts the units of a queue for one pop without a filter."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from duemq.pull.layout import BLANK_UNIT_SIZE
from message_store.kernels.kernel import kernel

HAS_GAP = -1


@kernel
def count_units(
    units: npt.NDArray[Any], min_log_offset: int, count_max: int, bytes_max: int
) -> int:
    """Return the number of leading units within the limits, at least 1.

    Args:
        units: (n,) `message_store.layout.UNIT`, n > 0.
        min_log_offset: First log offset that still exists.
        count_max: Maximum number of units.
        bytes_max: Maximum bytes of all records; a larger first record is returned alone.
    Returns:
        Number of units; `HAS_GAP` if a unit has no record, so that the caller must use Python.
    """
    total = np.int64(0)
    for index in range(units.size):
        unit = units[index]
        if unit["phys_offset"] < min_log_offset or unit["size"] == BLANK_UNIT_SIZE:
            return HAS_GAP
        total += unit["size"]
        if index == count_max or (index > 0 and total > bytes_max):
            return index
    return units.size
