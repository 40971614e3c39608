"""Wake times of schedules, with the minimum of each block: a look reads few of a million times.

times       |  block 0  |  block 1  |  block 2  |     (n,) i8 ms
minima      |   min     |   stale   |   min     |     stale ones are computed at the next look
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

NEVER: Final = (1 << 63) - 1
BLOCK: Final = 1_024
Times = npt.NDArray[np.int64]


class WakeTimes:
    """Time from which each slot has work, or NEVER.

    Args:
        times: (n,) initial times.
    """

    def __init__(self, times: Times) -> None:
        self._times = times
        self._minima: Times = np.full(-(-times.size // BLOCK), NEVER, np.int64)
        self._stale = set(range(self._minima.size))

    def __getitem__(self, slot: int) -> int:
        return int(self._times[slot])

    def __setitem__(self, slot: int, time_ms: int) -> None:
        self._times[slot] = time_ms
        self._stale.add(slot // BLOCK)

    def grow(self, count: int) -> None:
        """Make room for `count` slots; new ones are NEVER."""
        times = np.full(count, NEVER, np.int64)
        times[: self._times.size] = self._times
        minima = np.full(-(-count // BLOCK), NEVER, np.int64)
        minima[: self._minima.size] = self._minima
        self._times, self._minima = times, minima

    def take(self, now_ms: int, slots_max: int) -> npt.NDArray[np.int64]:
        """Return slots with a time of at most `now_ms`, ascending; they are NEVER afterwards.

        Args:
            slots_max: Number of slots after which no other block is read.
        """
        self._refresh()
        pieces, count = [np.empty(0, np.int64)], 0
        for block in np.flatnonzero(self._minima <= now_ms).tolist():
            if count >= slots_max:
                break
            times = self._times[block * BLOCK : (block + 1) * BLOCK]
            slots = np.flatnonzero(times <= now_ms)
            times[slots] = NEVER
            pieces.append(slots + block * BLOCK)
            count += slots.size
            self._stale.add(block)
        return np.concatenate(pieces)

    def first(self) -> int:
        """Return the earliest time, or NEVER."""
        self._refresh()
        return int(self._minima.min(initial=NEVER))

    def _refresh(self) -> None:
        for block in self._stale:
            self._minima[block] = self._times[block * BLOCK : (block + 1) * BLOCK].min()
        self._stale.clear()
