"""Index of names: 64-bit hash of a name -> slot, 12 bytes a name for most of them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

RECENT_MIN: Final = 4_096


def hash_of(name: str) -> int:
    """Return the 64-bit hash of a name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


class NameIndex:
    """Sorted arrays, and a dictionary of recent changes that is merged into them.

    Args:
        hashes, slots: (n,) initial content.
    """

    def __init__(self, hashes: npt.NDArray[np.uint64], slots: npt.NDArray[np.int32]) -> None:
        order = np.argsort(hashes)
        self._hashes, self._slots = hashes[order], slots[order]
        self._recent: dict[int, int] = {}

    def find(self, name_hash: int) -> int:
        """Return the slot of a hash, -1 without one."""
        slot = self._recent.get(name_hash)
        if slot is not None:
            return slot
        index = int(np.searchsorted(self._hashes, np.uint64(name_hash)))
        if index < self._hashes.size and int(self._hashes[index]) == name_hash:
            return int(self._slots[index])
        return -1

    def set(self, name_hash: int, slot: int) -> None:
        """Set the slot of a hash; -1 removes it."""
        self._recent[name_hash] = slot
        if len(self._recent) > RECENT_MIN + self._hashes.size // 16:
            self._merge()

    def _merge(self) -> None:
        recent = np.fromiter(self._recent.keys(), np.uint64, len(self._recent))
        slots = np.fromiter(self._recent.values(), np.int32, len(self._recent))
        kept = ~np.isin(self._hashes, recent)
        hashes = np.concatenate([self._hashes[kept], recent[slots >= 0]])
        slots = np.concatenate([self._slots[kept], slots[slots >= 0]])
        order = np.argsort(hashes)
        self._hashes, self._slots, self._recent = hashes[order], slots[order], {}
