"""Connection of a client to one server: frames, calls by opaque number, requests of the server.

Frames of one turn of the event loop are written together. One timer watches the deadlines of all
calls, so a call costs a future and no timer. Not thread-safe: all methods run on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from duemq.net import codec
from duemq.net.codec import ReceivedResponse
from duemq.net.layout import OPAQUE_MASK
from duemq_common.errors import FrameError
from duemq_common.request import Request, Response

log = logging.getLogger(__name__)
CLOSED: Final = "the connection was closed"
LOOK_S: Final = 0.25  # interval of checks of deadlines; a call takes this much longer at most
UNSENT_BYTES_MAX: Final = 8 << 20
SILENT_CALLS_MAX: Final = 3  # consecutive calls without a response, then the connection is closed

OnRequest = Callable[["ServerConnection", Request], None]


class ServerConnection(asyncio.Protocol):
    """Protocol of one socket.

    Args:
        address: `host:port` of the server, for texts.
        on_request: Called with each request of the server.
        on_lost: Called once when the connection is lost.
    Attributes:
        version: Version number of the server, from its last response; 0: none yet.
    """

    def __init__(
        self, address: str, on_request: OnRequest, on_lost: Callable[[ServerConnection], None]
    ) -> None:
        self.address = address
        self.version = 0
        self._on_request, self._on_lost = on_request, on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, tuple[asyncio.Future[Response], float]] = {}
        self._opaque = 0
        self._received = bytearray()
        self._unwritten: list[bytes] = []
        self._look: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._silent_calls = 0
        self._is_lost = False
        self.lost = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether no more requests can be sent."""
        return self._is_lost or self._transport is None or self._transport.is_closing()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        received = self._received
        if received:
            received += data
            with memoryview(received) as view:
                start = self._take_frames(view)
            del received[:start]
            return
        with memoryview(data) as view:
            start = self._take_frames(view)
        if start < len(data):
            received += data[start:]

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._writable.set()
        if self._look is not None:
            self._look.cancel()
        calls, self._calls = self._calls, {}
        reason = f"{CLOSED}: {exc}" if exc else CLOSED
        for future, _ in calls.values():
            if not future.done():
                future.set_exception(ConnectionResetError(reason))
        self.lost.set()
        self._on_lost(self)

    # Frames.

    def _take_frames(self, view: memoryview) -> int:
        """Handle the complete frames of a buffer; return the position after them."""
        start, end = 0, len(view)
        try:
            while item := codec.next_command(view, start, end):
                command, start = item
                if isinstance(command, ReceivedResponse):
                    self._respond(command)
                else:
                    self._on_request(self, command)
        except FrameError as error:
            log.warning("%s sent a malformed frame: %s; connection closed", self.address, error)
            self.abort()
            return end
        return start

    def _respond(self, command: ReceivedResponse) -> None:
        self.version = command.version
        self._silent_calls = 0
        call = self._calls.pop(command.opaque, None)
        if call is not None and not call[0].done():
            call[0].set_result(command.response)

    # Calls.

    def call(self, request: Request, timeout_s: float) -> asyncio.Future[Response]:
        """Send a request; return the future of its response, whatever its code.

        The future raises TimeoutError or ConnectionError.

        Raises:
            ConnectionResetError: The connection is closed.
            FrameError: The request is too long.
        """
        if self.closed:
            raise ConnectionResetError(CLOSED)
        opaque = self._next_opaque()
        request.opaque = opaque
        self._write(codec.encode_request(request))
        future: asyncio.Future[Response] = self._loop.create_future()
        self._calls[opaque] = (future, self._loop.time() + timeout_s)
        if self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._end_late_calls)
        return future

    def send_oneway(self, request: Request) -> None:
        """Send a request that gets no response.

        Raises:
            ConnectionResetError: The connection is closed.
            FrameError: The request is too long.
        """
        if self.closed:
            raise ConnectionResetError(CLOSED)
        request.opaque, request.oneway = self._next_opaque(), True
        self._write(codec.encode_request(request))

    def respond(self, request: Request, response: Response) -> None:
        """Send the response to a request of the server."""
        if not request.oneway and not self.closed:
            self._write(b"".join(codec.encode_response(response, request.opaque)))

    async def writable(self) -> None:
        """Wait while the server reads too slowly."""
        await self._writable.wait()

    @property
    def is_writable(self) -> bool:
        """Whether a request can be sent now without a growing buffer."""
        return self._writable.is_set()

    def _next_opaque(self) -> int:
        while True:
            self._opaque = (self._opaque + 1) & OPAQUE_MASK
            if self._opaque not in self._calls:
                return self._opaque

    def _write(self, frame: bytes) -> None:
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(frame)

    def _flush(self) -> None:
        frames, self._unwritten = self._unwritten, []
        if self._transport is not None and not self._is_lost and frames:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _end_late_calls(self) -> None:
        """Time out the calls whose deadline has passed; close a silent connection."""
        now_s = self._loop.time()
        ended = [opaque for opaque, (_, until_s) in self._calls.items() if until_s <= now_s]
        calls = [self._calls.pop(opaque)[0] for opaque in ended]
        late = [future for future in calls if not future.done()]  # others were cancelled
        for future in late:
            future.set_exception(TimeoutError("no response in time"))
        self._silent_calls += bool(late)
        if late and self._silent_calls >= SILENT_CALLS_MAX:
            self.abort()
        self._look = self._loop.call_later(LOOK_S, self._end_late_calls) if self._calls else None

    # End.

    def close(self) -> None:
        """Close after the written requests are sent."""
        self._flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close at once; calls in flight raise ConnectionResetError."""
        if self._transport is not None:
            self._transport.abort()
