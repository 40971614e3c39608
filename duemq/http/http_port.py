"""Port of the HTTP server, with its application."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

CONNECTIONS_MAX: Final = 1_024

AsgiEvent = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiEvent]]
Send = Callable[[AsgiEvent], Awaitable[None]]
Application = Callable[[AsgiEvent, Receive, Send], Awaitable[None]]
"""ASGI application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPort:
    """Port with its application.

    Attributes:
        bound: Socket that is bound and does not listen yet.
        application: ASGI application.
        tls: Context of TLS connections; None: plaintext.
        connections_max: Maximum number of connections.
        proxies: Networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are used.
        resources: Entered in the HTTP thread before the port listens, left after it is closed.
        on_stop: Called in the HTTP thread when the port stops, before its connections end.
    """

    bound: socket.socket
    application: Application
    tls: ssl.SSLContext | None = None
    connections_max: int = CONNECTIONS_MAX
    proxies: Sequence[str] = ()
    resources: AbstractAsyncContextManager[object] | None = None
    on_stop: Callable[[], None] | None = None


OpenPort = Callable[[], HttpPort]
"""Returns a port; called in the HTTP thread, where it imports what the application needs."""
