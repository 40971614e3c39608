"""Snapshot: rows of a table as they were at one instant, read in pieces while the table changes.

    rows      |  block 0  |  block 1  |  block 2  |     read in this order
    copies                    block 1                   made before a change of an unread block

A checkpoint of a million schedules neither stops deliveries nor copies the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK_ROWS: Final = 1_024
PIECE_BLOCKS: Final = 16
Rows = npt.NDArray[np.void]
Bytes = npt.NDArray[np.uint8]


class RowSnapshot:
    """Rows of one instant.

    Args:
        rows: Rows that change later; each change is announced by `before_change`.
    """

    def __init__(self, rows: Rows) -> None:
        self.count, self._row_bytes = rows.size, rows.dtype.itemsize
        self._data: Bytes = rows.view(np.uint8)
        self._copies: dict[int, Bytes] = {}
        self._next_block = 0

    def before_change(self, slot: int) -> None:
        """Copy the block of a slot unless it was read."""
        block = slot // BLOCK_ROWS
        if slot < self.count and block >= self._next_block and block not in self._copies:
            self._copies[block] = self._block(block).copy()

    def pieces(self) -> Iterator[Bytes]:
        """Yield the bytes of all rows. Each piece is valid until the next one."""
        block_bytes = BLOCK_ROWS * self._row_bytes
        buffer: Bytes = np.empty(PIECE_BLOCKS * block_bytes, np.uint8)
        end_block = -(-self.count // BLOCK_ROWS)
        while self._next_block < end_block:
            size = 0
            for block in range(self._next_block, min(self._next_block + PIECE_BLOCKS, end_block)):
                copy = self._copies.pop(block, None)
                data = self._block(block) if copy is None else copy
                buffer[size : size + data.size] = data
                size += data.size
            self._next_block += PIECE_BLOCKS
            yield buffer[:size]

    def _block(self, block: int) -> Bytes:
        size = BLOCK_ROWS * self._row_bytes
        return self._data[block * size : (block + 1) * size]
