"""Server side of an HTTP/2 connection: frames in, events out; no socket, no clock.

    bytes --> frames --> headers (HPACK by jh2), data, ends of streams --> StreamHandler
    bytes <-- frames <-- take_output() <-- send_headers, send_data

Windows for data of the peer are opened again as soon as half of them is used. A violation of the
protocol raises Http2Error, or resets the stream if it concerns one stream only.

Source: RFC 9113. Priorities are ignored, and header fields are not validated: none is forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jh2._hazmat import Decoder, HPACKError, OversizedHeaderListError

from duemq.net.http2.frame_layout import (
    ACK,
    CONTINUATION,
    DATA,
    EMPTY_TABLE,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    HAS_PRIORITY,
    HEADER,
    HEADERS,
    PADDED,
    PING,
    PING_BYTES,
    PREFACE,
    PRIORITY_BYTES,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_MASK,
    TABLE_BYTES,
    WINDOW_BYTES,
    WINDOW_BYTES_MAX,
    WORD,
    ErrorCode,
    Http2Error,
    Setting,
    check_header_block,
    frame,
    goaway,
    settings_frame,
    window_update,
)
from duemq.net.http2.streams import Stream, StreamHandler, check_size, unpadded

HEADER_BYTES: Final = HEADER.size
RESETS_MAX: Final = 1_000  # streams that the peer reset, less those that ended or lasted


class Http2Server:
    """State of one connection. Not thread-safe.

    Args:
        stream_window: Window of the peer's data in each stream, in bytes.
        window: The same for the connection.
        streams_max: Maximum open streams; further streams are refused, and a client may retry.
        header_bytes_max: Maximum decoded bytes of the header fields of a stream.
    """

    def __init__(
        self,
        handler: StreamHandler,
        *,
        stream_window: int,
        window: int,
        streams_max: int,
        header_bytes_max: int,
    ) -> None:
        self._handler = handler
        self._stream_window, self._window = stream_window, window
        self._streams_max, self._header_bytes_max = streams_max, header_bytes_max
        self._decoder = Decoder(header_bytes_max)
        self.streams: dict[int, Stream] = {}
        self._last_id = 0  # highest stream of the peer
        self._rest = b""  # received bytes of an incomplete frame
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, fragments
        self._has_preface = self._has_settings = self.is_closed = False
        self._used = 0  # bytes received since the last WINDOW_UPDATE of the connection
        self._resets = 0
        self.send_window = WINDOW_BYTES
        self._first_send_window, self.frame_bytes_max = WINDOW_BYTES, FRAME_BYTES_MIN
        self._more_window_max = 0  # of any stream, open or ended
        self._prefix = b""  # first bytes of the next header block
        self._output: list[bytes] = [
            settings_frame(
                {
                    Setting.MAX_CONCURRENT_STREAMS: streams_max,
                    Setting.INITIAL_WINDOW_SIZE: stream_window,
                    Setting.MAX_HEADER_LIST_SIZE: header_bytes_max,
                }
            ),
            window_update(0, window - WINDOW_BYTES),
        ]
        self._handlers: Sequence[Callable[[int, int, bytes], None]] = (  # by kind of frame
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    @property
    def unparsed_bytes(self) -> int:
        """Received bytes of an incomplete frame or header block."""
        return len(self._rest) + (0 if self._block is None else len(self._block[2]))

    # -- output -----------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """Remove and return the bytes to send."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    @property
    def has_output(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._output)

    def send_headers(self, stream_id: int, block: bytes, *, ends: bool = False) -> None:
        """Send a header block of at most `frame_bytes_max` bytes.

        Args:
            ends: Whether the block ends the stream.
        """
        flags = END_HEADERS | END_STREAM if ends else END_HEADERS
        if self._prefix:
            block, self._prefix = self._prefix + block, b""
        self._output.append(frame(HEADERS, flags, stream_id, block))
        if ends:
            self._end(stream_id)

    def room(self, stream_id: int) -> int:
        """Return how many bytes of data fit into the windows of a stream; 0 or less: none."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return 0
        return min(self._first_send_window + stream.more_window, self.send_window)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send data within the windows, in frames of at most `frame_bytes_max` bytes."""
        stream = self.streams[stream_id]
        stream.more_window -= len(data)
        self.send_window -= len(data)
        step = self.frame_bytes_max
        for index in range(0, len(data), step):
            self._output.append(frame(DATA, 0, stream_id, data[index : index + step]))

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream in both directions."""
        self._output.append(frame(RST_STREAM, 0, stream_id, WORD.pack(code)))
        self.streams.pop(stream_id, None)

    def forgive_reset(self) -> None:
        """Do not count a reset: its stream lasted, such as a receive that reached its deadline."""
        self._resets = max(self._resets - 1, 0)

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Announce the end of the connection to the peer."""
        self.is_closed = True
        self._output.append(goaway(self._last_id, code))

    def _end(self, stream_id: int) -> None:
        """Remove a stream that this side has ended; the peer need not send the rest."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if not stream.has_ended:
            self.reset(stream_id, ErrorCode.NO_ERROR)
            return
        del self.streams[stream_id]
        if self._resets:
            self._resets -= 1

    # -- input ------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle received bytes.

        Raises:
            Http2Error: The peer violated the protocol; the connection must be closed.
        """
        if self._rest:
            data = self._rest + data
        position, end = 0, len(data)
        if not self._has_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the preface of HTTP/2 is missing")
            if end < len(PREFACE):
                self._rest = data
                return
            self._has_preface, position = True, len(PREFACE)
        handlers, unpack = self._handlers, HEADER.unpack_from
        while end - position >= HEADER_BYTES:
            high, low, kind, flags, stream_id = unpack(data, position)
            size = high << 8 | low
            if size > FRAME_BYTES_MIN:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            first = position + HEADER_BYTES
            if first + size > end:
                break
            position = first + size
            if self._block is not None and kind != CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frame {kind} in a header block")
            if not self._has_settings:
                if kind != SETTINGS or flags & ACK:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
                self._has_settings = True
            if kind <= CONTINUATION:  # other kinds are extensions, which must be ignored
                handlers[kind](stream_id & STREAM_MASK, flags, data[first:position])
        self._rest = data[position:]

    def _on_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._used += len(payload)
        if self._used > self._window // 2:
            self._output.append(window_update(0, self._used))
            self._used = 0
        stream = self.streams.get(stream_id)
        if stream is None or stream.has_ended:
            self._reset_closed(stream_id, "data")
            return
        stream.used += len(payload)
        if stream.used > self._stream_window // 2:
            self._output.append(window_update(stream_id, stream.used))
            stream.used = 0
        if flags & PADDED:
            payload = unpadded(payload, PADDED)
        if payload:
            self._handler.on_data(stream_id, payload)
        if flags & END_STREAM:
            stream.has_ended = True
            self._handler.on_end(stream_id)

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "header fields of stream 0")
        depends_on = None
        if flags & HAS_PRIORITY:
            position = 1 if flags & PADDED else 0
            if len(payload) < position + PRIORITY_BYTES:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
            depends_on = WORD.unpack_from(payload, position)[0] & STREAM_MASK
        if flags & (PADDED | HAS_PRIORITY):
            payload = unpadded(payload, flags)
        if not flags & END_HEADERS:
            self._block = (stream_id, flags, bytearray(payload))
            return
        self._on_block(stream_id, flags, payload)
        if depends_on == stream_id:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without a header block")
        _, first_flags, block = self._block
        block += payload
        if len(block) > self._header_bytes_max or (not payload and not flags & END_HEADERS):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {len(block)} bytes")
        if flags & END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block))

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a complete header block."""
        check_header_block(block)
        try:
            fields = self._decoder.decode(block, True)
        except OversizedHeaderListError as error:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"header fields: {error}") from error
        except HPACKError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"header fields: {error}") from error
        stream = self.streams.get(stream_id)
        ends = flags & END_STREAM
        if stream is not None:
            if stream.has_ended:
                self._reset(stream_id, ErrorCode.STREAM_CLOSED)
            elif not ends:
                self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            else:  # trailers, which gRPC clients do not use
                stream.has_ended = True
                self._handler.on_end(stream_id)
            return
        if stream_id <= self._last_id:
            self._reset_closed(stream_id, "header fields")
            return
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} of a client")
        self._last_id = stream_id
        if len(self.streams) >= self._streams_max:
            self.reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        stream = self.streams[stream_id] = Stream()
        self._handler.on_request(stream_id, {name: value for name, value, _ in fields})
        if ends:
            stream.has_ended = True
            self._handler.on_end(stream_id)

    def _on_priority(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "priority of stream 0")
        if len(payload) != PRIORITY_BYTES:
            self._reset(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        elif WORD.unpack_from(payload)[0] & STREAM_MASK == stream_id:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _on_rst_stream(self, stream_id: int, flags: int, payload: bytes) -> None:
        check_size("RST_STREAM", payload, WORD.size)
        self._check_begun(stream_id, "RST_STREAM")
        if self.streams.pop(stream_id, None) is not None:
            self._resets += 1
            self._handler.on_reset(stream_id)
            if self._resets > RESETS_MAX:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if flags & ACK:
            return
        self._output.append(frame(SETTINGS, ACK, 0, b""))
        for name, value in dict(SETTING.iter_unpack(payload)).items():  # the last value counts
            self._apply(name, value)

    def _apply(self, name: int, value: int) -> None:
        """Apply one setting of the peer."""
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > WINDOW_BYTES_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
            more, self._first_send_window = value - self._first_send_window, value
            if value + self._more_window_max > WINDOW_BYTES_MAX:  # streams may have ended since
                windows = (stream.more_window for stream in self.streams.values())
                self._more_window_max = max(windows, default=0)
            if value + self._more_window_max > WINDOW_BYTES_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window exceeds its maximum")
            if more > 0:
                self._handler.on_window(0)
        elif name == Setting.MAX_FRAME_SIZE:
            if not FRAME_BYTES_MIN <= value <= FRAME_BYTES_MAX:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of at most {value} bytes")
            self.frame_bytes_max = value
        elif name == Setting.HEADER_TABLE_SIZE and value < TABLE_BYTES:
            self._prefix = EMPTY_TABLE
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        check_size("PING", payload, PING_BYTES)
        if not flags & ACK:
            self._output.append(frame(PING, ACK, 0, payload))

    def _on_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 2 * WORD.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self._handler.on_goaway()

    def _on_window_update(self, stream_id: int, flags: int, payload: bytes) -> None:
        check_size("WINDOW_UPDATE", payload, WORD.size)
        more = WORD.unpack(payload)[0] & STREAM_MASK
        if stream_id == 0:
            if more == 0:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            self.send_window += more
            if self.send_window > WINDOW_BYTES_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window exceeds its maximum")
            self._handler.on_window(0)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_begun(stream_id, "WINDOW_UPDATE")
            return
        if more == 0:
            self._reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        stream.more_window += more
        if self._first_send_window + stream.more_window > WINDOW_BYTES_MAX:
            self._reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        self._more_window_max = max(self._more_window_max, stream.more_window)
        self._handler.on_window(stream_id)

    # -- violations -------------------------------------------------------------------------------

    def _check_begun(self, stream_id: int, frame_name: str) -> None:
        """Check that a stream of the peer has begun.

        Raises:
            Http2Error: The stream has not begun.
        """
        if stream_id == 0 or stream_id > self._last_id or not stream_id & 1:
            raise Http2Error(
                ErrorCode.PROTOCOL_ERROR, f"{frame_name} of stream {stream_id}, not begun"
            )

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream after a violation by the peer."""
        is_open = stream_id in self.streams
        self.reset(stream_id, code)
        if is_open:
            self._handler.on_reset(stream_id)

    def _reset_closed(self, stream_id: int, frame_name: str) -> None:
        """Reset a stream that the peer or both sides have ended.

        Raises:
            Http2Error: The stream never began.
        """
        self._check_begun(stream_id, frame_name)
        self._reset(stream_id, ErrorCode.STREAM_CLOSED)
