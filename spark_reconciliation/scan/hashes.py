"""64-bit hashes of compared values: names, values, and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from spark_reconciliation.arrays import Words
from spark_reconciliation.kernels import columns as kernels

FACTOR: Final = 0x9E3779B97F4A7C15
WORD: Final = (1 << 64) - 1


def hash_text(data: bytes) -> int:
    """Return the hash of a name or value. `kernels.columns.hash_bytes` is its compiled twin."""
    value = len(data) * FACTOR & WORD
    for index in range(0, len(data), 8):
        value = (value ^ int.from_bytes(data[index : index + 8], "little")) * FACTOR & WORD
        value ^= value >> 32
    return value


def mix(values: Words, more: object) -> Words:
    """Return hashes of pairs: hashes of strings, and (n,) 64-bit numbers or one for all."""
    mixed = (values ^ np.asarray(more).astype(np.int64).view(np.uint64)) * np.uint64(FACTOR)
    mixed ^= mixed >> np.uint64(29)
    return np.asarray(mixed * np.uint64(FACTOR))


def name_table(names: Sequence[str]) -> Words:
    """Return the table of known names that `kernels.columns.index_of` reads."""
    table = np.zeros((kernels.SLOTS, 2), np.uint64)
    for number, name in enumerate(names):
        value = hash_text(name.encode())
        slot = value >> 58
        while table[slot, 0]:
            slot = (slot + 1) % kernels.SLOTS
        table[slot] = value, number
    return table
