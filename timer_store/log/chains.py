"""Walk along chains of units: starting points and errors.

How a walk goes through the files of the log: `kernels.chain`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from timer_store import layout
from timer_store.kernels import chain
from timer_store.log.timer_log import TimerLog
from timer_store.log.wheel import TimerWheel

Rows = npt.NDArray[Any]
Longs = npt.NDArray[np.int64]
LONG_MAX: Final = (1 << 63) - 1
NO_OFFSETS: Final[Longs] = np.empty(0, np.int64)
FAULTS: Final = {
    chain.FAULT_PLACE: "no unit can lie there",
    chain.FAULT_SIZE: "there is no unit",
    chain.FAULT_MAGIC: "the unit's magic cannot be",
    chain.FAULT_PREV: "the unit points forward",
    chain.FAULT_SLOT: "the unit belongs to another slot",
}


def new_walk(last_pos: int) -> Longs:
    """Return the start of a walk along one chain."""
    walk = np.zeros(chain.WALK_SIZE, np.int64)
    walk[chain.WALK_POS], walk[chain.WALK_PHYS] = last_pos, LONG_MAX
    return walk


def new_cursors(log: TimerLog, wheel: TimerWheel, ticks: Longs) -> Rows:
    """Return the start of a walk along the slots of `ticks`, (n,) `layout.CURSOR`."""
    cursors = np.zeros(ticks.size, layout.CURSOR)
    cursors["tick"] = ticks
    width_ms = wheel.precision_ms
    cursors["pos"] = [wheel.slot(tick * width_ms).last_pos for tick in ticks.tolist()]
    cursors["fault"][cursors["pos"] >= log.end] = chain.FAULT_PLACE
    return cursors
