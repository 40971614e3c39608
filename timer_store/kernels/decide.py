"""Compiled loops that build the records of decisions about timers.

mark   cancels: a marker of Apache's form, which names its target as its origin
copy   moves: the same message with another time, whose origin is the record it was made of;
       or with the time that it has: a record that waits on in the place of an older one

Both read records of one log file and fill rows of a batch, without looking at what the timers'
state is: that was decided before. The property texts keep REAL_TOPIC and REAL_QID as they are; the
encoder writes TIMER_OUT_MS after them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from delivery.kernels.redirected import (
    CRC32,
    DEQUEUE_MS,
    DUE_MS,
    ENQUEUE_MS,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    UNDERSCORE,
    D,
    T,
    is_body_sound,
    set_message,
)
from message_store.kernels.bytes import Bytes, copy, put_digits
from message_store.kernels.index import KEYS_NAME, UNIQ_NAME
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_value, is_named
from message_store.kernels.properties import find_value, java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.layout import (
    PROP_REAL_TOPIC,
    PROP_TIMER_DEL,
    SYS_BORN_IPV6,
    SYS_STORE_IPV6,
    TIMER_DELIVER_MS,
)
from timer_store.kernels.fetch import (
    DELIVER,
    MARKER,
    MS,
    OUT,
    ROLLS,
    SEC,
)
from timer_store.kernels.transfer import is_delay
from timer_store.layout import Rows

UNREADABLE = 1  # status of a row whose record is not whole: it is not put
S = 83  # of the schedule topic, where transferred messages lie
RECALL_TAG = np.frombuffer(b"TAGS\x01_RECALL_TAG_\x02", np.uint8).copy()
HOST_BITS = SYS_BORN_IPV6 | SYS_STORE_IPV6
MARKER_ROOM = 128  # bytes of a marker's text that do not come out of its target's, at most
ROLLS_MAX = 999_999_999
NAMED_BYTES_MAX = 8_192  # of a property text whose keys a marker repeats


class Made(NamedTuple):
    """What is filled."""

    rows: Rows  # (n,) message_store.layout.PUT
    staging: Bytes  # with room for all
    at: npt.NDArray[np.int64]  # (1,): the first free byte of it


class Context(NamedTuple):
    """What holds for all records that are made together."""

    timer: int  # topic index of the timer topic
    precision_ms: int
    now_ms: int
    body_pos: int  # of a marker's body in the staging buffer: one byte


class Source(NamedTuple):
    """Where records are read from: one log file."""

    data: Bytes
    base: int  # log offset of data[0]
    size: int  # bytes of data that are written
    frames: Rows  # (1,) message_store.layout.SCANNED, scratch


@kernel
def read_target(source: Source, timer: Any) -> int:
    """Read the frame of a timer's record; return its position, -1 if it is not whole."""
    data, frame = source.data, source.frames[0]
    pos = np.int64(timer["phys_offset"] - source.base)
    size = np.int64(timer["record_size"])
    if pos < 0 or size < 0 or pos + size > source.size:
        return -1
    if read_frame(data, pos, pos + size, timer["phys_offset"], frame) != size:
        return -1
    return pos if is_body_sound(data, pos, frame) else -1


@kernel
def set_common(
    source: Source, pos: int, timer: Any, due_ms: int, context: Context, row: Any
) -> None:
    """Set what markers and copies have in common."""
    set_message(source.data, pos, source.frames[0], timer["phys_offset"], row)
    row["topic_index"], row["queue_id"] = context.timer, 0
    row["prop_flags"] = PROP_REAL_TOPIC
    # Apache's broker puts a timer into the slot of TIMER_OUT_MS, which ends at its due time.
    row["out_ms"] = (due_ms - 1) // context.precision_ms * context.precision_ms


@kernel
def put_bytes(made: Made, data: Bytes, start: int, end: int) -> None:
    """Append data[start:end] to the staging buffer."""
    copy(made.staging, made.at[0], data, np.int64(start), np.int64(end - start))
    made.at[0] += end - start


@kernel
def put_byte(made: Made, byte: int) -> None:
    made.staging[made.at[0]] = byte
    made.at[0] += 1


@kernel
def put_entry(made: Made, name: Bytes, data: Bytes, start: int, end: int) -> None:
    """Append the entry of `name` with the value data[start:end]."""
    put_bytes(made, name, 0, name.size)
    put_byte(made, 1)
    put_bytes(made, data, start, end)
    put_byte(made, 2)


@kernel
def put_marker_text(source: Source, pos: int, named: bool, made: Made) -> None:
    """Append a marker's property text; `named`: it is found by the keys of its target."""
    data, frame = source.data, source.frames[0]
    start, size = pos + frame["prop_pos"], frame["prop_len"]
    topic = find_value(data, start, size, REAL_TOPIC)
    queue = find_value(data, start, size, REAL_QID)
    unique = find_value(data, start, size, UNIQ_NAME)
    named = named and size <= NAMED_BYTES_MAX
    put_bytes(made, RECALL_TAG, 0, RECALL_TAG.size)
    put_bytes(made, MARKER, 0, MARKER.size)
    put_byte(made, 1)
    put_bytes(made, data, topic[0], topic[1])
    put_byte(made, 43)
    put_bytes(made, data, unique[0], unique[1])
    put_byte(made, 2)
    if named and unique[0] < unique[1]:
        put_entry(made, UNIQ_NAME, data, unique[0], unique[1])
    keys = find_value(data, start, size, KEYS_NAME)
    if named and keys[0] < keys[1]:
        put_entry(made, KEYS_NAME, data, keys[0], keys[1])
    put_entry(made, REAL_TOPIC, data, topic[0], topic[1])
    put_entry(made, REAL_QID, data, queue[0], queue[1])


