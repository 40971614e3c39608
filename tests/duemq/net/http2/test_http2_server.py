"""HTTP/2 server without a socket: windows, resets, limits, violations."""

from __future__ import annotations

import struct

import pytest
from jh2._hazmat import Encoder

from duemq.net.http2 import frame_layout as frames
from duemq.net.http2.frame_layout import (
    EMPTY_TABLE,
    PREFACE,
    ErrorCode,
    Http2Error,
    Setting,
    frame,
    header_block,
    settings_frame,
    window_update,
)
from duemq.net.http2.http2_server import RESETS_MAX, Http2Server

STREAM_WINDOW, WINDOW, STREAMS_MAX, HEADER_BYTES_MAX = 40_000, 100_000, 4, 2_000
FIELDS = [(b":method", b"POST", False), (b":path", b"/x", False), (b"n", b"v", False)]
OK = header_block([(b":status", b"200")])
RST = struct.Struct(">I")


class Peer:
    """Client of the server under test, and receiver of its events."""

    def __init__(self, *, begins: bool = True) -> None:
        self.events: list[tuple[object, ...]] = []
        self.server = Http2Server(
            self,
            stream_window=STREAM_WINDOW,
            window=WINDOW,
            streams_max=STREAMS_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
        )
        self.encoder = Encoder()
        if begins:
            self.server.receive(PREFACE + settings_frame({}))
            self.output()

    def on_request(self, stream_id: int, fields: dict[bytes, bytes]) -> None:
        self.events.append(("request", stream_id, fields))

    def on_data(self, stream_id: int, data: bytes) -> None:
        self.events.append(("data", stream_id, data))

    def on_end(self, stream_id: int) -> None:
        self.events.append(("end", stream_id))

    def on_reset(self, stream_id: int) -> None:
        self.events.append(("reset", stream_id))

    def on_window(self, stream_id: int) -> None:
        self.events.append(("window", stream_id))

    def on_goaway(self) -> None:
        self.events.append(("goaway",))

    def request(self, stream_id: int, flags: int = frames.END_HEADERS) -> None:
        """Begin a stream."""
        block = self.encoder.encode(FIELDS, True)
        self.server.receive(frame(frames.HEADERS, flags, stream_id, block))

    def data(self, stream_id: int, data: bytes, flags: int = 0) -> None:
        self.server.receive(frame(frames.DATA, flags, stream_id, data))

    def taken(self) -> list[tuple[object, ...]]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def output(self) -> list[tuple[int, int, int, bytes]]:
        """Return kind, flags, stream and payload of the frames since the last call."""
        data, found = self.server.take_output(), []
        while data:
            size = int.from_bytes(data[:3], "big")
            stream_id = int.from_bytes(data[5:9], "big")
            found.append((data[3], data[4], stream_id, data[9 : 9 + size]))
            data = data[9 + size :]
        return found


def resets(peer: Peer) -> dict[int, int]:
    """Return the error codes of the streams that the server reset."""
    return {s: RST.unpack(data)[0] for kind, _, s, data in peer.output() if kind == 3}


@pytest.mark.parametrize("step", [1, 2, 7, 1_000])
def test_a_request_in_pieces_of_any_size(step: int) -> None:
    peer = Peer(begins=False)
    block = peer.encoder.encode(FIELDS, True)
    sent = PREFACE + settings_frame({}) + frame(frames.HEADERS, frames.END_HEADERS, 1, block)
    sent += frame(frames.DATA, frames.END_STREAM, 1, b"hello")
    for at in range(0, len(sent), step):
        peer.server.receive(sent[at : at + step])
    fields = {name: value for name, value, _ in FIELDS}
    assert peer.taken() == [("request", 1, fields), ("data", 1, b"hello"), ("end", 1)]
    assert peer.server.unparsed_bytes == 0


def test_padding_and_priority_are_removed() -> None:
    peer = Peer()
    block = peer.encoder.encode(FIELDS, True)
    flags = frames.END_HEADERS | frames.PADDED | frames.HAS_PRIORITY
    padded = b"\x03" + b"\0\0\0\0\x10" + block + b"\0\0\0"
    peer.server.receive(frame(frames.HEADERS, flags, 1, padded))
    peer.data(1, b"\x02hi\0\0", frames.PADDED)
    assert [event[0] for event in peer.taken()] == ["request", "data"]
    with pytest.raises(Http2Error, match="PROTOCOL_ERROR"):
        peer.data(1, b"\x03hi", frames.PADDED)


def test_windows_are_opened_again_once_half_is_used() -> None:
    peer = Peer()
    peer.request(1)
    peer.data(1, bytes(16_000))
    assert peer.output() == []
    peer.data(1, bytes(5_000))
    assert peer.output() == [(frames.WINDOW_UPDATE, 0, 1, RST.pack(21_000))]
    for stream_id in (3, 5):
        peer.request(stream_id)
        peer.data(stream_id, bytes(15_000))
    assert (frames.WINDOW_UPDATE, 0, 0, RST.pack(51_000)) in peer.output()


