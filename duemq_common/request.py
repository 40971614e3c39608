"""Requests and responses of RocketMQ's remoting protocol, decoded, and the peer of a connection."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct


def ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an IP address without its zone; an IPv4 address in an IPv6 one as IPv4.

    Raises:
        ValueError: The text is not an IP address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


class Peer(Protocol):
    """The other end of one connection."""

    @property
    def address(self) -> tuple[str, int]:
        """Remote IP text and port."""
        ...

    @property
    def closed(self) -> bool: ...

    def send_oneway(self, request: Request) -> None:
        """Send a request that gets no response; dropped when the connection is closed."""
        ...

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """Send a request and return its response.

        Raises:
            TimeoutError: No response in time.
            ConnectionError: The connection closed first.
        """
        ...

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Register a function that is called once when the connection has closed."""
        ...


class Request(Struct, gc=False):  # thousands are on hold, and have no cycles
    """One request, in either header encoding. `fields` are the extFields as text."""

    code: int
    fields: dict[str, str]
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    language: str = "JAVA"
    version: int = 0
    remark: str | None = None
    oneway: bool = False
    peer: Peer | None = None


class Response(Struct):
    """The response to one request; `code` 0 is success."""

    code: int = 0
    remark: str | None = None
    fields: dict[str, str] | None = None
    body: bytes | memoryview | Sequence[memoryview] = b""


def bytes_of(response: Response) -> bytes:
    """Return the body of a response as bytes."""
    body = response.body
    return bytes(body) if isinstance(body, bytes | memoryview) else b"".join(body)


RequestHandler = Callable[[Request], Awaitable[Response | None]]
"""Handles one request; None sends no response now (one-way). A RequestError becomes a response."""
