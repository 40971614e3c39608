"""Memory of connections: the receive buffer of each, and one budget for all.

The budget limits frames, requests, long polls and unread responses of all peers of an endpoint.

    charge of a connection = unparsed bytes + requests in flight + long polls + unread responses

    used    0 ........ 1/2 ............ 3/4 ............ limit
    unread response bytes allowed per peer
            8 MiB      1 MiB            256 KiB          stuck connections are closed

The limits of 1/2 and 3/4 apply until 3/8 and 5/8 are in use.

A connection is stuck while a frame is incomplete or its peer does not read responses. When the
limit is exceeded, stuck connections that use more than `FLOOR_BYTES` are closed, longest stuck
first, until a quarter of the budget is free. Connections with small frames stay open; among
connections with large incomplete frames, the most recent are closed last. Not thread-safe: all
methods run on the event loop's thread.
"""

from __future__ import annotations

import logging
import math
from sys import getsizeof
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from duemq.net.layout import PREFIX_BYTES
from duemq_common.request import Request

log = logging.getLogger(__name__)
CAPACITY_MIN: Final = 1 << 16  # pages are touched only as data arrives
READ_BYTES_MIN: Final = 1 << 15
READ_BYTES_MAX: Final = 1 << 18  # bytes of one read
START_BYTES_MAX: Final = 16  # of a header's start that `begins_with` compares
REQUEST_BYTES: Final = 2_048  # estimated objects of one request in flight, including its task
FLOOR_BYTES: Final = 1 << 14  # every connection may use this much
UNPARSED_BYTES_MAX: Final = 1 << 20  # of frames that wait for their turn; more are not read
LIMIT_BYTES: Final = 512 << 20
LONG_POLL_BYTES: Final = 4_096  # estimated objects of one long poll
UNREAD_BYTES_MAX: Final = (8 << 20, 1 << 20, 1 << 18)  # limit per peer, by level of scarcity
NOT_STUCK: Final = math.inf


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

    def writable(self, size_max: int = READ_BYTES_MAX) -> memoryview:
        """Return 32 to 256 KiB of free space for the next read, or `size_max`."""
        capacity = self.data.size
        if capacity - self.end < READ_BYTES_MIN:
            used = self.end - self.start
            if capacity - used >= READ_BYTES_MIN and used <= capacity // 2:
                self.data[:used] = self.data[self.start : self.end]
                self.start, self.end = 0, used
            else:
                self._replace(capacity * 2)
        return self.view[self.end : self.end + size_max]

    def discard(self) -> memoryview:
        """Drop all bytes of a connection that ends; return space for the last read."""
        self.start = self.end = 0
        return self.view[:1]

    def received(self, count: int) -> None:
        """Add `count` bytes that the socket wrote to the space from `writable`."""
        self.end = end = self.end + count
        if end > self.touched:
            self.touched = end

    def begins_with(self, *starts: bytes) -> bool:
        """Return whether the header of the first frame begins with one of these."""
        first = self.start + PREFIX_BYTES
        return bytes(self.view[first : first + START_BYTES_MAX]).startswith(starts)

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
        """Release the memory of consumed bytes, if they are more than the others and the floor."""
        used = len(self)
        if self.touched - used > max(used, FLOOR_BYTES):
            self._replace(max(CAPACITY_MIN, 2 * used))


def estimate_bytes(request: Request) -> int:
    """Return the estimated memory of a decoded request in bytes."""
    texts = sum(map(getsizeof, request.fields)) + sum(map(getsizeof, request.fields.values()))
    return REQUEST_BYTES + len(request.body) + texts + getsizeof(request.remark)


class ChargedConnection(Protocol):
    """Interface of a connection to the budget.

    Attributes:
        charged_bytes: Bytes charged for the connection; set by the budget only.
    """

    charged_bytes: int

    @property
    def stuck_since_s(self) -> float:
        """Loop time in s at which the connection became stuck, or NOT_STUCK."""
        ...

    def update_charge(self) -> None:
        """Update the charge to the bytes in use."""
        ...

    def limit_unsent(self, unsent_bytes_max: int) -> None:
        """Pause reading while the peer leaves more than this many bytes unread."""
        ...

    def shed(self, reason: str) -> None:
        """Close at once and free all buffers."""
        ...


