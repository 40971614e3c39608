"""Undelivered units of a level's queue, while the log is scanned at a start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from message_store.ranges import Range
from schedule_service.queues import ScheduleQueues

CHUNK_UNITS = 65_536
Offsets = npt.NDArray[np.int64]


class Undelivered:
    """Undelivered units of one level.

    Args:
        ranges: Undelivered ranges, ascending.
        end: End of the queue.
    """

    def __init__(self, level: int, ranges: list[Range], end: int) -> None:
        self.level, self.end = level, end
        self.first = ranges[0][0] if ranges else end
        self.mask: npt.NDArray[np.bool_] = np.zeros(end - self.first, np.bool_)
        for low, high in ranges:
            self.mask[low - self.first : high - self.first] = True

    def ranges(self) -> list[Range]:
        """Return the undelivered ranges, ascending."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self.mask, [False]]).view(np.int8)))
        pairs = (edges + self.first).reshape(-1, 2)
        return [(low, high) for low, high in pairs.tolist()]

    def offsets(self, first: int, end: int) -> Offsets:
        """Return the queue offsets of the undelivered units of first..end, ascending."""
        low, high = max(first - self.first, 0), max(end - self.first, 0)
        return np.flatnonzero(self.mask[low:high]) + low + self.first

    def settle_before(self, offset: int) -> None:
        """Remove the units before a queue offset."""
        self.mask[: max(offset - self.first, 0)] = False

    def clear(self, queues: ScheduleQueues, origins: Offsets) -> int:
        """Remove the units whose record is among `origins` (ascending); return their number."""
        offset, count = self.first, 0
        while offset < self.end:
            units = queues.units(self.level, offset, CHUNK_UNITS)
            if not units.size:
                break
            phys = units["phys_offset"]
            low, high = np.searchsorted(origins, [phys.min(), phys.max() + 1])
            if low < high:
                mask = self.mask[offset - self.first : offset - self.first + units.size]
                hit = mask & np.isin(phys, origins[low:high])
                mask[hit] = False
                count += int(hit.sum())
            offset += int(units.size)
        return count
