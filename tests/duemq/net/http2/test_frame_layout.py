"""Encoding of HTTP/2 frames and header blocks; check of a peer's header blocks."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jh2._hazmat import Decoder, Encoder, HPACKError

from duemq.net.http2.frame_layout import (
    INTEGER_BITS_MAX,
    PING,
    Http2Error,
    check_header_block,
    frame,
    header_block,
)

TEXTS = st.binary(max_size=300)
FIELDS = st.lists(st.tuples(TEXTS, TEXTS), max_size=8)


def test_a_frame_has_its_length_kind_flags_and_stream() -> None:
    assert frame(PING, 1, 7, b"12345678") == b"\0\0\x08\x06\x01\0\0\0\x0712345678"
    assert frame(0, 0, 1, bytes(70_000))[:3] == (70_000).to_bytes(3, "big")


@given(fields=FIELDS)
@example(fields=[(b"x", b"y" * 126), (b"x", b"y" * 127), (b"x", b"y" * 128)])
@example(fields=[(b"x", b"y" * 127 + b"z" * 128 * 128)])
def test_another_implementation_decodes_header_blocks(fields: list[tuple[bytes, bytes]]) -> None:
    block = header_block(fields)
    check_header_block(block)
    found = Decoder(1 << 20).decode(block, True)
    assert [(name, value) for name, value, _ in found] == fields


@given(blocks=st.lists(st.lists(st.tuples(TEXTS, TEXTS, st.booleans()), max_size=6), max_size=4))
def test_header_blocks_of_another_implementation_are_accepted(
    blocks: list[list[tuple[bytes, bytes, bool]]],
) -> None:
    encoder = Encoder()
    for fields in blocks:
        check_header_block(encoder.encode(fields, True))


@given(block=st.binary(min_size=1, max_size=24))
@example(block=b"\xff")
@example(block=b"\x10")
@example(block=b"\x86\x1d\x7f")
@example(block=b"\x40\x05ab")
def test_what_passes_the_check_never_makes_the_decoder_panic(block: bytes) -> None:
    with suppress(Http2Error, HPACKError):  # an index or Huffman code that does not exist
        check_header_block(block)
        Decoder(1 << 20).decode(block, True)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x82\x20", id="table size after a field"),
        pytest.param(b"\x20" * 3, id="a third table size"),
        pytest.param(b"\x7f", id="index"),
        pytest.param(b"\x40\x03abc", id="no value"),
        pytest.param(b"\0\x03ab", id="name"),
        pytest.param(b"\0\x01a\x02b", id="value"),
        pytest.param(b"\xff" + b"\xff" * (INTEGER_BITS_MAX // 7) + b"\x01", id="integer"),
    ],
)
def test_a_malformed_header_block_is_refused(block: bytes) -> None:
    with pytest.raises(Http2Error, match="COMPRESSION_ERROR"):
        check_header_block(block)


def test_a_table_size_may_begin_a_header_block() -> None:
    check_header_block(b"\x20\x3f\xe1\x1f\x82")
