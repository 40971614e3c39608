"""HTTP/2 connection of gRPC clients: streams become calls, calls become streams.

    bytes --jh2--> events --> GrpcCall: metadata, messages --> handler, one task a call
    bytes <--jh2-- headers, messages, trailers <--- once per turn of the event loop

Messages of a peer that does not read stay in their call until the peer opens its window; they are
charged to the memory budget with the bytes of incomplete messages. jh2 keeps the rules of HTTP/2;
a stream of bytes that breaks them ends the connection. All methods belong to the event loop's
thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, cast

from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.errors import ErrorCodes
from jh2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from jh2.exceptions import H2Error
from jh2.settings import SettingCodes

from duemq.net.http2.grpc_call import GrpcCall, GrpcLimits, GrpcMethod
from duemq.net.http2.grpc_status import GrpcError, GrpcStatus
from duemq.net.memory_budget import FLOOR_BYTES, NOT_STUCK, MemoryBudget
from duemq.net.notices import PeerNotices

log = logging.getLogger(__name__)
STREAM_WINDOW_BYTES: Final = 1 << 20
CONNECTION_WINDOW_BYTES: Final = 8 << 20
FIRST_WINDOW_BYTES: Final = 65_535  # of a connection, before the first WINDOW_UPDATE
HEADER_BYTES_MAX: Final = 16_384  # metadata of one call
UNPARSED_BYTES_MAX: Final = 1 << 17
TRANSPORT_BUFFER_BYTES: Final = 1 << 18
CALL_BYTES: Final = 2_048  # objects of one call, its task included
CONTENT_TYPE: Final = b"application/grpc"
_CONFIGURATION: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
_RESPONSE_HEADERS: Final = ((b":status", b"200"), (b"content-type", CONTENT_TYPE))
_NOT_GRPC: Final = ((b":status", b"415"),)


class _Connection(H2Connection):  # type: ignore[misc]  # jh2 has no types
    """HTTP/2 of a server that finishes the streams in flight after a GOAWAY of its peer.

    RFC 9113, 6.8, allows that, and the client for Node.js waits for it; jh2 sends nothing any more.
    """

    def _receive_goaway_frame(self, frame: object) -> tuple[list[object], list[Event]]:
        state = self.state_machine.state
        found: tuple[list[object], list[Event]] = super()._receive_goaway_frame(frame)
        self.state_machine.state = state
        return found


class GrpcConnection(asyncio.Protocol):
    """The protocol of one socket.

    Args:
        methods: Methods by their paths.
        address: Address of the client.
    Attributes:
        heard: Whether bytes were read since the last sweep.
        charged_bytes: Bytes that the memory budget counts for the connection.
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
        self.heard, self.quiet_since_ms, self.charged_bytes = True, 0, 0
        self._methods, self._limits = methods, limits
        self._memory, self._notices = memory, notices
        self._on_open, self._on_lost = on_open, on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._http2 = _Connection(_CONFIGURATION)
        self._calls: dict[int, GrpcCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: dict[int, GrpcCall] = {}  # have something to send
        self._blocked: set[int] = set()  # until the peer opens its window
        self._flush_scheduled = self._is_writable = False
        self._buffered_bytes = 0  # in calls, in both directions
        self._unparsed_bytes = 0  # since the last event; jh2 checks a frame's length at its end
        self._unsent_bytes_max = memory.unsent_bytes_max
        self._stuck_since_s = NOT_STUCK
        self._is_draining = self._is_closed = False

    def __repr__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    # Events of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface of a server."""
        opened = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._transport, self._is_writable = opened, True
        opened.set_write_buffer_limits(high=TRANSPORT_BUFFER_BYTES)
        http2 = self._http2
        http2.local_settings.update(
            {
                SettingCodes.MAX_CONCURRENT_STREAMS: self._limits.calls_max,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_BYTES_MAX,
            }
        )
        http2.initiate_connection()
        http2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - FIRST_WINDOW_BYTES)
        opened.write(http2.data_to_send())
        self._on_open(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the calls."""
        self._is_closed = True
        for call in list(self._calls.values()):
            self._forget(call)
            call.lose()
        self._memory.charge(self, 0)
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Handle what has arrived."""
        self.heard = True
        self._unparsed_bytes += len(data)
        try:
            for event in self._http2.receive_data(data):
                self._unparsed_bytes = 0
                self._take(event)
        except H2Error as error:
            self._break(str(error) or type(error).__name__)
            return
        except Exception as error:  # jh2 has met bytes that it did not expect
            log.debug("%r: HTTP/2", self, exc_info=True)
            self._break(repr(error))
            return
        if self._unparsed_bytes > UNPARSED_BYTES_MAX:
            self._break(f"{self._unparsed_bytes} bytes without a complete frame")
            return
        self._write_control()
        self._recount_if_large()

    def pause_writing(self) -> None:
        """Stop reading: the peer leaves too much unread."""
        self._is_writable = False
        self._note_stuck()
        self._pause_if_stuck()

    def resume_writing(self) -> None:
        """Send what the calls hold."""
        self._is_writable = True
        self._schedule_flush()
        self._resume()

    # Events of HTTP/2.

    def _take(self, event: Event) -> None:
        kind = type(event)
        if kind is RequestReceived:
            self._open(event.stream_id, event.headers)
        elif kind is DataReceived:
            self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._receive(event.stream_id, event.data)
        elif kind is StreamReset:
            if (call := self._calls.get(event.stream_id)) is not None:
                self._forget(call)
                call.lose()
        elif kind is WindowUpdated or kind is RemoteSettingsChanged:
            self._unblock(getattr(event, "stream_id", 0) or 0)
        elif kind is ConnectionTerminated:
            self._is_draining = True
            self._close_if_done()
        if kind is StreamEnded or getattr(event, "stream_ended", None) is not None:
            call = self._calls.get(event.stream_id)
            if call is not None and not call.is_ended:
                call.end()
                if not call.method.streams:
                    self._start(call)

    def _open(self, stream_id: int, headers: list[tuple[bytes, bytes]]) -> None:
        metadata: dict[bytes, bytes] = dict(headers)
        if not metadata.get(b"content-type", b"").startswith(CONTENT_TYPE):
            self._http2.send_headers(stream_id, _NOT_GRPC, end_stream=True)
            return
        path = metadata.get(b":path", b"")
        method = self._methods.get(path)
        if method is None or self._is_draining:
            text = path[:256].decode("utf-8", "replace")
            call = GrpcCall(self, stream_id, _UNKNOWN, metadata)
            self._calls[stream_id] = call
            if method is None:
                call.finish(GrpcStatus.UNIMPLEMENTED, f"there is no method {text}")
            else:
                call.finish(GrpcStatus.UNAVAILABLE, "the broker is stopping")
            return
        call = self._calls[stream_id] = GrpcCall(self, stream_id, method, metadata)
        if self._buffered_bytes > self._unsent_bytes_max:
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, "the client does not read its answers")
            return
        call.start_deadline(self._loop.time())
        if method.streams:
            self._start(call)

    def _receive(self, stream_id: int, data: bytes) -> None:
        call = self._calls.get(stream_id)
        if call is None or call.is_finished:
            return
        before = call.buffered_bytes
        try:
            call.feed(data, self._limits)
        except GrpcError as error:
            call.finish(error.status, error.text)
        self.count_bytes(call.buffered_bytes - before)

    def _start(self, call: GrpcCall) -> None:
        if call.is_finished:
            return
        task = self._loop.create_task(self._run(call), name="gRPC call")
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: GrpcCall) -> None:
        try:
            await call.method.handler(call)
            call.finish(GrpcStatus.OK)
        except GrpcError as error:
            call.finish(error.status, error.text)
        except asyncio.CancelledError:
            call.finish(GrpcStatus.UNAVAILABLE, "the broker is stopping")
        except Exception as error:
            self._notices.broken("%r: %s failed", self, call.method.name, exc_info=error)
            call.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")

    # Bytes out.

    def has_output(self, call: GrpcCall) -> None:
        """Send what a call has, with that of all calls of this turn of the loop."""
        if self._is_closed:
            return
        self._dirty[call.stream_id] = call
        self._schedule_flush()

    def count_bytes(self, more: int) -> None:
        """Add to the bytes that calls hold."""
        self._buffered_bytes += more

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._is_closed or not self._is_writable:
            return
        dirty, self._dirty = self._dirty, {}
        try:
            for stream_id, call in dirty.items():
                if stream_id not in self._blocked:
                    self._send(call)
        except H2Error as error:
            self._break(str(error))
            return
        self._write_control()
        self._note_stuck()
        self._recount_if_large()
        self._pause_if_stuck()
        self._close_if_done()

    def _send(self, call: GrpcCall) -> None:
        """Send of a call what its peer has room for."""
        http2, stream_id = self._http2, call.stream_id
        if self._calls.get(stream_id) is not call:
            return
        if not call.sent_headers:
            call.sent_headers = True
            http2.send_headers(stream_id, _RESPONSE_HEADERS)
        while call.unsent:
            room = min(http2.local_flow_control_window(stream_id), http2.max_outbound_frame_size)
            if room <= 0:
                self._blocked.add(stream_id)
                return
            part = bytes(call.unsent[:room])
            del call.unsent[: len(part)]
            self.count_bytes(-len(part))
            http2.send_data(stream_id, part)
        if call.trailers is not None:
            http2.send_headers(stream_id, call.trailers, end_stream=True)
            if not call.is_ended:  # the rest of the request is of no interest
                http2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
            self._forget(call)

    def _unblock(self, stream_id: int) -> None:
        """Try again to send what had no room; stream 0: of all calls."""
        found = set(self._blocked) if stream_id == 0 else self._blocked & {stream_id}
        self._blocked -= found
        for each in found:
            if (call := self._calls.get(each)) is not None:
                self.has_output(call)
        if found:
            self._stuck_since_s = NOT_STUCK

    def _write_control(self) -> None:
        data = self._http2.data_to_send()
        if data and self._transport is not None and not self._is_closed:
            self._transport.write(data)

    def _forget(self, call: GrpcCall) -> None:
        if self._calls.pop(call.stream_id, None) is not None:
            self.count_bytes(-call.buffered_bytes - len(call.unsent))
            self._blocked.discard(call.stream_id)
            self._dirty.pop(call.stream_id, None)

    # Memory: a `Holder`.

    @property
    def stuck_since_s(self) -> float:
        """Time since which the peer does not read, or NOT_STUCK."""
        return self._stuck_since_s

    def recount(self) -> None:
        """Charge the bytes that the connection uses now."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        held_bytes = self._buffered_bytes + self._unparsed_bytes + unsent
        held_bytes += len(self._calls) * CALL_BYTES
        self._memory.charge(self, 0 if self._is_closed else held_bytes)

    def bound_unsent(self, unsent_bytes_max: int) -> None:
        """Refuse calls of a peer while its calls hold more than this many bytes."""
        self._unsent_bytes_max = unsent_bytes_max

    def shed(self, why: str) -> None:
        """Close at once and free all buffers."""
        self._notices.shed("%r: %s; connection closed", self, why)
        if self._transport is not None:
            self._transport.abort()

    def _recount_if_large(self) -> None:
        held_bytes = self._buffered_bytes + len(self._calls) * CALL_BYTES
        if held_bytes > FLOOR_BYTES or self.charged_bytes > FLOOR_BYTES:
            self.recount()

    def _note_stuck(self) -> None:
        if not self._blocked and self._is_writable:
            self._stuck_since_s = NOT_STUCK
        elif self._stuck_since_s == NOT_STUCK:
            self._stuck_since_s = self._loop.time()

    def _pause_if_stuck(self) -> None:
        """Read no further calls of a peer that does not read its answers.

        A peer whose windows are shut must be heard: it opens them.
        """
        if self._transport is not None and not self._is_writable and not self._is_closed:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and not self._is_closed:
            self._transport.resume_reading()

    # The end.

    def _break(self, why: str) -> None:
        self._notices.broken("%r: %s; connection closed", self, why)
        self.close()

    def close(self) -> None:
        """Say GOAWAY, and close after the written bytes are flushed."""
        if self._transport is None or self._is_closed or self._transport.is_closing():
            return
        with suppress(H2Error):
            self._http2.close_connection()
        self._write_control()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(self._limits.close_wait_s, self._transport.abort)
        self._transport.close()

    def _close_if_done(self) -> None:
        if self._is_draining and not self._calls:
            self.close()

    def stop_reading(self) -> None:
        """Accept no further calls."""
        self._is_draining = True

    async def drain(self, wait_s: float) -> None:
        """Finish the calls in hand, then close."""
        self.stop_reading()
        for call in list(self._calls.values()):
            call.stop()
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=wait_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._flush()
        self.close()


async def _answer_nothing(call: GrpcCall) -> None:
    """Return at once."""


_UNKNOWN: Final = GrpcMethod("unknown", _answer_nothing)
