"""Due time of a timer, compiled: from the columns of a put, or from the property text of a record.

Readable twin: `timer_store.enqueue.due_time`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from delayed_delivery.kernels.redirected import DUE_MS, D, R, take_target
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_value
from message_store.kernels.properties import parse_number
from message_store.layout import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_NONE,
)
from timer_store.layout import DUE_MS_MAX, NO_NUMBER, TEXT_MARKER, TEXT_ROLLED

SECONDS_MAX = 10**15  # later than any due time, and its ms fit into 64 bits


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8).copy()


SEC, MS, DELIVER = (
    _bytes(b"TIMER_DELAY_SEC"),
    _bytes(b"TIMER_DELAY_MS"),
    _bytes(b"TIMER_DELIVER_MS"),
)
OUT = _bytes(b"TIMER_OUT_MS")
ROLLS, LABEL = _bytes(b"TIMER_ROLL_TIMES"), _bytes(b"TIMER_ROLL_LABEL")
MARKER = _bytes(b"TIMER_DEL_UNIQKEY")
TIMER_WORD = _bytes(b"TIMER_")


@kernel
def requested_ms(row: Any, now_ms: int) -> int:
    """Return the due time that a row requests."""
    value = np.int64(row["timer_value"])
    if row["timer_kind"] == TIMER_DELIVER_MS:
        return value
    if row["timer_kind"] == TIMER_DELAY_SEC:
        # the limits keep the product in 64 bits
        value = min(max(value, -SECONDS_MAX), SECONDS_MAX) * 1_000
    return now_ms + value


@kernel
def take_kind(kind: int, number: int, text: Any) -> None:
    """Store one of the three times, unless one with precedence is stored."""
    # the order of the constants is Apache's precedence: seconds, milliseconds, absolute time
    if text["kind"] == TIMER_NONE or kind <= text["kind"]:
        text["kind"], text["value"] = kind, number


@kernel
def take_timer(data: Bytes, pos: int, end: int, text: Any) -> None:
    """Store the value of an entry whose name begins with TIMER_."""
    if has_value(data, pos, end, OUT):
        text["out_ms"] = parse_number(data, pos + OUT.size + 1, end, NO_NUMBER)
    elif has_value(data, pos, end, DELIVER):
        number = parse_number(data, pos + DELIVER.size + 1, end, NO_NUMBER)
        take_kind(TIMER_DELIVER_MS, number, text)
    elif has_value(data, pos, end, MS):
        take_kind(TIMER_DELAY_MS, parse_number(data, pos + MS.size + 1, end, NO_NUMBER), text)
    elif has_value(data, pos, end, SEC):
        take_kind(TIMER_DELAY_SEC, parse_number(data, pos + SEC.size + 1, end, NO_NUMBER), text)
    # copies of the wheel have the first, copies of the timeline in RocksDB (5.4) the second
    elif has_value(data, pos, end, ROLLS) or has_value(data, pos, end, LABEL):
        text["flags"] |= TEXT_ROLLED
    elif has_value(data, pos, end, MARKER):
        text["flags"] |= TEXT_MARKER


@kernel
def read_text(data: Bytes, pos: int, end: int, text: Any) -> None:
    """Read the properties of a timer from a property text; the last of equal names applies."""
    text["out_ms"] = text["exact_ms"] = text["value"] = NO_NUMBER
    text["kind"], text["flags"], text["queue_id"] = TIMER_NONE, 0, -1
    text["topic_pos"] = text["topic_len"] = 0
    while pos < end:
        until = entry_end(data, pos, end)
        first = data[pos]  # most entries are none of these: compare one byte before whole names
        # the sixth byte of TIMER_ is the underscore; `take_timer` compares whole names
        if first == TIMER_WORD[0] and until - pos > OUT.size and data[pos + 5] == TIMER_WORD[5]:
            take_timer(data, pos, until, text)
        elif first == R:
            take_target(data, pos, until, text)
        elif first == D and has_value(data, pos, until, DUE_MS):
            text["exact_ms"] = parse_number(data, pos + DUE_MS.size + 1, until, NO_NUMBER)
        pos = until + 1


@kernel
def due_of(text: Any, store_ms: int, precision_ms: int) -> int:
    """Return the due time of a record, -1 if there is none."""
    out_ms, kind, value = text["out_ms"], text["kind"], text["value"]
    # without a slot no broker delivers the message as a timer
    if out_ms < 0:
        return -1
    due_ms = out_ms + precision_ms  # Apache's slot ends here
    if text["exact_ms"] != NO_NUMBER:
        due_ms = text["exact_ms"]
    elif value != NO_NUMBER and kind == TIMER_DELIVER_MS:
        due_ms = value
    # a copy that Apache rolled has a new store time: its delay no longer counts from there
    elif value != NO_NUMBER and text["flags"] & TEXT_ROLLED == 0:
        if kind == TIMER_DELAY_SEC:
            # the limits keep the product in 64 bits
            value = min(max(value, -SECONDS_MAX), SECONDS_MAX) * 1_000
        due_ms = min(max(store_ms, 0), DUE_MS_MAX) + value
    due_ms = max(due_ms, out_ms + 1)  # not before the slot in which an Apache broker looks for it
    return due_ms if due_ms <= DUE_MS_MAX else -1
