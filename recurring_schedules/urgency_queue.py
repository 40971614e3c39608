"""Urgency queue: schedules with work, the one whose next occurrence is due first at the front.

    run 0   9:00 a | 9:05 b | 9:30 c        sorted when it is added
    run 1   9:01 d | 9:02 e                 heads: a, d, merged one at a time

A backlog of a million schedules is added in bounded runs, so that no turn sorts all of it.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]


class UrgencyQueue:
    """Slots in the order of their times; 12 bytes a slot."""

    def __init__(self) -> None:
        self._runs: dict[int, tuple[Times, Slots]] = {}
        self._heads: list[tuple[int, int, int]] = []  # heap: time, number of the run, index in it
        self._number = self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, times: Times, slots: npt.NDArray[np.int64]) -> None:
        """Add (n,) slots with their times."""
        if not slots.size:
            return
        order = np.argsort(times, kind="stable")
        run = times[order], slots[order].astype(np.int32)
        self._number += 1
        self._runs[self._number] = run
        heappush(self._heads, (int(run[0][0]), self._number, 0))
        self._count += slots.size

    def pop(self) -> int:
        """Remove the slot with the earliest time."""
        _, number, index = self._heads[0]
        times, slots = self._runs[number]
        if index + 1 < slots.size:
            heapreplace(self._heads, (int(times[index + 1]), number, index + 1))
        else:
            heappop(self._heads)
            del self._runs[number]
        self._count -= 1
        return int(slots[index])
