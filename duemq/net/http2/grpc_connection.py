"""HTTP/2 connection of a gRPC client: one stream per call.

    bytes --Http2Server--> events --> GrpcCall: metadata, messages --> handler, one task per call
    bytes <--Http2Server-- headers, messages, trailers <--- once per turn of the event loop

Outgoing messages stay in their call until the peer opens its flow control window. They are charged
to the memory budget, together with incoming messages, which unary calls keep until they end, and
with header fields, which a client can repeat with a few bytes. While memory is scarce, a connection
may have calls of `FLOOR_BYTES`; further ones are refused. A violation of HTTP/2 closes the
connection. Not thread-safe: all methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

from duemq.net.http2.frame_layout import ErrorCode, Http2Error, header_block
from duemq.net.http2.grpc_call import GrpcCall, GrpcLimits, GrpcMethod
from duemq.net.http2.grpc_status import GrpcError, GrpcStatus, trailers_of
from duemq.net.http2.http2_server import Http2Server
from duemq.net.memory import FLOOR_BYTES, NOT_STUCK, MemoryBudget
from duemq.net.notices import PeerNotices

log = logging.getLogger(__name__)
STREAM_WINDOW_BYTES: Final = 1 << 20
CONNECTION_WINDOW_BYTES: Final = 8 << 20
HEADER_BYTES_MAX: Final = 16_384  # metadata of one call
TRANSPORT_BUFFER_BYTES: Final = 1 << 18
PATH_BYTES_MAX: Final = 256  # part of an unknown path in the status of its call
CALL_BYTES: Final = 2_048  # estimated objects of one call, including its task
LASTING_S: Final = 1.0  # a reset of such a call costs no more than a regular call
CONTENT_TYPE: Final = b"application/grpc"
_RESPONSE_HEADERS: Final = header_block([(b":status", b"200"), (b"content-type", CONTENT_TYPE)])
_NOT_GRPC: Final = header_block([(b":status", b"415")])
_OK: Final = trailers_of(GrpcStatus.OK)
_OK_TRAILERS: Final = header_block(_OK)


class GrpcConnection(asyncio.Protocol):
    """Protocol of one socket.

    Args:
        methods: Methods by path.
        address: Address of the client.
    Attributes:
        is_active: Whether bytes were read since the last sweep.
        charged_bytes: Bytes charged to the memory budget.
    """

    def __init__(
        self,
        methods: Mapping[bytes, GrpcMethod],
        *,
        limits: GrpcLimits,
        memory: MemoryBudget,
        notices: PeerNotices,
        address: tuple[str, int],
        on_open: Callable[[GrpcConnection], None],
        on_lost: Callable[[GrpcConnection], None],
    ) -> None:
        self.address = address
        self.is_active, self.active_at_ms, self.charged_bytes = True, 0, 0
        self._methods, self._limits = methods, limits
        self._memory, self._notices = memory, notices
        self._on_open, self._on_lost = on_open, on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._http2 = Http2Server(
            self,
            stream_window=STREAM_WINDOW_BYTES,
            window=CONNECTION_WINDOW_BYTES,
            streams_max=limits.calls_max,
            header_bytes_max=HEADER_BYTES_MAX,
        )
        self._calls: dict[int, GrpcCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: dict[int, GrpcCall] = {}  # calls with unsent output
        self._blocked: set[int] = set()  # streams whose window is closed
        self._flush_scheduled = self._is_writable = False
        self._buffered_bytes = 0  # by calls, in both directions
        self._held_bytes = 0  # by calls until they end
        self._unsent_bytes_max = memory.unsent_bytes_max
        self._stuck_since_s = NOT_STUCK
        self._incomplete: dict[int, float] = {}  # start of an incomplete message, by stream
        self._is_draining = self._is_closed = self._is_shed = False

    def __repr__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    # Events of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the server preface."""
        opened = cast("asyncio.Transport", transport)  # uvloop's class has another base
        self._transport, self._is_writable = opened, True
        opened.set_write_buffer_limits(high=TRANSPORT_BUFFER_BYTES)
        self._write_output()
        self._on_open(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the calls."""
        self._is_closed = True
        for call in list(self._calls.values()):
            self._remove(call)
            call.cancel()
        self._memory.charge(self, 0)
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        self.is_active = True
        try:
            self._http2.receive(data)
        except Http2Error as error:
            self._close_malformed(error.text, error.code)
            return
        if not self._flush_scheduled:
            self._write_output()
        self._update_charge_if_large()

    def pause_writing(self) -> None:
        """Pause reading while the peer leaves too many bytes unread."""
        self._is_writable = False
        self._update_stuck()
        self._pause_if_stuck()

    def resume_writing(self) -> None:
        """Send the output of the calls, and resume reading."""
        self._is_writable = True
        self._schedule_flush()
        self._resume()

    # Events of HTTP/2 (a `StreamHandler`).

    def on_request(self, stream_id: int, fields: dict[bytes, bytes]) -> None:
        """Begin a call."""
        if not fields.get(b"content-type", b"").startswith(CONTENT_TYPE):
            self._http2.send_headers(stream_id, _NOT_GRPC, ends=True)
            return
        path = fields.get(b":path", b"")
        method = self._methods.get(path)
        if method is None or self._is_draining:
            call = self._add(stream_id, _UNKNOWN, fields)
            if method is None:
                text = path[:PATH_BYTES_MAX].decode("utf-8", "replace")
                call.finish(GrpcStatus.UNIMPLEMENTED, f"there is no method {text}")
            else:
                call.finish(GrpcStatus.UNAVAILABLE, "the broker is stopping")
            return
        call = self._add(stream_id, method, fields)
        if self._buffered_bytes > self._unsent_bytes_max:
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, "the client does not read responses")
            return
        calls_bytes = self._calls_bytes
        if calls_bytes > FLOOR_BYTES and not self._memory.has_room(
            calls_bytes - self.charged_bytes
        ):
            text = "too many calls for the memory that is left (remotingMemoryMax)"
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, text)
            return
        call.begin(self._loop.time())
        if method.streams:
            call.serve()

    def _add(self, stream_id: int, method: GrpcMethod, fields: Mapping[bytes, bytes]) -> GrpcCall:
        call = self._calls[stream_id] = GrpcCall(self, stream_id, method, fields)
        self.hold(call, sum(map(len, fields)) + sum(map(len, fields.values())))
        return call

    def on_data(self, stream_id: int, data: bytes) -> None:
        """Add received bytes to a call."""
        call = self._calls.get(stream_id)
        if call is None or call.is_finished:
            return
        before = call.buffered_bytes
        try:
            call.feed(data, self._limits)
        except GrpcError as error:
            call.finish(error.status, error.text)
        self.count_bytes(call.buffered_bytes - before)
        if call.awaits_data:
            self._incomplete.setdefault(stream_id, self._loop.time())
        else:
            self._incomplete.pop(stream_id, None)

    def on_end(self, stream_id: int) -> None:
        """Start the handler of a unary call, and end the messages of a streaming one."""
        call = self._calls.get(stream_id)
        if call is not None and not call.is_ended:
            call.end()
            self._incomplete.pop(stream_id, None)
            if call.is_finished or call.method.streams:
                return
            if call.method.turns is not None:
                call.method.turns.take(call)
            else:
                call.serve()

    def on_reset(self, stream_id: int) -> None:
        """Cancel a call."""
        if (call := self._calls.get(stream_id)) is not None:
            self._remove(call)
            call.cancel()
            if self._loop.time() - call.begun_s >= LASTING_S:
                self._http2.forgive_reset()

    def on_window(self, stream_id: int) -> None:
        """Resume output after the window of a stream, or of the connection (0), has opened."""
        if not self._blocked:
            return
        resumed = set(self._blocked) if stream_id == 0 else self._blocked & {stream_id}
        self._blocked -= resumed
        for each in resumed:
            if (call := self._calls.get(each)) is not None:
                self.schedule_output(call)
        if resumed:
            self._stuck_since_s = NOT_STUCK

    def on_goaway(self) -> None:
        """Accept no new calls; open calls continue (RFC 9113, 6.8; the Node.js client)."""
        self._is_draining = True
        self._close_if_done()

    # Calls (a `CallConnection`).

    def start(self, call: GrpcCall, work: Awaitable[None]) -> None:
        """Serve a call by a task; the call ends when `work` is done."""
        task = self._loop.create_task(self._run(call, work), name="gRPC call")
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: GrpcCall, work: Awaitable[None]) -> None:
        try:
            await work
            call.finish(GrpcStatus.OK)
        except (Exception, asyncio.CancelledError) as error:
            self.fail(call, error)

    def fail(self, call: GrpcCall, error: BaseException) -> None:
        """End a call whose handler has failed; log errors that are not the client's."""
        if isinstance(error, GrpcError):
            call.finish(error.status, error.text)
        elif isinstance(error, asyncio.CancelledError):
            call.finish(GrpcStatus.UNAVAILABLE, "the broker is stopping")
        else:
            self._notices.broken("%r: %s failed", self, call.method.name, exc_info=error)
            call.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")

    def schedule_output(self, call: GrpcCall) -> None:
        """Schedule the output of a call; the calls of one loop turn are sent together."""
        if self._is_closed:
            return
        self._dirty[call.stream_id] = call
        self._schedule_flush()

    def count_bytes(self, more: int) -> None:
        """Add `more` to the bytes that calls buffer."""
        self._buffered_bytes += more

    def hold(self, call: GrpcCall, more: int) -> None:
        """Add `more` to the bytes that a call keeps until it ends."""
        if self._calls.get(call.stream_id) is call:
            call.held_bytes += more
            self._held_bytes += more

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._is_closed or not self._is_writable:
            return
        dirty, self._dirty = self._dirty, {}
        for stream_id, call in dirty.items():
            if stream_id not in self._blocked:
                self._send(call)
        self._write_output()
        self._update_stuck()
        self._update_charge_if_large()
        self._pause_if_stuck()
        self._close_if_done()

    def _send(self, call: GrpcCall) -> None:
        """Send as much of a call's output as the peer's window allows."""
        http2, stream_id = self._http2, call.stream_id
        if self._calls.get(stream_id) is not call:
            return
        if not call.sent_headers:
            call.sent_headers = True
            http2.send_headers(stream_id, _RESPONSE_HEADERS)
        if call.unsent:
            size = min(http2.room(stream_id), len(call.unsent))
            if size > 0:
                http2.send_data(stream_id, bytes(memoryview(call.unsent)[:size]))
                del call.unsent[:size]
                self.count_bytes(-size)
            if call.unsent:
                self._blocked.add(stream_id)
                return
        if call.trailers is not None:
            block = _OK_TRAILERS if call.trailers == _OK else header_block(call.trailers)
            http2.send_headers(stream_id, block, ends=True)
            self._remove(call)

    def _write_output(self) -> None:
        if self._http2.has_output and self._transport is not None and not self._is_closed:
            self._transport.write(self._http2.take_output())

    def _remove(self, call: GrpcCall) -> None:
        if self._calls.pop(call.stream_id, None) is not None:
            self.count_bytes(-call.buffered_bytes - len(call.unsent))
            self._held_bytes -= call.held_bytes
            self._blocked.discard(call.stream_id)
            self._dirty.pop(call.stream_id, None)
            self._incomplete.pop(call.stream_id, None)

    # Called by the memory budget (a `ChargedConnection`).

    @property
    def stuck_since_s(self) -> float:
        """Loop time in s of an incomplete message or of unread responses, or NOT_STUCK."""
        return min(next(iter(self._incomplete.values()), NOT_STUCK), self._stuck_since_s)

    def update_charge(self) -> None:
        """Update the charge to the bytes in use."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        held_bytes = self._buffered_bytes + self._http2.unparsed_bytes + unsent + self._calls_bytes
        self._memory.charge(self, 0 if self._is_closed or self._is_shed else held_bytes)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("sslcontext") is not None

    def limit_unsent(self, unsent_bytes_max: int) -> None:
        """Refuse new calls while the calls buffer more than this many bytes."""
        self._unsent_bytes_max = unsent_bytes_max

    def shed(self, reason: str) -> None:
        """Abort the connection and free all buffers."""
        self._notices.shed("%r: %s; connection closed", self, reason)
        self._is_shed = True
        if self._transport is not None:
            self._transport.abort()  # `connection_lost` frees the rest
        self._memory.charge(self, 0)

    @property
    def _calls_bytes(self) -> int:
        """Estimated bytes of the calls, without what they buffer."""
        return len(self._calls) * CALL_BYTES + self._held_bytes

    def _update_charge_if_large(self) -> None:
        held_bytes = self._buffered_bytes + self._calls_bytes
        if held_bytes > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
            self.update_charge()

    def _update_stuck(self) -> None:
        if not self._blocked and self._is_writable:
            self._stuck_since_s = NOT_STUCK
        elif self._stuck_since_s == NOT_STUCK:
            self._stuck_since_s = self._loop.time()

    def _pause_if_stuck(self) -> None:
        """Pause reading from a peer that does not read.

        Reading continues while only the peer's windows are closed: window updates must be received.
        """
        if self._transport is not None and not self._is_writable and not self._is_closed:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and not self._is_closed:
            self._transport.resume_reading()

    # Close.

    def _close_malformed(self, reason: str, code: ErrorCode) -> None:
        self._notices.broken("%r: %s; connection closed", self, reason)
        self.close(code)

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Send GOAWAY, and close after written bytes are flushed."""
        if self._transport is None or self._is_closed or self._transport.is_closing():
            return
        self._http2.close(code)
        self._write_output()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(self._limits.close_wait_s, self._transport.abort)
        self._transport.close()

    def _close_if_done(self) -> None:
        if self._is_draining and not self._calls:
            self.close()

    def stop_reading(self) -> None:
        """Accept no new calls."""
        self._is_draining = True

    async def drain(self, wait_s: float) -> None:
        """Finish the calls in flight, then close."""
        self.stop_reading()
        for call in list(self._calls.values()):
            call.stop()
        await asyncio.sleep(0)  # the current turn of calls ends
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=wait_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._flush()
        self.close()


async def _respond_nothing(call: GrpcCall) -> None:
    """Return at once."""


_UNKNOWN: Final = GrpcMethod("unknown", _respond_nothing)
