"""Compiled one-pass scan of a JSON header: positions of the field values of a send.

`spans` is (SLOT_COUNT + 1, 3) i8. A row is valid if the bit of its slot is set in the result; the
last row is scratch. The result is -1 for a header that Python must decode: malformed JSON,
duplicate keys, nested values, fractions, or escaped text outside the properties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from duemq.send import layout
from duemq.send.kernels.text import QUOTE, number_end, skip_blank, string_end
from duemq.send.layout import (
    KIND_FALSE,
    KIND_NULL,
    KIND_NUMBER,
    KIND_RICH_TEXT,
    KIND_TEXT,
    KIND_TRUE,
    SLOT_ACCESS_KEY,
    SLOT_CODE,
    SLOT_FLAG,
    SLOT_LONG,
    SLOT_OPAQUE,
    SLOT_OTHER,
    SLOT_SIGNATURE,
    SPAN_END,
    SPAN_KIND,
    SPAN_START,
)
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import equals

Spans = npt.NDArray[np.int64]
COLON, COMMA, OPEN, CLOSE = b":,{}"
LETTER_A, LETTER_F, LETTER_N, LETTER_T = b"afnt"
NAME_BYTES = 32  # row size of a name table
SLOT_EXT = -2  # the key extFields
SLOT_NONE = -1  # an unknown key
OTHER = np.int64(1) << SLOT_OTHER
PROPERTIES = layout.SEND_FIELDS.index("properties")


def name_table(names: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Return (n, NAME_BYTES) u1: the size of each name, then its bytes."""
    table = np.zeros((len(names), NAME_BYTES), np.uint8)
    for row, name in zip(table, names, strict=True):
        assert len(name) < NAME_BYTES
        row[0] = len(name)
        row[1 : len(name) + 1] = np.frombuffer(name.encode(), np.uint8)
    return table


FIELD_NAMES = name_table(layout.SEND_FIELDS)
TRUE = np.frombuffer(b"true", np.uint8).copy()
FALSE = np.frombuffer(b"false", np.uint8).copy()
NULL = np.frombuffer(b"null", np.uint8).copy()
CODE = np.frombuffer(b"code", np.uint8).copy()
FLAG = np.frombuffer(b"flag", np.uint8).copy()
OPAQUE = np.frombuffer(b"opaque", np.uint8).copy()
ACCESS_KEY = np.frombuffer(layout.ACCESS_KEY_FIELD.encode(), np.uint8).copy()
SIGNATURE = np.frombuffer(layout.SIGNATURE_FIELD.encode(), np.uint8).copy()
EXT_FIELDS = np.frombuffer(b"extFields", np.uint8).copy()


@kernel
def find_name(table: Bytes, data: Bytes, pos: int, size: int) -> int:
    """Return the row of `table` (see `name_table`) with the name data[pos:pos+size], or -1."""
    for i in range(table.shape[0]):
        # size and first byte differ for nearly all names
        if table[i, 0] != size or table[i, 1] != data[pos]:
            continue
        same = True
        for k in range(1, size):
            if table[i, k + 1] != data[pos + k]:
                same = False
                break
        if same:
            return i
    return -1


@kernel
def field_slot(data: Bytes, pos: int, size: int) -> int:
    """Return the slot of a key of extFields, or SLOT_NONE."""
    if size == 1:
        # code 310 names its fields "a", "b", ... in the order of SEND_FIELDS
        letter = np.int64(data[pos]) - LETTER_A
        return letter if 0 <= letter < FIELD_NAMES.shape[0] else SLOT_NONE
    if size == 0:
        return SLOT_NONE
    index = find_name(FIELD_NAMES, data, pos, size)
    if index >= 0:
        return index + SLOT_LONG
    if equals(data, pos, size, ACCESS_KEY):
        return SLOT_ACCESS_KEY
    return SLOT_SIGNATURE if equals(data, pos, size, SIGNATURE) else SLOT_NONE


@kernel
def top_slot(data: Bytes, pos: int, size: int) -> int:
    """Return the slot of a top-level key, SLOT_EXT, or SLOT_NONE."""
    if equals(data, pos, size, CODE):
        return SLOT_CODE
    if equals(data, pos, size, FLAG):
        return SLOT_FLAG
    if equals(data, pos, size, OPAQUE):
        return SLOT_OPAQUE
    return SLOT_EXT if equals(data, pos, size, EXT_FIELDS) else SLOT_NONE


