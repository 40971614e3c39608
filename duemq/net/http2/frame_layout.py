"""HTTP/2 frames: kinds, flags, settings, error codes, and their encoding.

Header blocks are encoded without Huffman codes and without the dynamic table, so that a block does
not depend on earlier ones and can be built once.

Source: RFC 9113, sections 4, 6 and 7; RFC 7541, sections 5 and 6
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER: Final = struct.Struct(">HBBBI")  # length (24 bits), kind, flags, stream
SETTING: Final = struct.Struct(">HI")
WORD: Final = struct.Struct(">I")
STREAM_MASK: Final = 0x7FFF_FFFF  # the first bit of a word is reserved
FRAME_BYTES_MIN: Final = 16_384  # smallest SETTINGS_MAX_FRAME_SIZE, and its default
FRAME_BYTES_MAX: Final = (1 << 24) - 1
WINDOW_BYTES_MAX: Final = (1 << 31) - 1
WINDOW_BYTES: Final = 65_535  # initial window of a stream and of a connection
TABLE_BYTES: Final = 4_096  # initial size of the dynamic table
PING_BYTES: Final = 8
PRIORITY_BYTES: Final = 5
EMPTY_TABLE: Final = b"\x20"  # begins a header block: the dynamic table has 0 bytes from now on
_LITERAL: Final = b"\0"  # field with a new name that is not added to the dynamic table
_LENGTH_MAX: Final = 127  # lengths from here on have more than one byte
_INDEXED: Final = 0x80  # first bits of a field by its index
_INDEX_MAX: Final = 127
_ADDED: Final = 0x40  # first bits of a literal field that is added to the dynamic table
_LITERAL_INDEX_MAX: Final = 15
_TABLE_SIZE: Final = 0x20
_KIND_MASK: Final = 0xE0
INTEGER_BITS_MAX: Final = 28
TABLE_SIZES_MAX: Final = 2  # at the beginning of a header block (RFC 7541, 4.2)


# Kinds of frames. They and the flags are plain numbers: operations on enumerations are slow.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# Flags of frames. ACK and END_STREAM are the same bit in different kinds.
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
HAS_PRIORITY: Final = 32


class Setting(IntEnum):
    """Settings that either side uses."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """Violation of HTTP/2 that ends the connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(f"{code.name}: {text}")


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    size = len(payload)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(SETTING.pack(name, value) for name, value in settings.items())
    return frame(SETTINGS, 0, 0, payload)


def window_update(stream_id: int, more: int) -> bytes:
    """Return a WINDOW_UPDATE frame; `stream_id` 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, WORD.pack(more))


def goaway(last_stream_id: int, code: ErrorCode) -> bytes:
    """Return a GOAWAY frame."""
    return frame(GOAWAY, 0, 0, WORD.pack(last_stream_id) + WORD.pack(code))


def header_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return header fields as a header block."""
    return b"".join(_LITERAL + _text(name) + _text(value) for name, value in fields)


def check_header_block(block: bytes) -> None:
    """Check the structure of a header block: jh2's decoder panics if an integer is cut off.

    Raises:
        Http2Error: A field is cut off, or the table size changes after a field or twice before.
    """
    position, end, has_field, table_sizes = 0, len(block), False, 0
    while position < end:
        first = block[position]
        if _INDEXED < first < _INDEXED | _INDEX_MAX:
            position += 1
        elif first >= _INDEXED:
            _, position = _integer(block, position, _INDEX_MAX)
        elif first & _KIND_MASK == _TABLE_SIZE:
            table_sizes += 1
            if has_field or table_sizes > TABLE_SIZES_MAX:
                raise Http2Error(
                    ErrorCode.COMPRESSION_ERROR, "a table size after a field or two others"
                )
            _, position = _integer(block, position, _TABLE_SIZE - 1)
            continue
        else:
            prefix_max = _ADDED - 1 if first & _ADDED else _LITERAL_INDEX_MAX
            index, position = _integer(block, position, prefix_max)
            for _ in range(1 if index else 2):
                size, position = _integer(block, position, _LENGTH_MAX)
                position += size
        has_field = True
    if position != end:
        raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a header block is cut off")


def _integer(block: bytes, position: int, prefix_max: int) -> tuple[int, int]:
    """Return the integer at a position, and the position after it.

    Args:
        prefix_max: Maximum of the bits in the first byte; it means that more bytes follow.
    Raises:
        Http2Error: The integer is cut off, or too large.
    """
    value = block[position] & prefix_max if position < len(block) else prefix_max
    position += 1
    if value < prefix_max:
        return value, position
    for shift in range(0, INTEGER_BITS_MAX, 7):
        if position >= len(block):
            break
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, position
    raise Http2Error(ErrorCode.COMPRESSION_ERROR, "an integer of a header block is cut off")


def _text(text: bytes) -> bytes:
    """Return a string literal: its length, with 7 bits in the first byte, and its bytes."""
    size = len(text)
    if size < _LENGTH_MAX:
        return bytes((size,)) + text
    length, rest = bytearray((_LENGTH_MAX,)), size - _LENGTH_MAX
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return bytes(length) + text
