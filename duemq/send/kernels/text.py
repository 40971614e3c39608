"""Compiled reader of JSON strings and numbers. Position -1: Python must decode the frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from duemq.send.layout import KIND_RICH_TEXT, KIND_TEXT
from message_store.kernels.bytes import Bytes, copy
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8

QUOTE, BACKSLASH, MINUS, ZERO, NINE = b'"\\-09'
LETTER_U, UPPER_A, UPPER_F = b"uAF"
BLANK, TAB, NEWLINE, RETURN = b" \t\n\r"  # bytes below BLANK are control characters
ASCII_END = 128
UPPER_CASE = 0xDF  # mask that makes a letter upper case
DIGITS_MAX = 18  # always fits into 64 bits
ONES = np.uint64(0x0101010101010101)
HIGHS = np.uint64(0x8080808080808080)
QUOTES = np.uint64(0x2222222222222222)
BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
BLANKS = np.uint64(0x2020202020202020)
# Indexed by the byte after a backslash: the unescaped byte, or 0 if invalid.
ESCAPES = np.zeros(256, np.uint8)
for _name, _byte in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    ESCAPES[_name] = _byte


@kernel
def plain_run(data: Bytes, pos: int, end: int) -> int:
    """Return the position of the first quote, backslash, control or non-ASCII byte, or `end`."""
    while pos + 8 <= end:
        x = load_u8(data, np.int64(pos))
        # Set the high bit of each byte in `marks` that ends the run: non-ASCII bytes by x itself,
        # the others by the borrow of a subtraction.
        quote, slash = x ^ QUOTES, x ^ BACKSLASHES
        marks = x | ((x - BLANKS) & ~x) | ((quote - ONES) & ~quote) | ((slash - ONES) & ~slash)
        if marks & HIGHS != np.uint64(0):
            break
        pos += 8
    # the last bytes, or the byte that ended the run
    while pos < end:
        byte = data[pos]
        if byte == QUOTE or byte == BACKSLASH or byte < BLANK or byte >= ASCII_END:
            break
        pos += 1
    return pos


@kernel
def skip_blank(data: Bytes, pos: int, end: int) -> int:
    """Return the position after the white space that begins at `pos`."""
    while pos < end and (data[pos] == BLANK or data[pos] in (TAB, NEWLINE, RETURN)):
        pos += 1
    return pos


@kernel
def string_end(data: Bytes, pos: int, end: int) -> Any:
    """Return (position of the closing quote or -1, KIND_*) of a string that begins at `pos`."""
    kind = KIND_TEXT
    while True:
        pos = plain_run(data, pos, end)
        if pos >= end or data[pos] < BLANK:
            return -1, kind
        if data[pos] == QUOTE:
            return pos, kind
        # an escape, or bytes above ASCII: the text must be decoded
        kind = KIND_RICH_TEXT
        # an escaped quote does not end the string
        pos += 2 if data[pos] == BACKSLASH else 1


@kernel
def number_end(data: Bytes, pos: int, end: int) -> int:
    """Return the end of a JSON integer of at most DIGITS_MAX digits, or -1."""
    if pos < end and data[pos] == MINUS:
        pos += 1
    start = pos
    while pos < end and ZERO <= data[pos] <= NINE:
        pos += 1
    count = pos - start
    # JSON has no leading zeros
    if count == 0 or count > DIGITS_MAX or (count > 1 and data[start] == ZERO):
        return -1
    return pos


@kernel
def hex4(data: Bytes, pos: int, end: int) -> int:
    """Return the number of four hex digits, or -1."""
    if pos + 4 > end:
        return -1
    value = 0
    for i in range(4):
        byte = np.int64(data[pos + i])
        if ZERO <= byte <= NINE:
            digit = byte - ZERO
        elif UPPER_A <= (byte & UPPER_CASE) <= UPPER_F:
            digit = (byte & UPPER_CASE) - UPPER_A + 10
        else:
            return -1
        value = value * 16 + digit
    return value


@kernel
def put_utf8(out: Bytes, position: int, point: int) -> int:
    """Write one code point as UTF-8; return the position after it."""
    if point < 0x80:
        out[position] = point
        return position + 1
    if point < 0x800:
        out[position] = 0xC0 | point >> 6
        out[position + 1] = 0x80 | point & 0x3F
        return position + 2
    if point < 0x10000:
        out[position] = 0xE0 | point >> 12
        out[position + 1] = 0x80 | point >> 6 & 0x3F
        out[position + 2] = 0x80 | point & 0x3F
        return position + 3
    out[position] = 0xF0 | point >> 18
    out[position + 1] = 0x80 | point >> 12 & 0x3F
    out[position + 2] = 0x80 | point >> 6 & 0x3F
    out[position + 3] = 0x80 | point & 0x3F
    return position + 4


@kernel
def utf8_size(data: Bytes, pos: int, end: int) -> int:
    """Return the size of the well-formed UTF-8 character at `pos`, or 0."""
    first = np.int64(data[pos])
    size = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4
    if first < 0xC2 or first > 0xF4 or pos + size > end:
        return 0
    for i in range(1, size):
        if data[pos + i] & 0xC0 != 0x80:
            return 0
    # no overlong forms, no surrogates, no code points above U+10FFFF
    second = np.int64(data[pos + 1])
    overlong = (first == 0xE0 and second < 0xA0) or (first == 0xF0 and second < 0x90)
    outside = (first == 0xED and second >= 0xA0) or (first == 0xF4 and second >= 0x90)
    return 0 if overlong or outside else size


@kernel
def unescape_one(data: Bytes, pos: int, end: int, out: Bytes, start: int) -> Any:
    """Write the character of the escape after a backslash; return (pos or -1, at)."""
    if pos >= end:
        return -1, start
    if data[pos] != LETTER_U:
        out[start] = ESCAPES[data[pos]]
        return (pos + 1 if ESCAPES[data[pos]] else -1), start + 1
    unit = hex4(data, pos + 1, end)
    pos += 5
    # the second half of a pair without a first one
    if unit < 0 or 0xDC00 <= unit < 0xE000:
        return -1, start
    if 0xD800 <= unit < 0xDC00:  # the first half of a surrogate pair
        paired = pos + 1 < end and data[pos] == BACKSLASH and data[pos + 1] == LETTER_U
        low = hex4(data, pos + 2, end) if paired else -1
        if low < 0xDC00 or low >= 0xE000:
            return -1, start
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
        # the second escape
        pos += 6
    return pos, put_utf8(out, start, unit)


@kernel
def unescape(data: Bytes, pos: int, end: int, out: Bytes, start: int) -> int:
    """Write the text of a JSON string as UTF-8; return the position after it, or -1.

    `out` needs room for end - pos bytes: no escape is shorter than its character.
    """
    while True:
        run = plain_run(data, pos, end)
        copy(out, start, data, pos, run - pos)
        start += run - pos
        pos = run
        if pos >= end:
            return start
        if data[pos] == BACKSLASH:
            pos, start = unescape_one(data, pos + 1, end, out, start)
            if pos < 0:
                return -1
            continue
        size = utf8_size(data, pos, end) if data[pos] >= ASCII_END else 0
        if size == 0:
            return -1
        copy(out, start, data, pos, size)
        pos += size
        start += size