def test_data_wait_for_both_windows() -> None:
    peer = Peer()
    peer.server.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 10}))
    peer.request(1, frames.END_HEADERS | frames.END_STREAM)
    peer.server.send_headers(1, OK)
    assert peer.server.room(1) == 10
    peer.server.send_data(1, bytes(10))
    peer.server.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 4}))
    assert peer.server.room(1) == -6
    peer.server.receive(window_update(1, 16))
    assert peer.server.room(1) == 10
    assert ("window", 1) in peer.taken()
    peer.server.receive(window_update(0, 1 << 20))
    assert ("window", 0) in peer.taken()
    assert peer.server.room(3) == 0


def test_a_window_that_a_setting_makes_too_large_ends_the_connection() -> None:
    most = frames.WINDOW_BYTES_MAX
    peer = Peer()
    peer.request(1)
    peer.server.receive(window_update(1, 100))
    peer.request(3)
    peer.server.receive(frame(frames.RST_STREAM, 0, 1, RST.pack(8)))
    peer.server.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: most}))  # 1 has ended
    peer.server.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: most - 1}))
    peer.server.receive(window_update(3, 1))
    with pytest.raises(Http2Error, match="FLOW_CONTROL_ERROR"):
        peer.server.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: most}))


def test_the_last_value_of_a_setting_counts() -> None:
    peer = Peer()
    values = (Setting.INITIAL_WINDOW_SIZE, 10), (Setting.INITIAL_WINDOW_SIZE, 20)
    payload = b"".join(frames.SETTING.pack(*each) for each in values)
    peer.server.receive(frame(frames.SETTINGS, 0, 0, payload))
    peer.request(1)
    assert peer.server.room(1) == 20


def test_frames_are_no_longer_than_the_peer_allows() -> None:
    peer = Peer()
    peer.server.receive(settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 20}))
    peer.request(1)
    peer.server.send_data(1, bytes(40_000))
    assert [len(data) for kind, _, _, data in peer.output() if kind == frames.DATA] == [
        16_384,
        16_384,
        7_232,
    ]


def test_a_stream_is_removed_once_both_sides_have_ended() -> None:
    peer = Peer()
    peer.request(1)
    peer.data(1, b"x", frames.END_STREAM)
    peer.server.send_headers(1, OK, ends=True)
    assert peer.server.streams == {}
    peer.request(3)
    peer.server.send_headers(3, OK, ends=True)
    assert peer.server.streams == {}
    assert resets(peer) == {3: ErrorCode.NO_ERROR}


def test_data_on_their_way_to_an_ended_stream_harm_no_other() -> None:
    peer = Peer()
    peer.request(1)
    peer.server.send_headers(1, OK, ends=True)
    peer.taken()
    peer.data(1, b"late", frames.END_STREAM)
    assert peer.taken() == []
    peer.request(3, frames.END_HEADERS | frames.END_STREAM)
    assert [event[0] for event in peer.taken()] == ["request", "end"]


def test_a_stream_above_the_limit_is_refused_and_header_compression_goes_on() -> None:
    peer = Peer()
    for stream_id in (1, 3, 5, 7, 9):
        peer.request(stream_id)
    assert resets(peer) == {9: ErrorCode.REFUSED_STREAM}
    peer.server.receive(frame(frames.RST_STREAM, 0, 1, RST.pack(8)))
    peer.taken()
    peer.request(11)
    assert peer.taken() == [("request", 11, {name: value for name, value, _ in FIELDS})]


def test_a_peer_that_resets_its_streams_is_stopped() -> None:
    peer = Peer()

    def reset(stream_id: int) -> None:
        peer.request(stream_id)
        peer.server.receive(frame(frames.RST_STREAM, 0, stream_id, RST.pack(8)))

    for stream_id in range(1, 2 * RESETS_MAX, 2):
        reset(stream_id)
    regular = 2 * RESETS_MAX + 1
    peer.request(regular, frames.END_HEADERS | frames.END_STREAM)
    peer.server.send_headers(regular, OK, ends=True)
    reset(regular + 2)
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        reset(regular + 4)


def test_a_small_header_table_of_the_peer_is_emptied_once() -> None:
    peer = Peer()
    peer.server.receive(settings_frame({Setting.HEADER_TABLE_SIZE: 0}))
    peer.request(1)
    peer.server.send_headers(1, OK)
    peer.server.send_headers(1, OK, ends=True)
    blocks = [data for kind, _, _, data in peer.output() if kind == frames.HEADERS]
    assert blocks == [EMPTY_TABLE + OK, OK]