@kernel
def read_key(data: Bytes, pos: int, end: int) -> Any:
    """Read `"key" :`; return (key start, key end, position of the value or -1)."""
    if pos >= end or data[pos] != QUOTE:
        return 0, 0, -1
    stop, kind = string_end(data, pos + 1, end)
    if stop < 0 or kind != KIND_TEXT:
        return 0, 0, -1
    colon = skip_blank(data, stop + 1, end)
    if colon >= end or data[colon] != COLON:
        return 0, 0, -1
    value = skip_blank(data, colon + 1, end)
    return pos + 1, stop, (value if value < end else -1)


@kernel
def read_value(data: Bytes, pos: int, end: int, span: Spans) -> int:
    """Read a scalar into `span` (3,); return the position after it, or -1."""
    first = data[pos]
    span[SPAN_START] = pos
    if first == QUOTE:
        stop, kind = string_end(data, pos + 1, end)
        # the text begins after the quote
        span[SPAN_START] = pos + 1
        span[SPAN_END] = stop
        span[SPAN_KIND] = kind
        return stop + 1 if stop >= 0 else -1
    if first == LETTER_T or first == LETTER_F or first == LETTER_N:
        # the first letter decides which word it must be
        word = TRUE if first == LETTER_T else FALSE if first == LETTER_F else NULL
        kind = KIND_TRUE if first == LETTER_T else KIND_FALSE if first == LETTER_F else KIND_NULL
        stop = pos + word.size
        span[SPAN_END] = stop
        span[SPAN_KIND] = kind
        return stop if stop <= end and equals(data, pos, word.size, word) else -1
    stop = number_end(data, pos, end)
    span[SPAN_END] = stop
    span[SPAN_KIND] = KIND_NUMBER
    return stop


@kernel
def next_member(data: Bytes, pos: int, end: int) -> Any:

    pos = skip_blank(data, pos, end)
    if pos >= end:
        return -1, False
    if data[pos] == CLOSE:
        return pos + 1, False
    if data[pos] != COMMA:
        return -1, False
    return skip_blank(data, pos + 1, end), True


@kernel
def open_object(data: Bytes, pos: int, end: int) -> Any:
    """Return (position of the first key, or after the object, or -1; whether a key is there)."""
    if pos >= end or data[pos] != OPEN:
        return -1, False
    pos = skip_blank(data, pos + 1, end)
    if pos < end and data[pos] == CLOSE:
        return pos + 1, False
    return pos, True


@kernel
def record_span(slot: int, seen: int, span: Spans, spans: Spans) -> int:
    """Copy `span` to `slot`; return the new bits, -1 for a duplicate key or text to decode."""
    is_properties = slot == PROPERTIES or slot == PROPERTIES + SLOT_LONG
    if span[SPAN_KIND] == KIND_RICH_TEXT and not is_properties:
        return -1
    # an unknown field: ignored, except in a signature
    if slot < 0:
        return seen | OTHER
    bit = np.int64(1) << slot
    # which of two equal keys counts depends on the parser
    if seen & bit:
        return -1
    for i in range(3):
        spans[slot, i] = span[i]
    return seen | bit


@kernel
def scan_fields(data: Bytes, pos: int, end: int, spans: Spans) -> Any:
    """Scan extFields from its brace; return (position after it or -1, bits or -1)."""
    seen = np.int64(0)
    span = spans[spans.shape[0] - 1]
    pos, more = open_object(data, pos, end)
    while more:
        start, stop, value = read_key(data, pos, end)
        if value < 0:
            return -1, -1
        pos = read_value(data, value, end, span)
        if pos < 0:
            return -1, -1
        seen = record_span(field_slot(data, start, stop - start), seen, span, spans)
        if seen < 0:
            return -1, -1
        pos, more = next_member(data, pos, end)
    return pos, seen


@kernel
def scan_header(data: Bytes, pos: int, end: int, spans: Spans) -> int:
    """Scan data[pos:end]; return the bits of the slots that are found, or -1."""
    seen, fields, ext_count = np.int64(0), np.int64(0), 0
    span = spans[spans.shape[0] - 1]
    pos, more = open_object(data, skip_blank(data, pos, end), end)
    while more:
        start, stop, value = read_key(data, pos, end)
        if value < 0:
            return -1
        # other top-level fields are language, version and the like
        slot = top_slot(data, start, stop - start)
        if slot == SLOT_EXT:
            ext_count += 1
            pos, fields = scan_fields(data, value, end, spans)
        else:
            pos = read_value(data, value, end, span)
            seen = record_span(slot, seen, span, spans) if pos >= 0 else np.int64(-1)
        if pos < 0 or seen < 0 or fields < 0 or ext_count > 1:
            return -1
        pos, more = next_member(data, pos, end)
    # nothing may follow the object
    if pos < 0 or skip_blank(data, pos, end) != end:
        return -1
    # unknown keys matter in extFields only, where they are part of the signature
    return (seen & ~OTHER) | fields
