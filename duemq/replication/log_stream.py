"""Log stream: joins the transfers of a master into consecutive log bytes, without I/O.

    bytes --feed--> headers, parsed by the framing --begin--> log bytes: `pending`, from `offset` on

A replica whose log is not empty requests its own last record again. The stream compares the copy
of the master with that of the replica: if both are equal, the logs are equal before this record as
well. Without this comparison, a log that diverged at the end of a record would not be detected. One
byte may differ: the letter of DELAY in a level message, which a migration rewrites in place while
timers own the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from duemq_common.errors import ReplicationFault

TRANSFER_BYTES_MAX: Final = 64 << 20  # Apache sends at most haTransferBatchSize, 32 KiB
BUFFER_BYTES: Final = 1 << 20
HEARTBEATS_MAX: Final = 2  # consecutive, from a master that has more log than it sends
LETTERS: Final = b"Yy"  # last letter of DELAY, and of DELAy while timers own the message
DIVERGED: Final = "the logs have diverged. Empty this replica's store to copy the log again"
HeaderReader = Callable[[bytes], None]


class LogStream:
    """Consecutive log bytes of a master. Base of the framings.

    Attributes:
        offset: Log offset of the first byte of `pending`.
        master_offset: End of the master's log as far as known from frames.
        is_placed: Whether `offset` is known.
        is_idle: Whether the last frame was a heartbeat: the master has no more log to send.
        is_end_known: Whether the master has sent the end of its log: by a heartbeat, or in its
            handshake. Until then `master_offset` is only the end of the last transfer.
        heartbeats: Number of heartbeats since the last log bytes.
    """

    def __init__(self) -> None:
        self.offset = self.master_offset = 0
        self.is_idle = self.is_end_known = False
        self.is_placed = False
        self._log: npt.NDArray[np.uint8] = np.empty(BUFFER_BYTES, np.uint8)
        self._size = 0
        self._repeated = b""  # bytes of this log that the master has to send first
        self._letter_offset = -1  # log offset of the byte in it that may differ
        self._head, self._head_bytes = bytearray(), 0
        self._read: HeaderReader = self._unexpected
        self._left = 0  # bytes of the transfer in progress
        self.heartbeats = 0

    @property
    def pending(self) -> npt.NDArray[np.uint8]:
        """Received log bytes from `offset` on that `take` has not removed."""
        return self._log[: self._size]

    @property
    def is_compared(self) -> bool:
        """Whether the comparison with the master's copy of the last record is complete."""
        return not self._repeated

    @property
    def is_partial(self) -> bool:
        """Whether to receive more of the transfer in progress before `pending` is appended.

        One append of a whole transfer is faster than several appends of its parts.
        """
        return self._left > 0 and self._size < BUFFER_BYTES

    def take(self, size: int) -> None:
        """Remove the first `size` bytes of `pending`."""
        self._log[: self._size - size] = self._log[size : self._size]
        self._size -= size
        self.offset += size

    def feed(self, data: memoryview) -> None:
        """Add received bytes.

        Raises:
            ReplicationFault: A header is invalid, a transfer does not continue the log, or the
                logs have diverged.
        """
        position = 0
        while position < len(data):
            if self._left:
                part = data[position : position + self._left]
                self._left -= len(part)
                self._add(part)
            else:
                part = data[position : position + self._head_bytes - len(self._head)]
                self._head += part
                if len(self._head) == self._head_bytes:
                    head = bytes(self._head)
                    self._head.clear()
                    self._read(head)
            position += len(part)

    # -- for the framings -----------------------------------------------------------------------

    def place(
        self, offset: int, *, prefix: bytes = b"", repeated: bytes = b"", letter_at: int = -1
    ) -> None:
        """Expect the first transfer at `offset`; without a call, accept any log offset.

        Args:
            prefix: Bytes of the log at `offset` that are added to `pending` without a transfer.
            repeated: Bytes of this log at `offset` that are compared with the transfer.
            letter_at: Index in `repeated` of the byte that may be any of `LETTERS`; -1: none.
        """
        self._letter_offset = offset + letter_at if letter_at >= 0 else -1
        self.is_placed, self._repeated = True, repeated
        self.offset = offset
        self.master_offset = max(self.master_offset, offset + len(repeated))
        self._log[: len(prefix)] = np.frombuffer(prefix, np.uint8)
        self._size = len(prefix)

    def expect(self, size: int, read: HeaderReader) -> None:
        """Call `read` with each following block of `size` bytes that are not log bytes."""
        assert size > 0
        self._head_bytes, self._read = size, read

    def compared(self) -> None:
        """Handle the end of the comparison, which found no difference."""

    def begin(self, offset: int, size: int) -> None:
        """Treat the next `size` bytes as log bytes at `offset`; 0: a heartbeat.

        Raises:
            ReplicationFault: The bytes do not continue the log.
        """
        expected = self.offset + self._size
        if not self.is_placed:
            self.offset, expected = max(offset, 0), offset
        self.is_placed |= size > 0
        if offset != expected:
            raise ReplicationFault(
                f"the master sends log offset {offset}, this replica's log ends at "
                f"{expected}: {DIVERGED}"
            )
        self.master_offset = max(self.master_offset, offset + size)
        self._left, self.is_idle = size, not size
        self.is_end_known |= self.is_idle
        self.heartbeats = self.heartbeats + 1 if self.is_idle else 0
        self._check_idle()

    def _check_idle(self) -> None:
        end = self.offset + self._size
        if self.is_idle and self._repeated:
            raise ReplicationFault(
                f"the master's log ends before the last record of this replica's log, at log "
                f"offset {self.offset}: {DIVERGED}"
            )
        if self.heartbeats >= HEARTBEATS_MAX and self.master_offset > end:
            raise ReplicationFault(
                f"the master's log ends at {self.master_offset}, but the master sends nothing from "
                f"log offset {end} on: the files there have expired. Empty this replica's store to "
                f"copy the log again"
            )

    def _unexpected(self, head: bytes) -> None:
        raise AssertionError("the framing has not called expect()")

    def _add(self, part: memoryview) -> None:
        if self._repeated:
            part = self._compare(part)
        end = self._size + len(part)
        self._reserve(end)
        self._log[self._size : end] = np.frombuffer(part, np.uint8)
        self._size = end

    def _compare(self, part: memoryview) -> memoryview:
        """Compare received bytes with `_repeated`; return the bytes after the compared ones.

        Raises:
            ReplicationFault: They differ.
        """
        size = min(len(part), len(self._repeated))
        if self._with_own_letter(bytes(part[:size])) != self._repeated[:size]:
            raise ReplicationFault(
                f"the last record of this replica's log, which ends at log offset "
                f"{self.offset + len(self._repeated)}, differs from the master's: {DIVERGED}"
            )
        self._repeated = self._repeated[size:]
        self.offset += size
        if not self._repeated:
            self.compared()
        return part[size:]

    def _with_own_letter(self, received: bytes) -> bytes:
        """Return the bytes received at `offset`, with the letter of DELAY as in this log."""
        position = self._letter_offset - self.offset
        if (
            self._letter_offset < 0
            or not 0 <= position < len(received)
            or received[position] not in LETTERS
        ):
            return received
        return (
            received[:position] + self._repeated[position : position + 1] + received[position + 1 :]
        )

    def _reserve(self, size: int) -> None:
        if size > self._log.size:
            grown = np.empty(max(self._log.size * 2, size), np.uint8)
            grown[: self._size] = self._log[: self._size]
            self._log = grown
