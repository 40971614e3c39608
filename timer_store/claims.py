"""Timers settled before their time whose units do not say so yet.

A cancelled, moved or fired timer has its deciding record in the commit log; its unit gets a
tombstone only when that record is on the disk, at a checkpoint. Until then it is known here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]


class Claims:
    """Log offsets of settled timers, with the place of their units in the timer log."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._sorted: Offsets | None = None
        self._heard: list[Offsets] | None = None

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, phys_offset: int) -> bool:
        return phys_offset in self._positions

    def add(self, phys_offset: Offsets, pos: Offsets) -> None:
        """Note timers and their units (-1: in no slot any more)."""
        self._positions.update(zip(phys_offset.tolist(), pos.tolist(), strict=True))
        self._sorted = None
        if self._heard is not None:
            self._heard.append(phys_offset.copy())

    def listen(self) -> None:
        """Keep what is added from now on, also when a checkpoint has written it."""
        self._heard = []

    def heard(self) -> Offsets:
        """Return the log offsets of timers that were added since `listen`, and keep no more."""
        heard, self._heard = self._heard, None
        return np.concatenate([np.empty(0, np.int64), *(heard or ())])

    def has(self, phys_offset: Offsets) -> npt.NDArray[np.bool_]:
        """Return which of these timers are settled."""
        known = self._positions
        if not known:
            return np.zeros(phys_offset.size, np.bool_)
        return np.array([offset in known for offset in phys_offset.tolist()], np.bool_)

    @property
    def offsets(self) -> Offsets:
        """The log offsets, ascending."""
        if self._sorted is None:
            self._sorted = np.sort(np.fromiter(self._positions, np.int64, len(self._positions)))
        return self._sorted

    def taken(self) -> dict[int, int]:
        """Return a copy: what the next checkpoint will write down."""
        return dict(self._positions)

    def written(self, taken: dict[int, int]) -> None:
        """Forget what a checkpoint wrote."""
        for phys_offset in taken:
            self._positions.pop(phys_offset, None)
        self._sorted = None

    def clear(self) -> None:
        """Forget all: the units were made anew without them."""
        self._positions.clear()
        self._sorted = None
