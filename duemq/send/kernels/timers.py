"""Compiled loop that counts timers."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from message_store.kernels.kernel import kernel


@kernel
def count_timers(rows: npt.NDArray[Any], count: int) -> int:
    """Return the number of rows with timer properties."""
    timer_count = 0
    for i in range(count):
        if rows[i]["timer_kind"] != 0:
            timer_count += 1
    return timer_count
