"""Memory budget of an endpoint: frames, requests, held pulls and unread responses of all peers.

    received, not taken yet      + requests in hand + held pulls + answers not read yet
    \\_____________________________ charged to its connection ______________________________/

    used    0 ........ 1/2 ............ 3/4 ............ limit
    answers that a peer may leave unread
            8 MiB      1 MiB            256 KiB          stuck connections are closed

A connection is stuck while it holds part of a frame or does not read its answers. When the budget
is used up, connections that hold more than `FLOOR_BYTES` are closed, the one that is stuck for the
longest first, until a quarter of the budget is free: a peer with small frames, or one whose big
frame is on its way, goes on. All methods belong to the event loop's thread.
"""

from __future__ import annotations

import logging
import math
from typing import Final, Protocol

log = logging.getLogger(__name__)
FLOOR_BYTES: Final = 1 << 14  # that any connection may use
LIMIT_BYTES: Final = 512 << 20
HELD_PULL_BYTES: Final = 4_096  # objects of one held pull
UNSENT_BYTES: Final = (8 << 20, 1 << 20, 1 << 18)  # of one peer, by how scarce memory is
NOT_STUCK: Final = math.inf


class Holder(Protocol):
    """A connection as the budget sees it.

    Attributes:
        charged_bytes: written by the budget alone.
    """

    charged_bytes: int

    @property
    def stuck_since_s(self) -> float:
        """Time since which its peer is stuck, or NOT_STUCK."""
        ...

    def recount(self) -> None:
        """Charge the bytes that it uses now."""
        ...

    def bound_unsent(self, unsent_bytes_max: int) -> None:
        """Pause reading from a peer that leaves more than this many bytes unread."""
        ...

    def shed(self, why: str) -> None:
        """Close at once and free all buffers."""
        ...


class MemoryBudget:
    """Memory of all connections together; closes connections when it is used up.

    Args:
        limit_bytes: bound of all that is charged.
    Attributes:
        used_bytes: charged now.
        is_scarce: Whether memory that is kept for speed should be given back.
        shed_count: Connections that were closed to free memory.
        refused_count: connections that found no room, counted by the server.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.shed_count = self.refused_count = 0
        self._large: set[Holder] = set()  # use more than the floor
        self.is_scarce = False
        self._scarcity = 0
        self._relieving = False

    @property
    def unsent_bytes_max(self) -> int:
        """Maximum bytes that a peer may leave unread now."""
        return UNSENT_BYTES[self._scarcity]

    def charge(self, holder: Holder, held_bytes: int) -> None:
        """Set the memory of a connection; close connections if the total is over the limit."""
        was_bytes = holder.charged_bytes
        holder.charged_bytes = held_bytes
        self.used_bytes += held_bytes - was_bytes
        if held_bytes > FLOOR_BYTES:
            if was_bytes <= FLOOR_BYTES:
                self._large.add(holder)
                holder.bound_unsent(self.unsent_bytes_max)
        elif was_bytes > FLOOR_BYTES:
            self._large.discard(holder)
        self._weigh()

    def reserve(self, count: int) -> bool:
        """Reserve memory of no connection; return False if there is none. `free` returns it."""
        if self.used_bytes + count > self.limit_bytes // 4 * 3:
            return False
        self.used_bytes += count
        self._weigh()
        return True

    def free(self, count: int) -> None:
        """Free what `reserve` reserved."""
        self.used_bytes -= count
        self._weigh()

    def _weigh(self) -> None:
        used, limit = self.used_bytes, self.limit_bytes
        scarcity = (used > limit // 2) + (used > limit // 4 * 3)
        if scarcity != self._scarcity:
            self._scarcity, self.is_scarce = scarcity, scarcity > 0
            for holder in list(self._large):
                holder.bound_unsent(self.unsent_bytes_max)
        if used > limit and not self._relieving:
            self._relieving = True
            try:
                self._relieve()
            finally:
                self._relieving = False

    def _relieve(self) -> None:
        for holder in list(self._large):  # charges are from the last event of each
            holder.recount()
        goal_bytes = self.limit_bytes // 4 * 3
        for holder in sorted(self._large, key=lambda each: each.stuck_since_s):
            if self.used_bytes <= goal_bytes or holder.stuck_since_s == NOT_STUCK:
                return
            self.shed_count += 1
            holder.shed(
                f"it holds {holder.charged_bytes} bytes, and all connections together hold over "
                f"{self.limit_bytes} (remotingMemoryMax)"
            )
