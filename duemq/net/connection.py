"""Remoting connection, client or server side: incoming frames, request tasks, responses, calls.

Requests of a connection run concurrently, and responses are sent in any order: peers match them by
`opaque`. Each side numbers its requests independently. Bit 0 of the flag is set in responses. Not
thread-safe: all methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

import msgspec

from duemq.net import codec
from duemq.net.dispatcher import (
    Calls,
    Deferred,
    Dispatcher,
    Handler,
    LaterOutcome,
    LaterResponse,
    RequestsInFlight,
    encode_response,
)
from duemq.net.limits import RemotingLimits
from duemq.net.memory import FLOOR_BYTES, NOT_STUCK, MemoryBudget, ReceiveBuffer, estimate_bytes
from duemq.net.notices import PeerNotices
from duemq_common.codes import ResponseCode
from duemq_common.errors import FrameError
from duemq_common.request import Peer, Request, Response, ip_address

log = logging.getLogger(__name__)


class FrameHandler(Protocol):
    """Handler of the frames of many connections, run once per event loop turn."""

    def ready(self, connection: Connection) -> None:
        """Schedule a turn for a connection whose `received` has grown."""
        ...

    async def drain(self) -> None:
        """Handle all received frames, and wait until every response is sent."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Protocol of one socket, and the `Peer` of its requests.

    Attributes:
        received: Bytes that are not parsed yet.
        in_turn: Whether the frame handler has this connection in its next turn.
        is_prepared: Whether the preparation of the first unparsed frame is complete.
        sender: Grants of the peer as a sender, set by the frame handler.
        born_host: Address bytes (4 or 16) and port of the peer.
        is_active: Whether bytes were read or written since the last sweep.
        charged_bytes: Bytes charged to the memory budget.
        in_flight_bytes: Bytes of large requests that wait, and of requests that tasks handle.
        writes_stalled: Whether requests are paused until the peer reads responses.
    """

    __slots__ = (  # CPython shares no dict keys from 30 attributes on, which is slow
        "__weakref__",
        "_address",
        "_calls",
        "_close_callbacks",
        "_closed",
        "_dispatcher",
        "_draining",
        "_frame_handler",
        "_in_flight",
        "_incomplete_since_s",
        "_is_shed",
        "_later_bytes",
        "_later_parts",
        "_loop",
        "_memory",
        "_notices",
        "_on_lost",
        "_on_open",
        "_paused",
        "_stalled_since_s",
        "_transport",
        "_unsent_bytes_max",
        "_writable",
        "_written_bytes",
        "active_at_ms",
        "born_host",
        "charged_bytes",
        "in_flight_bytes",
        "in_turn",
        "is_active",
        "is_prepared",
        "limits",
        "received",
        "sender",
        "writes_stalled",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        limits: RemotingLimits,
        frame_handler: FrameHandler | None = None,
        memory: MemoryBudget | None = None,
        notices: PeerNotices | None = None,
        address: tuple[str, int] | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
    ) -> None:
        self.received = ReceiveBuffer()
        self.limits = limits
        self.in_turn = self.is_prepared = False
        self.sender: Any = None
        self.is_active = True
        self.active_at_ms = 0
        self.born_host: tuple[bytes, int] = (b"\0\0\0\0", 0)
        self._address = address or ("", 0)
        self._dispatcher = dispatcher
        self._frame_handler = frame_handler
        self._on_open, self._on_lost = on_open, on_lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._in_flight = RequestsInFlight()
        self._calls: Calls | None = None  # at the first one: a server calls few clients
        self._close_callbacks: list[Callable[[Peer], None]] = []
        self._memory = memory or MemoryBudget()
        self._notices = notices or PeerNotices(log)
        self.charged_bytes = 0
        self._unsent_bytes_max = self.limits.write_buffer_bytes_max
        self.in_flight_bytes = 0
        self._incomplete_since_s = self._stalled_since_s = 0.0
        self._closed = self._is_shed = self._draining = self._paused = False
        self.writes_stalled = False
        self._writable = asyncio.Event()  # set while writes are not stalled
        self._written_bytes = 0  # bytes written since the last check of unread bytes
        self._later_parts: list[bytes | memoryview] = []  # of responses to be written together
        self._later_bytes = 0

    def __repr__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.limit_unsent(self._memory.unsent_bytes_max)
        name = self._address
        if not name[0]:
            name = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        address = ip_address(name[0])
        self._address = (str(address), name[1])
        self.born_host = (address.packed, name[1])
        if self._on_open is not None:
            self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            return self.received.writable(self._memory.read_bytes_max)
        except MemoryError:  # the process has reached its limit (ulimit -v)
            self.shed("no memory for its request")
            return self.received.discard()

    def buffer_updated(self, nbytes: int) -> None:
        received = self.received
        received.received(nbytes)
        self.is_active = True
        if received.end > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
            if received.moved or self.charged_bytes <= FLOOR_BYTES:
                received.moved = False
                self._incomplete_since_s = self._loop.time()
            self.update_charge()  # the sweep charges smaller amounts
        self._take_frames()
        if self.in_turn and len(received) > self._memory.unparsed_bytes_max:
            self.pause()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if not self.writes_stalled:
            self._stalled_since_s = self._loop.time()
        self.writes_stalled = True
        self._writable.clear()
        self.pause()

    def resume_writing(self) -> None:
        self.writes_stalled = False
        self._writable.set()
        self.resume()
        self.update_charge()
        if len(self.received) and not self.closed:
            self._take_frames()

    def pause(self) -> None:
        """Pause reading from the socket until `resume`."""
        if self._transport is not None and not self.closed:
            self._paused = True
            self._transport.pause_reading()

    def end_turn(self) -> None:
        """Free consumed memory if memory is scarce; resume reading if no frames wait."""
        if self._memory.is_scarce:
            self.received.shrink()
            self.update_charge()
        if self._paused and not self.in_turn:
            self.resume()

    def resume(self) -> None:
        """Resume reading, unless writes are stalled or the server is stopping."""
        if not self._paused or self.writes_stalled or self._draining or self.closed:
            return
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._writable.set()
        if self._calls is not None:
            self._calls.close()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            self._run_close_callback(callback)
        if self._on_lost is not None:
            self._on_lost(self)
        self._transport = None
        self.received = ReceiveBuffer()
        self.update_charge()

    # Called by the memory budget.

    def update_charge(self) -> None:
        """Update the charge to the bytes in use; a closing connection keeps its charge."""
        if self._is_shed or (self._closed and self._transport is not None):
            return
        held_bytes = self.received.touched + self.in_flight_bytes + self.unsent_bytes
        if held_bytes != self.charged_bytes:
            self._memory.charge(self, held_bytes)

    @property
    def stuck_since_s(self) -> float:
        """Loop time in s of an incomplete frame or of unread responses, or NOT_STUCK."""
        incomplete_s = self._incomplete_since_s if len(self.received) else NOT_STUCK
        return min(incomplete_s, self._stalled_since_s) if self.writes_stalled else incomplete_s

    def limit_unsent(self, unsent_bytes_max: int) -> None:
        """Pause reading while the peer leaves more than this many bytes unread."""
        self._unsent_bytes_max = min(unsent_bytes_max, self.limits.write_buffer_bytes_max)
        if self._transport is not None and not self._closed:
            self._transport.set_write_buffer_limits(high=self._unsent_bytes_max)

    def shed(self, reason: str) -> None:
        """Abort the connection; unsent bytes are dropped."""
        self._notices.shed("%r: %s; connection closed", self, reason)
        self._is_shed = True
        self.abort()  # `connection_lost` frees the rest
        self._memory.charge(self, 0)

    def _run_close_callback(self, callback: Callable[[Peer], None]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("%r: a close callback failed", self)

    # `Peer` interface, used by handlers.

    @property
    def address(self) -> tuple[str, int]:
        """Remote IP text and port."""
        return self._address

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("sslcontext") is not None

    @property
    def requests_in_flight(self) -> int:
        """Number of requests in flight."""
        return len(self._in_flight)

    def send_oneway(self, request: Request) -> None:
        """Send a one-way request; drop it if the connection is closed or the peer does not read."""
        if self._closed or self.unsent_bytes > self.limits.notices_bytes_max:
            return
        opaque = self._to_peer().next_opaque()
        sent = msgspec.structs.replace(request, opaque=opaque, oneway=True)
        self.write(codec.encode_request(sent))

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """Send a request and return its response, whatever its code.

        Raises:
            TimeoutError: No response in time.
            ConnectionError: The connection closed first, or too many calls are in flight.
        """
        if self.closed:
            raise ConnectionResetError(f"{self!r} is closed")
        return await self._to_peer().call(request, self.write, timeout_s)

    def _to_peer(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(repr(self), self.limits.calls_in_flight_max)
        return self._calls

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Call `callback` once when the connection closes; at once if it is already closed."""
        if self._closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    # Input.

    def _take_frames(self) -> None:
        """Pass the received frames to the frame handler; without one, handle each at once."""
        if self._frame_handler is not None:
            self._frame_handler.ready(self)
            return
        received, bytes_max = self.received, self.limits.frame_bytes_max
        try:
            while not self.closed and not self.writes_stalled:
                start, end = received.start, received.end
                frame = codec.next_frame(received.view, start, end, bytes_max=bytes_max)
                if frame is None:
                    return
                self.dispatch(codec.decode_frame(received.view, frame), frame.serialize_type)
                received.take(frame.end)
        except FrameError as error:
            self.close_malformed(error)

    def dispatch(
        self, command: codec.Command, serialize_type: int, checked: Handler | None = None
    ) -> None:
        """Start the handler of a request (or `checked`), or pass a response to its call."""
        if isinstance(command, codec.ReceivedResponse):
            self._to_peer().receive(command)
            return
        command.peer = self
        if (count := len(self._in_flight)) >= self.limits.requests_in_flight_max:
            text = f"{count} requests of this connection are in flight, start flow control"
            self.respond(command, Response(ResponseCode.SYSTEM_BUSY, text), serialize_type)
        elif self._dispatcher.responds_at_once(command.code) and not self._has_unread_backlog:
            result = self._dispatcher.begin(command, checked)
            if isinstance(result, Response):
                self.respond(command, result, serialize_type)
            elif isinstance(result, LaterResponse):
                result.receiver, result.serialize_type = self, serialize_type
                self._in_flight.add_later(result)
            else:
                self.spawn(self._serve(command, serialize_type, checked, result))
        else:
            self.spawn(self._serve(command, serialize_type, checked, None))

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine as a task that counts as a request in flight."""
        self._in_flight.add_task(self._loop.create_task(work, name="request"))

    async def _serve(
        self, request: Request, serialize_type: int, checked: Handler | None, begun: Deferred | None
    ) -> None:
        in_flight_bytes = estimate_bytes(request)
        self.in_flight_bytes += in_flight_bytes
        self.update_charge()
        try:
            if self._has_unread_backlog:
                await self._wait_until_read()
                if self.closed and not request.oneway and begun is None:
                    return  # the response could not be sent, so skip the request
            result = begun if begun is not None else self._dispatcher.begin(request, checked)
            response = result if isinstance(result, Response) else await result
        finally:
            self.in_flight_bytes -= in_flight_bytes
            self.update_charge()
        if response is not None:
            self.respond(request, response, serialize_type)

    def respond_later(self, later: LaterResponse, outcome: LaterOutcome) -> None:
        """Send the response that a handler made later.

        Those of one turn of the event loop are written together, since the long polls of a consumer
        often end at the same time: a write is a system call.
        """
        self._in_flight.end_later(later)
        if not isinstance(outcome, Response) or self.closed:
            return
        parts = encode_response(later.request, outcome, later.serialize_type)
        if not self._later_parts:
            self._loop.call_soon(self._write_later)
        self._later_parts += parts
        self._later_bytes += sum(map(len, parts))
        if self._later_bytes > FLOOR_BYTES:
            self._write_later()

    def _write_later(self) -> None:
        """Write the responses that handlers made later."""
        parts, self._later_parts, self._later_bytes = self._later_parts, [], 0
        if parts and self._transport is not None and not self._closed:
            self.is_active = True
            self._transport.writelines(parts)
            self._charge_unread()

    async def _wait_until_read(self) -> None:
        """Wait until the peer has read enough responses, or the connection is closed.

        One read may contain hundreds of requests, whose responses would accumulate before reading
        from the peer pauses.
        """
        while self._has_unread_backlog and not self.closed:
            if self.writes_stalled:
                await self._writable.wait()
            else:
                await asyncio.sleep(0)  # `pause_writing` is about to be called

    @property
    def _has_unread_backlog(self) -> bool:
        """Whether the unread responses exceed the limit."""
        return not self._closed and self.unsent_bytes > self._unsent_bytes_max

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the write buffer."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size() + self._later_bytes

    # Output.

    def respond(self, request: Request, response: Response, serialize_type: int) -> None:
        """Send a response in the encoding of its request; none to a one-way request."""
        if request.oneway or self.closed:
            return
        parts = encode_response(request, response, serialize_type)
        self.is_active = True
        if self._transport is not None:
            self._transport.writelines(parts)
            self._charge_unread()

    def write(self, data: bytes) -> None:
        """Send whole frames; drop them if the connection is closed."""
        if self._transport is not None and not self._closed:
            self.is_active = True
            self._transport.write(data)
            self._written_bytes += len(data)
            if self._written_bytes > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
                self._charge_unread()

    def _charge_unread(self) -> None:
        """Charge unread bytes above the floor to the memory budget."""
        self._written_bytes = 0
        if self.unsent_bytes > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
            self.update_charge()

    def close_malformed(self, error: FrameError) -> None:
        """Discard received bytes and close after a malformed frame."""
        self._notices.broken("%r: %s; connection closed", self, error)
        self.received.take(self.received.end)
        self.close()

    def close(self) -> None:
        """Close after written bytes are flushed."""
        if self._closed:  # asyncio's TLS transport breaks when it is closed twice
            return
        self._write_later()
        self._closed = True
        if self._transport is not None and not self._transport.is_closing():
            if self.unsent_bytes:  # a peer that does not read must not delay this forever
                self._loop.call_later(self.limits.close_wait_s, self._transport.abort)
            self._transport.close()

    def stop_reading(self) -> None:
        """Stop reading requests."""
        self._draining = True
        self.pause()

    async def finish(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the requests in flight, then cancel the rest."""
        await self._in_flight.finish(timeout_s)

    def abort(self) -> None:
        """Close at once, without sending written bytes."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    async def drain(self, timeout_s: float) -> None:
        """Stop reading, finish the requests in flight, close."""
        self.stop_reading()
        await self.finish(timeout_s)
        self.close()
