"""Streams of an HTTP/2 connection, and checks of their frames."""

from __future__ import annotations

from typing import Protocol

from duemq.net.http2.frame_layout import (
    HAS_PRIORITY,
    PADDED,
    PRIORITY_BYTES,
    ErrorCode,
    Http2Error,
)


class StreamHandler(Protocol):
    """Receiver of the events of a connection."""

    def on_request(self, stream_id: int, fields: dict[bytes, bytes]) -> None:
        """Handle the header fields of a new stream."""
        ...

    def on_data(self, stream_id: int, data: bytes) -> None:
        """Handle received data."""
        ...

    def on_end(self, stream_id: int) -> None:
        """Handle the end of the peer's data."""
        ...

    def on_reset(self, stream_id: int) -> None:
        """Handle a stream that the peer, or a violation of the protocol, has ended."""
        ...

    def on_window(self, stream_id: int) -> None:
        """Handle a larger window of a stream; 0: of the connection or of all streams."""
        ...

    def on_goaway(self) -> None:
        """Handle GOAWAY: the peer begins no more streams, and open streams continue."""
        ...


class Stream:
    """State of one stream that at least one side has not ended.

    Attributes:
        more_window: Bytes that the peer accepts, above its setting INITIAL_WINDOW_SIZE.
        used: Bytes received since the last WINDOW_UPDATE.
        has_ended: Whether the peer has sent everything.
    """

    __slots__ = ("has_ended", "more_window", "used")

    def __init__(self) -> None:
        self.more_window, self.used, self.has_ended = 0, 0, False


def check_size(name: str, payload: bytes, size: int) -> None:
    """Check that the payload of a frame has `size` bytes.

    Raises:
        Http2Error: The payload has another length.
    """
    if len(payload) != size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {len(payload)} bytes")


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return a payload without the padding and the priority that its `flags` declare.

    Raises:
        Http2Error: The padding is longer than the payload.
    """
    padding, position = 0, 0
    if flags & PADDED:
        if not payload:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without bytes")
        padding, position = payload[0], 1
    if flags & HAS_PRIORITY:
        position += PRIORITY_BYTES
    if padding > len(payload) - position:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"padding of {padding} bytes")
    return payload[position : len(payload) - padding]
