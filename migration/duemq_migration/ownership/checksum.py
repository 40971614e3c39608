"""Checksum of a set of messages, independent of their order.

It is the sum, modulo 2^63, of a hash of log offset and due time of each message. Checksums of
disjoint sets can therefore be added, see `TransferTally`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from delayed_delivery.ownership_projection import CHECKSUM_MASK, TransferTally
from timer_store.layout import DUE_MS_MAX

Offsets = npt.NDArray[np.int64]


def checksum(phys_offset: Offsets, due_ms: Offsets) -> int:
    """Return the checksum of messages.

    Args:
        phys_offset, due_ms: (n,) i8; due times outside the timers' range are clamped to it.
    """
    due_ms = np.clip(due_ms, 1, DUE_MS_MAX)
    mixed = phys_offset.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= due_ms.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return int(mixed.sum(dtype=np.uint64)) & CHECKSUM_MASK


def tally_of(phys_offset: Offsets, due_ms: Offsets) -> TransferTally:
    """Return count and checksum of messages; see `checksum`."""
    return TransferTally(int(phys_offset.size), checksum(phys_offset, due_ms))
