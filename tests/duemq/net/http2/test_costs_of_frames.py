"""Processor time of the frames of HTTP/2 that one read of a connection may contain.

Frames are at most 16 KiB, header blocks and header fields of a stream 16 KiB, streams 1,024; a
connection is closed after 1,000 resets. A read of the event loop has at most 256 KiB.
"""

from __future__ import annotations

from typing import Final

import pytest

from duemq.net.http2 import frame_layout as frames
from duemq.net.http2.frame_layout import (
    PREFACE,
    Http2Error,
    Setting,
    frame,
    header_block,
    settings_frame,
    window_update,
)
from duemq.net.http2.grpc_connection import (
    CONNECTION_WINDOW_BYTES,
    HEADER_BYTES_MAX,
    STREAM_WINDOW_BYTES,
)
from duemq.net.http2.http2_server import Http2Server
from tests.support.processor_time import cost_ms

READ_BYTES, STREAMS_MAX = 1 << 18, 1_024
STEP_MS_MAX = 100.0
FIELDS = header_block([(b":method", b"POST"), (b":path", b"/x")])
SETTING = frames.SETTING.pack
WINDOWS = b"".join(SETTING(Setting.INITIAL_WINDOW_SIZE, 10 + n % 2) for n in range(2_730))


class Ignored:
    """Receiver of events that does nothing."""

    def on_request(self, stream_id: int, fields: dict[bytes, bytes]) -> None:
        """Ignore a stream."""

    def on_data(self, stream_id: int, data: bytes) -> None:
        """Ignore data."""

    def on_end(self, stream_id: int) -> None:
        """Ignore an end."""

    def on_reset(self, stream_id: int) -> None:
        """Ignore a reset."""

    def on_window(self, stream_id: int) -> None:
        """Ignore a window."""

    def on_goaway(self) -> None:
        """Ignore a GOAWAY."""


def headers(stream_id: int, block: bytes = FIELDS) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)


def resets() -> bytes:
    first = 2 * STREAMS_MAX + 1
    streams = range(first, first + 8_000, 2)
    return b"".join(headers(n) + frame(frames.RST_STREAM, 0, n, bytes(4)) for n in streams)


def fragments() -> bytes:
    more = frame(frames.CONTINUATION, 0, 4_001, b"\x82")
    return frame(frames.HEADERS, 0, 4_001, b"\x82") + more * (READ_BYTES // len(more))


def repeated(sent: bytes) -> bytes:
    return sent * (READ_BYTES // len(sent))


FLOODS: Final[dict[str, bytes]] = {
    "empty data": repeated(frame(frames.DATA, 0, 1, b"")),
    "bytes of data": repeated(frame(frames.DATA, 0, 1, b"x")),
    "data of an ended stream": repeated(frame(frames.DATA, 0, 3, b"x")),
    "pings": repeated(frame(frames.PING, 0, 0, bytes(8))),
    "settings": repeated(settings_frame({})),
    "windows in settings": repeated(frame(frames.SETTINGS, 0, 0, WINDOWS)),
    "windows in many settings": repeated(
        settings_frame({Setting.INITIAL_WINDOW_SIZE: 10})
        + settings_frame({Setting.INITIAL_WINDOW_SIZE: 11})
    ),
    "window updates": repeated(window_update(1, 1)),
    "window updates of the connection": repeated(window_update(0, 1)),
    "priorities": repeated(frame(frames.PRIORITY, 0, 5, b"\0\0\0\x05\0")),
    "unknown frames": repeated(frame(99, 0, 0, b"")),
    "fragments of header fields": fragments(),
    "long header blocks": repeated(headers(1, b"\x82" * 16_384)),
    "long fields": repeated(headers(1, header_block([(b"x", bytes(8_000))] * 2))),
    "sizes of the table": repeated(headers(1, b"\x20" * 16_384)),
    "streams above the limit": b"".join(
        headers(n) for n in range(2 * STREAMS_MAX + 1, 2 * STREAMS_MAX + 11_000, 2)
    ),
    "resets": resets(),
}


@pytest.mark.finding("3S7")
@pytest.mark.parametrize("sent", FLOODS.values(), ids=FLOODS)
def test_one_read_costs_little(sent: bytes) -> None:
    opened = b"".join(headers(number) for number in range(1, 2 * STREAMS_MAX, 2))

    def attack() -> None:
        server = Http2Server(
            Ignored(),
            stream_window=STREAM_WINDOW_BYTES,
            window=CONNECTION_WINDOW_BYTES,
            streams_max=STREAMS_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
        )
        server.receive(PREFACE + settings_frame({}) + opened)
        server.reset(3, frames.ErrorCode.NO_ERROR)
        try:
            server.receive(sent)
        except Http2Error:
            return

    assert cost_ms(attack, enough_ms=STEP_MS_MAX) <= STEP_MS_MAX
