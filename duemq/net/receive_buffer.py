"""Receive buffer of a connection: bytes that are not parsed yet."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

CAPACITY_MIN: Final = 1 << 16  # pages are touched only as data arrives
READ_BYTES_MIN: Final = 1 << 15
READ_BYTES_MAX: Final = 1 << 18  # bytes of one read


class ReceiveBuffer:
    """Growable buffer: the socket writes after `end`, frames are consumed from `start`.

    Attributes:
        data: (capacity,) u1, C-contiguous and writable; replaced when the buffer grows.
        view: Memoryview of `data`.
        start, end: Range of received bytes that are not consumed.
        touched: Number of bytes of `data` ever written, which memory pages back.
        moved: Whether bytes were consumed since the owner cleared this.
    """

    __slots__ = ("data", "end", "moved", "start", "touched", "view")

    def __init__(self) -> None:
        self.start = self.end = self.touched = 0
        self.moved = False
        self.data: npt.NDArray[np.uint8] = np.empty(CAPACITY_MIN, np.uint8)
        self.view: memoryview = self.data.data

    def __len__(self) -> int:
        return self.end - self.start

    def _replace(self, capacity: int) -> None:
        data: npt.NDArray[np.uint8] = np.empty(capacity, np.uint8)
        used = self.end - self.start
        if used:
            data[:used] = self.data[self.start : self.end]
        self.data = data
        self.view = data.data
        self.start, self.end = 0, used
        self.touched = used

    def writable(self) -> memoryview:
        """Return 32 to 256 KiB of free space for the next read."""
        capacity = self.data.size
        if capacity - self.end < READ_BYTES_MIN:
            used = self.end - self.start
            if capacity - used >= READ_BYTES_MIN and used <= capacity // 2:
                self.data[:used] = self.data[self.start : self.end]
                self.start, self.end = 0, used
            else:
                self._replace(capacity * 2)
        return self.view[self.end : self.end + READ_BYTES_MAX]

    def discard(self) -> memoryview:
        """Drop all bytes of a connection that ends; return space for the last read."""
        self.start = self.end = 0
        return self.view[:1]

    def received(self, count: int) -> None:
        """Add `count` bytes that the socket wrote to the space from `writable`."""
        self.end = end = self.end + count
        if end > self.touched:
            self.touched = end

    def take(self, until: int) -> None:
        """Consume all bytes before `until`."""
        assert self.start <= until <= self.end
        if until != self.start:
            self.moved = True
        if until == self.end:
            self.start = self.end = 0
        else:
            self.start = until

    def shrink(self) -> None:
        """Return to the minimum capacity if the buffer is empty."""
        if not len(self) and self.data.size > CAPACITY_MIN:
            self._replace(CAPACITY_MIN)
