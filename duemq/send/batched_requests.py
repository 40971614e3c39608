"""Protocol of a component that handles other requests than sends once per turn of the ingest."""

from __future__ import annotations

from typing import Protocol

from duemq.net.connection import Connection
from duemq_common.request import Request


class BatchedRequests(Protocol):
    """Handler of all requests with certain codes, together once per turn, like sends."""

    @property
    def codes(self) -> frozenset[int]: ...

    def begin(self) -> None:
        """Begin a turn, at the first frame that is not a send."""
        ...

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> bool:
        """Add a decoded request; return False if the dispatcher must handle it."""
        ...

    def take_matching(self, connection: Connection) -> bool:
        """Handle the leading frames that need no decoding; return whether there were any."""
        ...

    def finish(self) -> None:
        """Handle the requests added in this turn; called if it was begun."""
        ...

    async def drain(self) -> None:
        """Return when every response is sent."""
        ...
