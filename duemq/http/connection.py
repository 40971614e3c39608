"""HTTP/1.1 connection with limits, on uvicorn's protocol.

uvicorn limits neither the size of a head nor the time in which a request must arrive or a response
must be read. Here each request must be received within `request_s`, and a peer must read within
`unread_s` if a response fills the buffers. At the limit of connections, a new connection replaces
the one that has been without a complete request longest, so that incomplete requests, idle
connections and peers that do not read cannot delay others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from message_store.descriptors import connections_end, descriptor_limit

HEAD_BYTES_MAX: Final = 8_192
REQUEST_S: Final = 10.0
UNREAD_S: Final = 30.0


@dataclass(slots=True)
class ConnectionLimits:
    """Limits of the connections of one port, and the connections.

    Attributes:
        connections_max: Maximum number of connections.
        request_s: Seconds in which a request must arrive.
        unread_s: Seconds in which a peer must read what fills the buffers.
        open_count: Number of open connections.
        replaceable: Connections without a complete request, oldest first.
    """

    connections_max: int
    request_s: float = REQUEST_S
    unread_s: float = UNREAD_S
    open_count: int = 0
    replaceable: dict[LimitedConnection, None] = field(default_factory=dict)


class LimitedConnection(HttpToolsProtocol):
    """HTTP/1.1 connection with limits."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._in_head, self._head_bytes, self._header_bytes = True, 0, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        limits = self._limits
        limits.open_count += 1
        self._await_request()
        descriptor = transport.get_extra_info("socket").fileno()
        if descriptor >= connections_end(descriptor_limit()):
            transport.abort()
        elif limits.open_count > limits.connections_max:
            next(iter(limits.replaceable))._abort()  # not empty: it has this one

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.open_count -= 1
        self._request_arrived()
        self._cancel_read_deadline()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._limits.replaceable.pop(self, None)  # an idle connection becomes the newest
        self._limits.replaceable[self] = None
        self._deadline = self.loop.call_later(self._limits.request_s, self._abort)

    def _request_arrived(self) -> None:
        self._limits.replaceable.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        self._request_arrived()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("the head of the request is too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._header_bytes = True, 0
        if self._deadline is None:
            self._await_request()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEAD_BYTES_MAX:
            raise ValueError("the head of the request is too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._request_arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # of the newest request
            self._limits.replaceable[self] = None

    def shutdown(self) -> None:
        """Close the connection, after the response of its request if that has arrived."""
        if self._deadline is None or self.pipeline:
            super().shutdown()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_deadline = self.loop.call_later(self._limits.unread_s, self._abort)

    def resume_writing(self) -> None:
        self._cancel_read_deadline()
        super().resume_writing()

    def _cancel_read_deadline(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None