class MemoryBudget:
    """Memory limit for all connections together; closes connections when it is exceeded.

    Args:
        limit_bytes: Limit of the total charge.
    Attributes:
        used_bytes: Total charge.
        is_scarce: Whether connections should free buffers that they keep for speed.
        read_bytes_max: Maximum number of bytes of one read.
        unparsed_bytes_max: Bytes of frames that wait for their turn, above which a connection is
            not read.
        shed_count: Number of connections closed to free memory.
        refused_count: Number of connections refused at a limit; counted by the servers.
        open_count, encrypted_count: Number of open connections, and of those that use TLS; counted
            by the servers.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.shed_count = self.refused_count = 0
        self.open_count = self.encrypted_count = 0
        self._large: set[ChargedConnection] = set()  # connections above the floor
        self.is_scarce = False
        self.read_bytes_max, self.unparsed_bytes_max = READ_BYTES_MAX, UNPARSED_BYTES_MAX
        self._scarcity = 0
        self._is_freeing = False
        self._trimmed_shed_count = 0

    @property
    def unsent_bytes_max(self) -> int:
        """Current limit of unread bytes per peer."""
        return UNREAD_BYTES_MAX[self._scarcity]

    def charge(self, holder: ChargedConnection, held_bytes: int) -> None:
        """Set the charge of a connection; close connections if the total exceeds the limit."""
        was_bytes = holder.charged_bytes
        holder.charged_bytes = held_bytes
        self.used_bytes += held_bytes - was_bytes
        if held_bytes > FLOOR_BYTES:
            if was_bytes <= FLOOR_BYTES:
                self._large.add(holder)
                holder.limit_unsent(self.unsent_bytes_max)
        elif was_bytes > FLOOR_BYTES:
            self._large.discard(holder)
        self._check_limits()

    def has_room(self, count: int) -> bool:
        """Return whether `count` bytes that belong to no connection can be reserved."""
        return self.used_bytes + count <= self.limit_bytes // 4 * 3

    def reserve(self, count: int, *, is_checked: bool = False) -> bool:
        """Reserve `count` bytes that belong to no connection; return False if memory is scarce.

        Args:
            is_checked: Whether the caller has checked that there is room, or need not check it.
        """
        if not (is_checked or self.has_room(count)):
            return False
        self.used_bytes += count
        self._check_limits()
        return True

    def free(self, count: int) -> None:
        """Free `count` bytes that `reserve` reserved."""
        self.used_bytes -= count
        self._check_limits()

    def should_trim(self) -> bool:
        """Return once whether free memory should be returned to the operating system.

        This is the case after connections were closed to free memory, as soon as three quarters of
        the budget are free.
        """
        if self.shed_count == self._trimmed_shed_count or self.used_bytes > self.limit_bytes // 4:
            return False
        self._trimmed_shed_count = self.shed_count
        return True

    def _check_limits(self) -> None:
        used, limit = self.used_bytes, self.limit_bytes
        scarcity = (used > limit // 2) + (used > limit // 4 * 3)
        if scarcity < self._scarcity:  # a change calls all large connections, so it must be rare
            kept = (used > limit // 8 * 3) + (used > limit // 8 * 5)
            scarcity = max(scarcity, min(self._scarcity, kept))
        if scarcity != self._scarcity:
            self._scarcity, self.is_scarce = scarcity, scarcity > 0
            self.read_bytes_max = FLOOR_BYTES if self.is_scarce else READ_BYTES_MAX
            self.unparsed_bytes_max = 0 if self.is_scarce else UNPARSED_BYTES_MAX
            for holder in list(self._large):
                holder.limit_unsent(self.unsent_bytes_max)
        if used > limit and not self._is_freeing:
            self._is_freeing = True
            try:
                self._free_memory()
            finally:
                self._is_freeing = False

    def _free_memory(self) -> None:
        for holder in list(self._large):  # charges may be outdated
            holder.update_charge()
        goal_bytes = self.limit_bytes // 4 * 3
        for holder in sorted(self._large, key=lambda each: each.stuck_since_s):
            if self.used_bytes <= goal_bytes or holder.stuck_since_s == NOT_STUCK:
                return
            self.shed_count += 1
            holder.shed(
                f"it uses {holder.charged_bytes} bytes, and all connections together exceed "
                f"{self.limit_bytes} bytes (remotingMemoryMax)"
            )