def test_goaway_leaves_open_streams() -> None:
    peer = Peer()
    peer.request(1)
    peer.server.receive(frame(frames.GOAWAY, 0, 0, bytes(8)))
    peer.data(1, b"x", frames.END_STREAM)
    assert [event[0] for event in peer.taken()] == ["request", "goaway", "data", "end"]


def header_in_pieces(peer: Peer, piece: bytes, count: int) -> None:
    peer.server.receive(frame(frames.HEADERS, 0, 1, piece))
    for _ in range(count):
        peer.server.receive(frame(frames.CONTINUATION, 0, 1, piece))


VIOLATIONS = {
    "no settings first": (PREFACE + frame(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "HTTP/1": (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_wrong_beginning_ends_the_connection(sent: bytes, code: ErrorCode) -> None:
    with pytest.raises(Http2Error) as found:
        Peer(begins=False).server.receive(sent)
    assert found.value.code == code


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frame(0, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR, id="data not begun"),
        pytest.param(frame(0, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR, id="data of stream 0"),
        pytest.param(frame(1, 4, 2, b"\x82"), ErrorCode.PROTOCOL_ERROR, id="even stream"),
        pytest.param(frame(1, 4, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR, id="stream 0"),
        pytest.param(frame(1, 4, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR, id="cut off"),
        pytest.param(frame(1, 4, 1, b"\xbe"), ErrorCode.COMPRESSION_ERROR, id="no such index"),
        pytest.param(frame(1, 36, 1, b"\0"), ErrorCode.FRAME_SIZE_ERROR, id="no priority"),
        pytest.param(frame(3, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR, id="reset not begun"),
        pytest.param(frame(3, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR, id="short reset"),
        pytest.param(frame(4, 0, 1, b""), ErrorCode.PROTOCOL_ERROR, id="settings of a stream"),
        pytest.param(frame(4, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR, id="settings size"),
        pytest.param(frame(5, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR, id="push promise"),
        pytest.param(frame(6, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR, id="ping size"),
        pytest.param(frame(8, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR, id="window of 0"),
        pytest.param(window_update(0, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR, id="window"),
        pytest.param(window_update(1, 1), ErrorCode.PROTOCOL_ERROR, id="window not begun"),
        pytest.param(frame(9, 4, 1, b"\x82"), ErrorCode.PROTOCOL_ERROR, id="continuation alone"),
        pytest.param(frame(0, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR, id="long frame"),
        pytest.param(
            settings_frame({Setting.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR, id="frame size"
        ),
        pytest.param(
            settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 31}),
            ErrorCode.FLOW_CONTROL_ERROR,
            id="initial window",
        ),
        pytest.param(settings_frame({Setting.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR, id="push"),
    ],
)
def test_a_violation_ends_the_connection(sent: bytes, code: ErrorCode) -> None:
    with pytest.raises(Http2Error) as found:
        Peer().server.receive(sent)
    assert found.value.code == code


def test_long_header_fields_end_the_connection_before_they_are_held() -> None:
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        header_in_pieces(Peer(), bytes(1_000), 2)
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        header_in_pieces(Peer(), b"", 1)
    peer = Peer()
    peer.server.receive(frame(frames.HEADERS, 4, 1, header_block([(b"x", b"y" * 1_950)] * 1)))
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        peer.server.receive(
            frame(frames.HEADERS, 4, 3, b"\x40\x01x\x7f\xa1\x0d" + b"y" * 1_824 + b"\xbe" * 9)
        )


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frame(8, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR, id="window of 0"),
        pytest.param(window_update(1, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR, id="window"),
        pytest.param(frame(2, 0, 1, b"\0\0\0\x01\0"), ErrorCode.PROTOCOL_ERROR, id="itself"),
        pytest.param(frame(2, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR, id="priority size"),
        pytest.param(frame(1, 4, 1, b"\x82"), ErrorCode.PROTOCOL_ERROR, id="fields in a call"),
    ],
)
def test_a_violation_of_one_stream_resets_it(sent: bytes, code: ErrorCode) -> None:
    peer = Peer()
    peer.request(1)
    peer.server.receive(sent)
    assert resets(peer) == {1: code}
    assert peer.taken()[-1] == ("reset", 1)


def test_data_after_the_end_reset_the_stream() -> None:
    peer = Peer()
    peer.request(1, frames.END_HEADERS | frames.END_STREAM)
    peer.data(1, b"x")
    assert resets(peer) == {1: ErrorCode.STREAM_CLOSED}
    assert peer.taken()[-1] == ("reset", 1)


def test_trailers_of_the_peer_end_its_data() -> None:
    peer = Peer()
    peer.request(1)
    peer.taken()
    peer.request(1, frames.END_HEADERS | frames.END_STREAM)
    assert peer.taken() == [("end", 1)]
    peer.request(1, frames.END_HEADERS | frames.END_STREAM)
    assert resets(peer) == {1: ErrorCode.STREAM_CLOSED}
