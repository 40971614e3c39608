"""One connection, either end: incoming frames, request tasks, responses and calls.

Requests of a connection run concurrently and are answered in any order; a peer matches answers by
`opaque` alone. Both ends number their own requests, so bit 0 of the flag decides first. All methods
belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from delivery.plugin import Peer, Request, Response
from duemq.net import codec
from duemq.net.codes import ResponseCode
from duemq.net.dispatcher import Deferred, Dispatcher, encode_answer
from duemq.net.limits import RemotingLimits
from duemq.net.memory_budget import FLOOR_BYTES, NOT_STUCK, MemoryBudget
from duemq.net.notices import PeerNotices
from duemq.net.receive_buffer import ReceiveBuffer
from message_store.errors import FrameError

log = logging.getLogger(__name__)
_OPAQUE_MASK = 0x7FFF_FFFF
REQUEST_BYTES = 2_048  # objects of one request in hand, its task included


class FrameTaker(Protocol):
    """Handles the frames of many connections together, once per turn of the event loop."""

    def ready(self, connection: Connection) -> None:
        """Note that `connection.received` has grown."""
        ...

    async def drain(self) -> None:
        """Handle what was received, and wait until every response is sent."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol of one socket, and the `Peer` that handlers see.

    Attributes:
        received: Bytes that are not parsed yet.
        in_turn, waited, sender: State of the frame taker.
        born_host: Address bytes (4 or 16) and port of the peer.
        heard: Whether bytes were read or written since the last sweep.
        charged_bytes: Bytes that the memory budget counts for the connection.
        writes_stalled: Whether the peer must read before more of its requests are handled.
        notices_dropped: One-way requests that were dropped because the peer did not read.
    """

    __slots__ = (  # 30 attributes or more in a dict are slow: CPython shares no keys then
        "__weakref__",
        "_address",
        "_calls",
        "_close_callbacks",
        "_closed",
        "_dispatcher",
        "_draining",
        "_in_hand_bytes",
        "_is_shed",
        "_last_opaque",
        "_loop",
        "_memory",
        "_notices",
        "_on_lost",
        "_on_open",
        "_part_since_s",
        "_paused",
        "_stalled_since_s",
        "_taker",
        "_tasks",
        "_transport",
        "_unsent_bytes_max",
        "_writable",
        "_written_bytes",
        "born_host",
        "charged_bytes",
        "heard",
        "in_turn",
        "limits",
        "notices_dropped",
        "quiet_since_ms",
        "received",
        "sender",
        "waited",
        "writes_stalled",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        limits: RemotingLimits,
        taker: FrameTaker | None = None,
        memory: MemoryBudget | None = None,
        notices: PeerNotices | None = None,
        address: tuple[str, int] | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
    ) -> None:
        self.received = ReceiveBuffer()
        self.limits = limits
        self.in_turn = self.waited = False
        self.sender: Any = None
        self.heard = True
        self.quiet_since_ms = 0
        self.born_host: tuple[bytes, int] = (b"\0\0\0\0", 0)
        self._address = address or ("", 0)
        self._dispatcher = dispatcher
        self._taker = taker
        self._on_open, self._on_lost = on_open, on_lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._close_callbacks: list[Callable[[Peer], None]] = []
        self._last_opaque = 0
        self._memory = memory or MemoryBudget()
        self._notices = notices or PeerNotices(log)
        self.charged_bytes = 0
        self.notices_dropped = 0
        self._unsent_bytes_max = self.limits.write_buffer_bytes_max
        self._in_hand_bytes = 0  # of requests that tasks handle
        self._part_since_s = 0.0  # start of the time in which an incomplete frame exceeds the floor
        self._stalled_since_s = 0.0
        self._closed = self._is_shed = False
        self._draining = False
        self.writes_stalled = False
        self._writable = asyncio.Event()  # set when the peer has taken what stalled our writes
        self._paused = False
        self._written_bytes = 0  # since unread bytes were last measured

    def __repr__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.bound_unsent(self._memory.unsent_bytes_max)
        name = self._address
        if not name[0]:
            name = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        address = ipaddress.ip_address(name[0].partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        self._address = (str(address), name[1])
        self.born_host = (address.packed, name[1])
        if self._on_open is not None:
            self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.received.writable()

    def buffer_updated(self, nbytes: int) -> None:
        received = self.received
        received.received(nbytes)
        self.heard = True
        if received.end > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
            if received.moved or self.charged_bytes <= FLOOR_BYTES:
                received.moved = False
                self._part_since_s = self._loop.time()
            self.recount()  # what is below the floor is counted by the sweep
        if self._taker is not None:
            self._taker.ready(self)
        else:
            self.take_frames()

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
        self.recount()
        if len(self.received) and not self.closed:
            self._take_soon()

    def _take_soon(self) -> None:
        if self._taker is not None:
            self._taker.ready(self)
        else:
            self.take_frames()

    def pause(self) -> None:
        """Pause reading from the socket until `resume`."""
        if self._transport is not None and not self.closed:
            self._paused = True
            self._transport.pause_reading()

    def taken(self) -> None:
        """Read on after a turn; give the space of a big frame back while memory is scarce."""
        if self._memory.is_scarce:
            self.received.shrink()
            self.recount()
        if self._paused:
            self.resume()

    def resume(self) -> None:
        """Read on, unless the peer does not take what we write, or the server stops."""
        if not self._paused or self.writes_stalled or self._draining or self.closed:
            return
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._writable.set()
        for future in list(self._calls.values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"{self!r} closed the connection"))
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            self._run_close_callback(callback)
        if self._on_lost is not None:
            self._on_lost(self)
        self._transport = None
        self.received = ReceiveBuffer()
        self.recount()

    # Called by the memory budget.

    def recount(self) -> None:
        """Charge the memory in use; a closing connection keeps its charge until it is lost."""
        if self._is_shed or (self._closed and self._transport is not None):
            return
        held_bytes = self.received.touched + self._in_hand_bytes + self.unsent_bytes
        if held_bytes != self.charged_bytes:
            self._memory.charge(self, held_bytes)

    @property
    def stuck_since_s(self) -> float:
        """Time since which a frame is incomplete or the peer does not read; else NOT_STUCK."""
        part_s = self._part_since_s if len(self.received) else NOT_STUCK
        return min(part_s, self._stalled_since_s) if self.writes_stalled else part_s

    def bound_unsent(self, unsent_bytes_max: int) -> None:
        """Pause reading while the peer leaves more than this many bytes unread."""
        self._unsent_bytes_max = min(unsent_bytes_max, self.limits.write_buffer_bytes_max)
        if self._transport is not None and not self._closed:
            self._transport.set_write_buffer_limits(high=self._unsent_bytes_max)

    def shed(self, why: str) -> None:
        """Close at once; unsent bytes are dropped."""
        self._notices.shed("%r: %s; connection closed", self, why)
        self._closed = self._is_shed = True
        if self._transport is not None:
            self._transport.abort()  # the rest goes when the loop reports the loss
        self._memory.charge(self, 0)

    def _run_close_callback(self, callback: Callable[[Peer], None]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("%r: a close callback failed", self)

    # `Peer`: what handlers use.

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
        """Number of requests that are being handled."""
        return len(self._tasks)

    def send_oneway(self, request: Request) -> None:
        """Send a one-way request; drop it if the peer has closed or does not read."""
        if self._closed or self.unsent_bytes > self.limits.notices_bytes_max:
            self.notices_dropped += 1
            return
        sent = dataclasses.replace(request, opaque=self._next_opaque(), oneway=True)
        self.write(codec.encode_request(sent))

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """Send a request and return its response, whatever its code.

        Raises:
            TimeoutError: No answer in time.
            ConnectionError: The connection closed first, or too many calls are in flight.
        """
        if self.closed:
            raise ConnectionResetError(f"{self!r} is closed")
        if len(self._calls) >= self.limits.calls_in_flight_max:
            raise ConnectionError(f"{self!r}: {len(self._calls)} calls are in flight already")
        opaque = self._next_opaque()
        future: asyncio.Future[Response] = self._loop.create_future()
        self._calls[opaque] = future
        try:
            self.write(codec.encode_request(dataclasses.replace(request, opaque=opaque)))
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            del self._calls[opaque]

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Call `callback` once when the connection has closed; now if it has closed already."""
        if self._closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def _next_opaque(self) -> int:
        while True:
            self._last_opaque = (self._last_opaque + 1) & _OPAQUE_MASK
            if self._last_opaque not in self._calls:
                return self._last_opaque

    # Frames in.

    def take_frames(self) -> None:
        """Handle every complete frame of `received`."""
        received = self.received
        try:
            while not self.closed and not self.writes_stalled:
                frame = codec.next_frame(
                    received.view,
                    received.start,
                    received.end,
                    bytes_max=self.limits.frame_bytes_max,
                )
                if frame is None:
                    return
                self.dispatch(codec.decode_frame(received.view, frame), frame.serialize_type)
                received.take(frame.end)
        except FrameError as error:
            self.lose(error)

    def dispatch(self, command: Request | codec.Answer, serialize_type: int) -> None:
        """Start the handler of a request, or pass a response to its waiting call."""
        if isinstance(command, codec.Answer):
            future = self._calls.get(command.opaque)
            if future is not None and not future.done():
                future.set_result(command.response)
            return
        command.peer = self
        if len(self._tasks) >= self.limits.requests_in_flight_max:
            text = (
                f"{len(self._tasks)} requests of this connection are in flight, start flow control"
            )
            self.respond(command, Response(ResponseCode.SYSTEM_BUSY, text), serialize_type)
        elif self._dispatcher.responds_at_once(command.code) and not self._answers_pile_up:
            found = self._dispatcher.begin(command)
            if isinstance(found, Response):
                self.respond(command, found, serialize_type)
            else:
                self.spawn(self._serve(command, serialize_type, begun=found))
        else:
            self.spawn(self._serve(command, serialize_type))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a request in flight."""
        task = self._loop.create_task(work, name="request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, request: Request, serialize_type: int, *, begun: Deferred | None = None
    ) -> None:
        in_hand_bytes = bytes_of(request)
        self._in_hand_bytes += in_hand_bytes
        self.recount()
        try:
            if self._answers_pile_up:
                await self._room_to_answer()
                if self.closed and not request.oneway and begun is None:
                    return  # a response could not be sent, so the request is not handled
            found = begun if begun is not None else self._dispatcher.begin(request)
            response = found if isinstance(found, Response) else await found
        finally:
            self._in_hand_bytes -= in_hand_bytes
            self.recount()
        if response is not None:
            self.respond(request, response, serialize_type)

    async def _room_to_answer(self) -> None:
        """Wait until the peer has read enough of its earlier responses, or has closed.

        One read may hold hundreds of requests: without this their answers would pile up before
        reading from the peer pauses.
        """
        while self._answers_pile_up and not self.closed:
            if self.writes_stalled:
                await self._writable.wait()
            else:
                await asyncio.sleep(0)  # the loop is about to notice

    @property
    def _answers_pile_up(self) -> bool:
        """Whether the peer has to read before it gets more answers."""
        transport = self._transport
        if transport is None or self._closed:
            return False
        return transport.get_write_buffer_size() > self._unsent_bytes_max

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait in memory until the peer reads them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # Bytes out.

    def respond(self, request: Request, response: Response, serialize_type: int) -> None:
        """Send an answer in the encoding of its request; one-way requests get none."""
        if request.oneway or self.closed:
            return
        parts = encode_answer(request, response, serialize_type)
        self.heard = True
        if self._transport is not None:
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)
            self._written()

    def write(self, data: bytes) -> None:
        """Send whole frames; dropped when the connection is closed."""
        if self._transport is not None and not self._closed:
            self.heard = True
            self._transport.write(data)
            self._written_bytes += len(data)
            if self._written_bytes > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
                self._written()

    def _written(self) -> None:
        """Charge unread bytes to the memory budget above the floor."""
        self._written_bytes = 0
        if self.unsent_bytes > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
            self.recount()

    def lose(self, error: FrameError) -> None:
        """Close because the byte stream is malformed."""
        self._notices.broken("%r: %s; connection closed", self, error)
        self.received.take(self.received.end)
        self.close()

    def close(self) -> None:
        """Close after the written bytes are flushed."""
        if self._closed:  # asyncio's TLS transport breaks when it is closed twice
            return
        self._closed = True
        if self._transport is not None and not self._transport.is_closing():
            if self.unsent_bytes:  # a peer that does not read would keep it for ever
                self._loop.call_later(self.limits.close_wait_s, self._transport.abort)
            self._transport.close()

    def stop_reading(self) -> None:
        """Stop reading requests."""
        self._draining = True
        self.pause()

    async def finish(self, timeout_s: float) -> None:
        """Wait for the requests in flight; cancel those that take longer."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def drain(self, timeout_s: float) -> None:
        """Stop reading, finish the requests in flight, close."""
        self.stop_reading()
        await self.finish(timeout_s)
        self.close()


def bytes_of(request: Request) -> int:
    """Return an estimate of a decoded request's memory in bytes."""
    texts = sum(map(len, request.fields)) + sum(map(len, request.fields.values()))
    return REQUEST_BYTES + len(request.body) + texts