@kernel
def mark(
    source: Source, timers: Rows, order: Any, context: Context, named: bool, made: Made
) -> None:
    """Make row i the marker of timer i, for those in `order`.

    Args:
        timers: (n,) TIMED; due_ms determines the slot of the marker.
        order: (m,) indexes of the timers with records in this file.
        named: the marker is to be found by the keys of its target.
    """
    for i in order:
        row, timer = made.rows[i], timers[i]
        row["status"] = UNREADABLE
        pos = read_target(source, timer)
        if pos < 0:
            continue
        set_common(source, pos, timer, timer["due_ms"], context, row)
        row["sys_flag"] &= HOST_BITS
        row["flag"] = row["reconsume_times"] = 0
        row["born_ms"] = context.now_ms
        row["body_pos"], row["body_len"] = context.body_pos, 1
        row["prop_flags"] |= PROP_TIMER_DEL
        row["prop_pos"] = made.at[0]
        put_marker_text(source, pos, named, made)
        row["prop_len"] = made.at[0] - row["prop_pos"]
        row["tags_hash"] = java_hash(RECALL_TAG, TAGS.size + 1, RECALL_TAG.size - 1)


@kernel
def is_dropped(data: Bytes, pos: int, end: int, kept: bool) -> bool:
    """Return whether an entry is written again, or does not apply to a copy.

    Args:
        kept: the copy has the same due time, so that the properties of its client stay.
    """
    first = data[pos] if pos < end else 0
    if first == T:
        if not kept and (
            has_value(data, pos, end, OUT)
            or has_value(data, pos, end, DELIVER)
            or has_value(data, pos, end, MS)
            or has_value(data, pos, end, SEC)
        ):
            return True
        return (
            has_value(data, pos, end, ROLLS)
            or has_value(data, pos, end, ENQUEUE_MS)
            or has_value(data, pos, end, DEQUEUE_MS)
        )
    if first == D:
        return has_value(data, pos, end, DUE_MS)
    return first == UNDERSCORE and has_value(data, pos, end, CRC32)


@kernel
def is_born_with_level(data: Bytes, at: int, end: int) -> bool:
    """Return whether a timer's text is that of a routed message.

    Readable twin: `timer_store.dequeue.original_properties`.
    """
    size = end - at
    if find_value(data, at, size, DUE_MS)[1] == 0 or find_value(data, at, size, SEC)[1] != 0:
        return False
    return find_value(data, at, size, MS)[1] == 0 and find_value(data, at, size, DELIVER)[1] == 0


@kernel
def put_number_entry(made: Made, name: Bytes, number: int) -> None:
    """Append the entry of `name` with a number."""
    put_bytes(made, name, 0, name.size)
    put_byte(made, 1)
    made.at[0] = put_digits(made.staging, made.at[0], np.int64(number))
    put_byte(made, 2)


@kernel
def put_copy_text(source: Source, pos: int, due_ms: int, kept: bool, made: Made) -> int:
    """Append the property text of a copy; return the hash of its TAGS.

    Args:
        kept: see `is_dropped`; how often it was copied so is counted, in Apache's way.
    """
    data, frame = source.data, source.frames[0]
    at = pos + frame["prop_pos"]
    end, tags, rolls = at + frame["prop_len"], np.int64(0), np.int64(0)
    of_level = data[pos + frame["topic_pos"]] == S or is_born_with_level(data, at, end)
    while at < end:
        until = entry_end(data, at, end)
        if of_level and not kept and is_delay(data, at, until):
            pass  # it is a timer of its own from now on
        elif until > at and is_dropped(data, at, until, kept):
            if has_value(data, at, until, ROLLS):
                rolls = parse_number(data, at + ROLLS.size + 1, until, 0)
        elif until > at:
            if until - at > 5 and data[at + 4] == 1 and is_named(data, at, TAGS):
                tags = java_hash(data, at + 5, until)
            put_bytes(made, data, at, until)
            put_byte(made, 2)
        at = until + 1
    if kept:
        put_number_entry(made, ROLLS, min(max(rolls, 0), ROLLS_MAX) + 1)
    else:
        put_number_entry(made, DELIVER, due_ms)
    return tags


@kernel
def copy_to(
    source: Source, timers: Rows, order: Any, due_ms: Any, context: Context, kept: bool, made: Made
) -> None:
    """Make row i the copy of timer i that is due at due_ms[i], for those in `order`.

    Args:
        due_ms: (n,) i8.
        timers, order: see `mark`.
        kept: due_ms is when each was due before.
    """
    data, frame = source.data, source.frames[0]
    for i in order:
        row, timer = made.rows[i], timers[i]
        row["status"] = UNREADABLE
        pos = read_target(source, timer)
        if pos < 0:
            continue
        set_common(source, pos, timer, due_ms[i], context, row)
        row["body_pos"], row["body_len"] = made.at[0], frame["body_len"]
        put_bytes(made, data, pos + frame["body_pos"], pos + frame["body_pos"] + frame["body_len"])
        row["prop_pos"] = made.at[0]
        row["tags_hash"] = put_copy_text(source, pos, due_ms[i], kept, made)
        row["prop_len"] = made.at[0] - row["prop_pos"]
        if kept:
            row["due_ms"] = due_ms[i]
            if data[pos + frame["topic_pos"]] != S:  # its text says TIMER_OUT_MS
                row["out_ms"] = -1
        else:
            row["timer_kind"], row["timer_value"] = TIMER_DELIVER_MS, due_ms[i]
