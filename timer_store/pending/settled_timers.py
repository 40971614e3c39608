"""Timers settled before their due time whose units have no tombstone yet.

The deciding record of a cancelled, moved or fired timer is in the commit log. The next checkpoint
writes the tombstone, after that record is on the disk. Until then the timer is recorded here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from timer_store.layout import NO_OFFSETS, Mask, Offsets


class Returned(NamedTuple):
    """Timers that a level owns again: log offsets, ascending, and the positions of their units."""

    first: int
    last: int
    offsets: Offsets
    positions: Offsets


class SettledTimers:
    """Log offsets of settled timers, with the positions of their units in the timer log."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._returned: list[Returned] = []
        self._sorted: Offsets | None = None
        self._recorded: list[Offsets] | None = None

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, phys_offset: int) -> bool:
        return phys_offset in self._positions

    def add(self, phys_offset: Offsets, pos: Offsets) -> None:
        """Add timers and the positions of their units (-1: in no slot any more)."""
        self._positions.update(zip(phys_offset.tolist(), pos.tolist(), strict=True))
        self._sorted = None
        if self._recorded is not None:
            self._recorded.append(phys_offset.copy())

    def add_returned(self, phys_offset: Offsets, pos: Offsets) -> None:
        """Add timers that were returned to a level; they may be transferred again."""
        if not phys_offset.size:
            return
        order = np.argsort(phys_offset, kind="stable")
        offsets = phys_offset[order]
        self._returned.append(Returned(int(offsets[0]), int(offsets[-1]), offsets, pos[order]))
        self._sorted = None
        if self._recorded is not None:
            self._recorded.append(phys_offset.copy())

    @property
    def returning(self) -> bool:
        """Whether units of returned timers lack tombstones; then no unit may be transferred."""
        return bool(self._returned)

    @property
    def returned_count(self) -> int:
        """Number of returned timers until the next checkpoint; each takes 16 bytes."""
        return sum(item.offsets.size for item in self._returned)

    def start_recording(self) -> None:
        """Record timers that are added from now on, even if a checkpoint writes them meanwhile."""
        self._recorded = []

    def stop_recording(self) -> Offsets:
        """Return the log offsets of timers added since `start_recording`, and stop recording."""
        recorded, self._recorded = self._recorded, None
        return np.concatenate([NO_OFFSETS, *(recorded or ())])

    def has(self, phys_offset: Offsets) -> Mask:
        """Return which of these timers are settled."""
        known, found = self._positions, np.zeros(phys_offset.size, np.bool_)
        if known:
            found = np.array([offset in known for offset in phys_offset.tolist()], np.bool_)
        low, high = (int(phys_offset.min()), int(phys_offset.max())) if found.size else (0, -1)
        for first, last, offsets, _ in self._returned:
            if high < first or last < low:
                continue
            position = np.minimum(np.searchsorted(offsets, phys_offset), offsets.size - 1)
            found |= offsets[position] == phys_offset
        return found

    @property
    def offsets(self) -> Offsets:
        """Log offsets, ascending."""
        if self._sorted is None:
            own = np.fromiter(self._positions, np.int64, len(self._positions))
            pieces = [own, *(item.offsets for item in self._returned)]
            self._sorted = np.sort(np.concatenate(pieces))
        return self._sorted

    def capture(self) -> dict[int, int]:
        """Return log offsets and unit positions of the settled timers, for the next checkpoint."""
        return dict(self._positions)

    def capture_returned(self) -> list[Offsets]:
        """Return the positions of units returned to a level, for the next checkpoint."""
        return [item.positions for item in self._returned]

    def remove_written(self, captured: dict[int, int], returned_batches: int = 0) -> None:
        """Remove the timers whose tombstones a checkpoint wrote.

        Args:
            captured: Result of `capture`.
            returned_batches: Length of the result of `capture_returned`.
        """
        for phys_offset in captured:
            self._positions.pop(phys_offset, None)
        del self._returned[:returned_batches]
        self._sorted = None

    def clear(self) -> None:
        """Remove all timers, after a rebuild without settled timers."""
        self._positions.clear()
        self._returned.clear()
        self._sorted = None
