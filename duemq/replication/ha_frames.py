"""Frames of Apache's HA protocol (DefaultHA).

replica -> master   HA_REPORT     end of the replica's log: request and acknowledgement
master -> replica   HA_TRANSFER   log offset and size, then `size` bytes of log; 0: a heartbeat
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from duemq.replication.layout import TRANSFER, TRANSFER_BYTES
from message_store.errors import ReplicationFault

TRANSFER_BYTES_MAX: Final = 64 << 20  # Apache sends at most haTransferBatchSize, 32 KiB
BUFFER_BYTES: Final = 1 << 20


class TransferStream:
    """Joins the transfers of a connection to consecutive log bytes.

    Attributes:
        offset: Log offset of the first byte that was not taken yet.
        master_offset: End of the master's log as far as known from frames.
        is_idle: Whether the last frame was a heartbeat: the master has nothing more to send.

    Args:
        offset: End of the replica's log when the connection was opened; None: the log is empty
            and begins where the first transfer begins.
        known: Bytes of the log at `offset` that are known without a transfer.
    """

    def __init__(self, offset: int | None, known: bytes = b"") -> None:
        self.offset = offset or 0
        self.master_offset = self.offset
        self._placed = offset is not None
        self._log: npt.NDArray[np.uint8] = np.empty(BUFFER_BYTES, np.uint8)
        self._log[: len(known)] = np.frombuffer(known, np.uint8)
        self._size = len(known)
        self._head = bytearray()
        self.is_idle = False
        self._left = 0  # bytes of the transfer in progress

    @property
    def pending(self) -> npt.NDArray[np.uint8]:
        """The log bytes at `offset` that were not taken yet."""
        return self._log[: self._size]

    def take(self, size: int) -> None:
        """Remove the first `size` bytes of `pending`."""
        self._log[: self._size - size] = self._log[size : self._size]
        self._size -= size
        self.offset += size

    def feed(self, data: memoryview) -> None:
        """Add received bytes.

        Raises:
            ReplicationFault: A header that cannot be, or a gap between two transfers.
        """
        at = 0
        while at < len(data):
            if not self._left:
                at += self._read_head(data[at:])
                continue
            part = data[at : at + self._left]
            self._reserve(len(part))
            self._log[self._size : self._size + len(part)] = np.frombuffer(part, np.uint8)
            self._size += len(part)
            self._left -= len(part)
            at += len(part)

    def _read_head(self, data: memoryview) -> int:
        part = data[: TRANSFER_BYTES - len(self._head)]
        self._head += part
        if len(self._head) == TRANSFER_BYTES:
            offset, size = TRANSFER.unpack(self._head)
            self._head.clear()
            self._begin(offset, size)
        return len(part)

    def _begin(self, offset: int, size: int) -> None:
        if not 0 <= size <= TRANSFER_BYTES_MAX or offset < 0:
            raise ReplicationFault(
                f"the master sent a transfer of {size} bytes at log offset {offset}: this is not "
                f"Apache's HA protocol, or haMasterAddress names another port"
            )
        expected = self.offset + self._size
        if not self._placed:
            self.offset = expected = offset
        self._placed |= size > 0
        if offset != expected:
            raise ReplicationFault(
                f"the master continues at log offset {offset}, this replica's log ends at "
                f"{expected}: the logs have diverged. Empty this replica's store to copy it again"
            )
        self.master_offset = max(self.master_offset, offset + size)
        self._left, self.is_idle = size, not size

    def _reserve(self, size: int) -> None:
        if self._size + size > self._log.size:
            grown = np.empty(max(self._log.size * 2, self._size + size), np.uint8)
            grown[: self._size] = self._log[: self._size]
            self._log = grown
