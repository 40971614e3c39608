"""Stage 1, compiled: conversion of the timer topic's messages to TIMED rows.

from_put       rows of a batch that was just appended
from_records   units of the timer queue, with their records in the mapped log
units_at       units of records that are named by their log offset

The first two return the same rows for the same messages. A message that is not a timer becomes a
TIMED_BROKEN row, and the kernel continues.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from delayed_delivery.kernels.redirected import DUE_MS, D, R, take_target
from message_store.kernels.bytes import Bytes
from message_store.kernels.encode import has_queue_offset
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_value, is_topic
from message_store.kernels.properties import java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic
from message_store.layout import (
    PROP_TIMER_DEL,
    PROP_TIMER_STALE,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_NONE,
)
from message_store.queues.topic_table import TopicArrays
from timer_store.layout import (
    DUE_MS_MAX,
    NO_NUMBER,
    TEXT_MARKER,
    TEXT_ROLLED,
    TIMED_BROKEN,
    TIMED_MARKER,
    TIMED_PLAIN,
    Rows,
)

SECONDS_MAX = 10**15  # later than any due time, and its ms fit into 64 bits


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8).copy()


SEC, MS, DELIVER = (
    _bytes(b"TIMER_DELAY_SEC"),
    _bytes(b"TIMER_DELAY_MS"),
    _bytes(b"TIMER_DELIVER_MS"),
)
OUT = _bytes(b"TIMER_OUT_MS")
ROLLS, MARKER = _bytes(b"TIMER_ROLL_TIMES"), _bytes(b"TIMER_DEL_UNIQKEY")
TIMER_WORD = _bytes(b"TIMER_")


class Context(NamedTuple):
    """Values that all timers of a store share."""

    timer: int  # topic index of the timer topic
    precision_ms: int


class Scratch(NamedTuple):
    """Working memory, because kernels do not allocate."""

    frames: Rows  # (1,) message_store.layout.SCANNED
    text: Rows  # (1,) TIMER_TEXT


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
    elif has_value(data, pos, end, ROLLS):
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
    """Return the due time, -1 if there is none.

    Readable twin: `timer_store.enqueue.due_time`.
    """
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


@kernel
def set_topic(data: Bytes, text: Any, arrays: TopicArrays, timed: Rows, start: int) -> None:
    """Set index and hash of the real topic; try the topic of the previous row first."""
    pos, size = text["topic_pos"], np.int64(text["topic_len"])
    if start > 0 and is_topic(data, pos, size, arrays, timed[start - 1]["topic_index"]):
        timed[start]["topic_index"] = timed[start - 1]["topic_index"]
        timed[start]["topic_hash"] = timed[start - 1]["topic_hash"]
        return
    timed[start]["topic_index"] = find_topic(data, pos, size, arrays)
    timed[start]["topic_hash"] = java_hash(data, pos, pos + size)


@kernel
def set_known_topic(index: int, arrays: TopicArrays, timed: Rows, position: int) -> None:
    """Set index and hash of a real topic that a row names by its index."""
    timed[position]["topic_index"] = index
    if position > 0 and timed[position - 1]["topic_index"] == index:
        timed[position]["topic_hash"] = timed[position - 1]["topic_hash"]
        return
    start = np.int64(arrays.topics[index]["name_pos"])
    end = start + arrays.topics[index]["name_len"]
    timed[position]["topic_hash"] = java_hash(arrays.names, start, end)


@kernel
def set_timed(row: Any, due_ms: int, prepared_offset: int, text: Any) -> None:
    """Set time, kind and origin of a row whose topic is set."""
    # -(offset + 1) names a record, 0 and other numbers do not
    row["origin"] = -(prepared_offset + 1) if prepared_offset < 0 else -1
    if due_ms < 0 or text["queue_id"] < 0:
        row["kind"], row["due_ms"], row["slot_ms"] = TIMED_BROKEN, 0, 0
        return
    # a slot covers the times after its start up to its end, so that of due_ms is that of due_ms - 1
    row["due_ms"], row["slot_ms"] = due_ms, due_ms - 1
    row["kind"] = TIMED_MARKER if text["flags"] & TEXT_MARKER else TIMED_PLAIN


@kernel
def set_broken(row: Any) -> None:
    """Make a row that is not a timer."""
    row["due_ms"] = row["slot_ms"] = row["topic_hash"] = 0
    row["topic_index"] = row["origin"] = -1
    row["kind"] = TIMED_BROKEN


@kernel
def read_put(row: Any, staging: Bytes, text: Any) -> None:
    """Read the timer properties of a PUT row from its columns, or from its text if absent there.

    The encoder writes the columns after the text, so they take precedence.
    """
    if row["prop_flags"] & PROP_TIMER_STALE or row["real_topic_index"] < 0 or row["out_ms"] < 0:
        pos = np.int64(row["prop_pos"])
        read_text(staging, pos, pos + row["prop_len"], text)
    else:
        text["exact_ms"], text["topic_len"] = NO_NUMBER, 0
        text["kind"] = row["timer_kind"]
        text["value"] = row["timer_value"] if row["timer_kind"] > TIMER_NONE else NO_NUMBER
        text["flags"] = TEXT_MARKER if row["prop_flags"] & PROP_TIMER_DEL else 0
    # columns that the encoder writes after the text
    if row["out_ms"] >= 0:
        text["out_ms"] = row["out_ms"]
    if row["due_ms"] >= 0:
        text["exact_ms"] = row["due_ms"]
    if row["real_topic_index"] >= 0:
        text["queue_id"] = row["real_queue_id"]


@kernel
def from_put(
    rows: Rows,
    count: int,
    staging: Bytes,
    arrays: TopicArrays,
    context: Context,
    text: Rows,
    timed: Rows,
) -> int:
    """Make rows of the stored timers among rows[:count]; return their number.

    Args:
        text: (1,) layout.TIMER_TEXT, scratch.
        timed: (n,) layout.TIMED, n >= count.
    """
    n = 0
    for i in range(count):
        row = rows[i]
        # queue 0 is the only queue of the timer topic
        if row["topic_index"] != context.timer or row["status"] != 0 or row["queue_id"] != 0:
            continue
        if not has_queue_offset(row["sys_flag"]):  # a half message is in no queue
            continue
        found = timed[n]
        read_put(row, staging, text[0])
        found["phys_offset"], found["queue_offset"] = row["phys_offset"], row["queue_offset"]
        found["record_size"] = row["record_size"]
        if row["real_topic_index"] >= 0:
            set_known_topic(row["real_topic_index"], arrays, timed, n)
        elif text[0]["topic_len"] > 0:
            set_topic(staging, text[0], arrays, timed, n)
        else:
            set_broken(found)
            text[0]["queue_id"] = -1
        due_ms = due_of(text[0], row["store_ms"], context.precision_ms)
        set_timed(found, due_ms, row["prepared_offset"], text[0])
        n += 1
    return n


@kernel
def from_records(
    data: Bytes,
    span: Any,
    units: Rows,
    arrays: TopicArrays,
    context: Context,
    first_offset: int,
    scratch: Scratch,
    timed: Rows,
) -> None:
    """Make a row of each of `units`.

    Args:
        data: the bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        units: (n,) message_store.layout.UNIT of the timer queue.
        first_offset: queue offset of units[0]; below 0: the units are not from the queue.
        timed: (n,) layout.TIMED out.
    """
    frame, text = scratch.frames[0], scratch.text[0]
    for i in range(units.size):
        unit, found = units[i], timed[i]
        found["phys_offset"], found["queue_offset"] = unit["phys_offset"], first_offset + i
        found["record_size"] = unit["size"]
        set_broken(found)  # until the record proves to be a timer
        # A damaged unit may point anywhere: no byte outside the written part is read.
        pos = np.int64(unit["phys_offset"] - span[0])
        if pos < 0 or unit["size"] < 0 or pos + unit["size"] > span[1]:
            continue
        size = read_frame(data, pos, pos + unit["size"], unit["phys_offset"], frame)
        # Unit and record must agree on size, queue and offset, or one of them is damaged.
        if size != unit["size"] or frame["queue_id"] != 0:
            continue
        if first_offset >= 0 and frame["queue_offset"] != first_offset + i:
            continue
        if not is_topic(data, pos + frame["topic_pos"], frame["topic_len"], arrays, context.timer):
            continue
        prop_pos = pos + frame["prop_pos"]
        read_text(data, prop_pos, prop_pos + frame["prop_len"], text)
        if text["topic_len"] > 0:
            set_topic(data, text, arrays, timed, i)
        else:
            text["queue_id"] = -1
        due_ms = due_of(text, frame["store_ms"], context.precision_ms)
        set_timed(found, due_ms, frame["prepared_offset"], text)


@kernel
def units_at(data: Bytes, span: Any, offsets: Any, frames: Rows, units: Rows, queues: Any) -> None:
    """Make a queue unit of the record at each log offset; its size is 0 where no record is.

    Args:
        data: the bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        offsets: (n,) i8: log offsets in this file.
        frames: (1,) layout.SCANNED, scratch.
        units: (n,) message_store.layout.UNIT out.
        queues: (n,) i8 out: queue offset of each record, -1 where no record is.
    """
    for i in range(offsets.size):
        pos = np.int64(offsets[i] - span[0])
        units[i]["phys_offset"], units[i]["size"], units[i]["tags_code"] = offsets[i], 0, 0
        queues[i] = -1
        if pos < 0 or pos >= span[1]:
            continue
        size = read_frame(data, pos, span[1], offsets[i], frames[0])
        if size > 0:
            units[i]["size"], queues[i] = size, frames[0]["queue_offset"]
