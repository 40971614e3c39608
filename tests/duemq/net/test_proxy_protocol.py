"""PROXY headers: addresses, limits, malformed input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.net.proxy_protocol import (
    FIRST_BYTES,
    V2_FIXED_BYTES,
    V2_REST_BYTES_MAX,
    V2_SIGNATURE,
    bytes_missing,
    client_address,
)
from duemq_common.errors import FrameError


def v2(command: int, family: int, rest: bytes, rest_bytes: int | None = None) -> bytes:
    size = len(rest) if rest_bytes is None else rest_bytes
    return V2_SIGNATURE + bytes([command, family]) + size.to_bytes(2, "big") + rest


def read(stream: bytes) -> tuple[bytes, bytes]:
    """Return the header, read as `bytes_missing` requests, and the rest of the stream."""
    header = stream[:1]
    while missing := bytes_missing(header):
        more = stream[len(header) : len(header) + missing]
        assert more, "the header never ends"
        header += more
    return header, stream[len(header) :]


TCP4 = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + (56_324).to_bytes(2, "big") + b"\x2a\x9f"
TCP6 = bytes(15) + b"\x01" + bytes(16) + (7).to_bytes(2, "big") + b"\x2a\x9f"


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 10911\r\n", ("192.0.2.7", 56_324)),
        (b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n", ("2001:db8::7", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
        (v2(0x21, 0x11, TCP4), ("192.0.2.7", 56_324)),
        (v2(0x21, 0x11, TCP4 + b"\x03\x00\x04abcd"), ("192.0.2.7", 56_324)),
        (v2(0x21, 0x21, TCP6), ("::1", 7)),
        (v2(0x20, 0x11, TCP4), None),
        (v2(0x20, 0x00, b""), None),
        (v2(0x21, 0x31, bytes(216)), None),
    ],
)
def test_a_header_names_the_client(header: bytes, address: tuple[str, int] | None) -> None:
    assert header[0] in FIRST_BYTES
    assert read(header + b"\x00\x00\x01\x00frame") == (header, b"\x00\x00\x01\x00frame")
    assert client_address(header) == address


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n",
        b"PROXY TCP4 ::1 ::2 1 2\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 1\r\n",
        b"PROXY TCP4 a b 1 2 three\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n",
        v2(0x21, 0x11, TCP4[:11]),
        v2(0x21, 0x21, TCP4),
        v2(0x22, 0x11, TCP4),
        v2(0x11, 0x11, TCP4),
    ],
)
def test_a_malformed_header_is_refused(header: bytes) -> None:
    assert read(header) == (header, b"")
    with pytest.raises(FrameError, match="PROXY"):
        client_address(header)


@pytest.mark.parametrize(
    "stream",
    [
        b"POST / HTTP/1.1\r\n",
        b"\r\n\r\nGET / HTTP",
        b"PROXY " + b"x" * 200 + b"\r\n",
        v2(0x21, 0x11, TCP4, V2_REST_BYTES_MAX + 1),
    ],
)
def test_bytes_other_than_a_header_are_refused_within_bounds(stream: bytes) -> None:
    with pytest.raises(FrameError):
        read(stream)


@given(st.binary(max_size=300), st.sampled_from([b"PROXY ", V2_SIGNATURE, b"P", b"\r"]))
def test_any_bytes_end_in_an_address_or_an_error(tail: bytes, head: bytes) -> None:
    stream = head + tail
    header = stream[:1]
    try:
        while missing := bytes_missing(header):
            assert len(header) + missing <= V2_FIXED_BYTES + V2_REST_BYTES_MAX
            if len(header) + missing > len(stream):
                return  # incomplete: the reader waits
            header = stream[: len(header) + missing]
        client_address(header)
    except FrameError:
        return
