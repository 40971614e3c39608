"""Calls to the peer of a connection, by the opaque numbers of their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from duemq.net import codec
from duemq_common.request import Request, Response

OPAQUE_MASK: Final = 0x7FFF_FFFF


class Calls:
    """Calls in flight of one connection.

    Args:
        peer: Name of the peer, for errors.
        count_max: Maximum number of calls in flight.
    """

    def __init__(self, peer: str, count_max: int) -> None:
        self._peer, self._count_max = peer, count_max
        self._last_opaque = 0
        self._in_flight: dict[int, asyncio.Future[Response]] = {}

    def next_opaque(self) -> int:
        """Return a number that no call in flight has."""
        while True:
            self._last_opaque = (self._last_opaque + 1) & OPAQUE_MASK
            if self._last_opaque not in self._in_flight:
                return self._last_opaque

    def receive(self, received: codec.ReceivedResponse) -> None:
        """Pass a response to its call."""
        future = self._in_flight.get(received.opaque)
        if future is not None and not future.done():
            future.set_result(received.response)

    def close(self) -> None:
        """End all calls: the connection is lost."""
        for future in list(self._in_flight.values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"{self._peer} closed the connection"))

    async def call(
        self, request: Request, write: Callable[[bytes], None], timeout_s: float
    ) -> Response:
        """Send a request and return its response, whatever its code.

        Raises:
            TimeoutError: No response in time.
            ConnectionError: The connection closed first, or too many calls are in flight.
        """
        if len(self._in_flight) >= self._count_max:
            raise ConnectionError(
                f"{self._peer}: {len(self._in_flight)} calls are in flight already"
            )
        opaque = self.next_opaque()
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._in_flight[opaque] = future
        try:
            write(codec.encode_request(replace(request, opaque=opaque)))
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            del self._in_flight[opaque]
