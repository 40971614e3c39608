"""Compiled loops that build the records of decisions about timers.

make_markers   for a cancel: two markers in Apache's format, with their target as origin: one names
               topic+key, as 5.3 compares it, the other the key alone, as 5.4 and later compare it
make_copies    for a move: the same message with another due time; for a roll or a compaction: with
               the same due time. The origin of a copy is the record that it replaces.

Both read records of one log file and fill rows of a batch. The caller has checked that the timers
are pending. The property texts keep REAL_TOPIC and REAL_QID; the encoder writes TIMER_OUT_MS after
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from delayed_delivery.kernels.redirected import (
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
from delayed_delivery.kernels.texts import (
    UNREADABLE,
    DecisionOutput,
    put_byte,
    put_bytes,
    put_entry,
    put_number_entry,
    target_values,
)
from message_store.kernels.bytes import Bytes
from message_store.kernels.index import KEYS_NAME, UNIQ_NAME
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_value
from message_store.kernels.properties import find_value, java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.layout import (
    ENTRY_END,
    NAME_END,
    PROP_REAL_TOPIC,
    PROP_TIMER_DEL,
    SYS_BORN_IPV6,
    SYS_STORE_IPV6,
    TIMER_DELIVER_MS,
)
from timer_store.kernels.due_time import DELIVER, MARKER, MS, OUT, ROLLS, SEC
from timer_store.kernels.transfer import is_delay
from timer_store.layout import Rows

SCHEDULE_INITIAL = ord("S")  # first byte of the schedule topic; the timer topic has another one
RECALL_TAG = np.frombuffer(b"TAGS\x01_RECALL_TAG_\x02", np.uint8).copy()
KEY_SEPARATOR = ord("+")  # between topic and key in the value of a marker
HOST_BITS = SYS_BORN_IPV6 | SYS_STORE_IPV6
MARKER_ROOM = 128  # maximum bytes of a marker's text that are not from its target
ROLLS_MAX = 999_999_999
NAMED_BYTES_MAX = 8_192  # maximum size of a property text whose keys are copied to a marker


class Context(NamedTuple):
    """Values that are equal for all records of a call."""

    timer: int  # topic index of the timer topic
    precision_ms: int
    now_ms: int
    body_pos: int  # position of a marker's body in the staging buffer: one byte


class Source(NamedTuple):
    """Log file that records are read from."""

    data: Bytes
    base: int  # log offset of data[0]
    size: int  # bytes of data that are written
    frames: Rows  # (1,) message_store.layout.SCANNED, scratch


@kernel
def read_target(source: Source, timer: Any) -> int:
    """Read the frame of a timer's record; return its position, -1 if it is incomplete."""
    data, frame = source.data, source.frames[0]
    pos = np.int64(timer["phys_offset"] - source.base)
    size = np.int64(timer["record_size"])
    # A damaged unit may have any offset and size: check both against the file before use.
    if pos < 0 or size < 0 or pos + size > source.size:
        return -1
    if read_frame(data, pos, pos + size, timer["phys_offset"], frame) != size:
        return -1
    return pos if is_body_sound(data, pos, frame) else -1


@kernel
def set_common(
    source: Source, pos: int, timer: Any, due_ms: int, context: Context, row: Any
) -> None:
    """Set the columns that markers and copies have in common."""
    set_message(source.data, pos, source.frames[0], timer["phys_offset"], row)
    row["topic_index"], row["queue_id"] = context.timer, 0
    row["prop_flags"] = PROP_REAL_TOPIC
    # Apache's broker puts a timer into the slot of TIMER_OUT_MS, which ends at its due time.
    row["out_ms"] = (due_ms - 1) // context.precision_ms * context.precision_ms


@kernel
def put_marker_text(
    data: Bytes, values: Any, with_topic: bool, named: bool, output: DecisionOutput, row: Any
) -> None:
    """Append the property text of a marker, and set the text columns of its row.

    Args:
        values: Those of the target, see `target_values`.
        with_topic: The marker names topic+key, else the key alone.
        named: The marker has the keys of its target.
    """
    topic, queue, unique, keys = values
    row["prop_pos"] = output.free_pos[0]
    put_bytes(output, RECALL_TAG, 0, RECALL_TAG.size)
    # by the value of TIMER_DEL_UNIQKEY an Apache broker finds the target in the slot
    put_bytes(output, MARKER, 0, MARKER.size)
    put_byte(output, NAME_END)
    if with_topic:
        put_bytes(output, data, topic[0], topic[1])
        put_byte(output, KEY_SEPARATOR)
    put_bytes(output, data, unique[0], unique[1])
    put_byte(output, ENTRY_END)
    if named and unique[0] < unique[1]:
        put_entry(output, UNIQ_NAME, data, unique[0], unique[1])
    if named and keys[0] < keys[1]:
        put_entry(output, KEYS_NAME, data, keys[0], keys[1])
    put_entry(output, REAL_TOPIC, data, topic[0], topic[1])
    put_entry(output, REAL_QID, data, queue[0], queue[1])
    row["prop_len"] = output.free_pos[0] - row["prop_pos"]


@kernel
def set_marker(
    source: Source, pos: int, timer: Any, context: Context, tags_hash: int, row: Any
) -> None:
    """Set the columns of a marker of the timer at data[pos], without those of its text."""
    set_common(source, pos, timer, timer["due_ms"], context, row)
    # the broker's own message: no compression, no transaction, no retries
    row["sys_flag"] &= HOST_BITS
    row["flag"] = row["reconsume_times"] = 0
    row["born_ms"] = context.now_ms
    row["body_pos"], row["body_len"] = context.body_pos, 1
    row["prop_flags"] |= PROP_TIMER_DEL
    row["tags_hash"] = tags_hash


@kernel
def make_markers(
    source: Source, timers: Rows, order: Any, context: Context, named: bool, output: DecisionOutput
) -> None:
    """Make rows i and n + i the markers of timer i, for those in `order`.

    Args:
        timers: (n,) TIMED; due_ms determines the slot of the marker.
        order: (m,) indexes of the timers with records in this file.
        named: The first markers have the keys of their targets, so that a lookup finds them.
    """
    data, frame = source.data, source.frames[0]
    tags_hash = java_hash(RECALL_TAG, TAGS.size + 1, RECALL_TAG.size - 1)
    for i in order:
        timer = timers[i]
        pos = read_target(source, timer)
        if pos < 0:
            continue
        start, size = pos + frame["prop_pos"], frame["prop_len"]
        values = target_values(data, start, start + size)
        row, unique = output.rows[i], values[2]
        set_marker(source, pos, timer, context, tags_hash, row)
        # longer texts would leave no room for what a delivery adds
        put_marker_text(data, values, True, named and size <= NAMED_BYTES_MAX, output, row)
        # An Apache broker looks for topic+key or for the key alone, depending on its version and
        # configuration: there is a marker for each. Without a key, the key alone names none.
        if unique[0] < unique[1]:
            other = output.rows[timers.size + i]
            set_marker(source, pos, timer, context, tags_hash, other)
            put_marker_text(data, values, False, False, output, other)


@kernel
def is_dropped(data: Bytes, pos: int, end: int, kept: bool) -> bool:
    """Return whether an entry is not copied, because the copy lacks it or has a new value.

    Args:
        kept: The copy has the same due time, so that the client's time properties are copied.
    """
    first = data[pos] if pos < end else 0
    if first == T:
        # the times that a move replaces
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
    # the exact due time is a column of the copy
    if first == D:
        return has_value(data, pos, end, DUE_MS)
    return first == UNDERSCORE and has_value(data, pos, end, CRC32)


@kernel
def has_level(data: Bytes, position: int, end: int) -> bool:
    """Return whether a timer's text is that of a routed message.

    Readable twin: `timer_store.dequeue.original_properties`.
    """
    size = end - position
    if (
        find_value(data, position, size, DUE_MS)[1] == 0
        or find_value(data, position, size, SEC)[1] != 0
    ):
        return False
    return (
        find_value(data, position, size, MS)[1] == 0
        and find_value(data, position, size, DELIVER)[1] == 0
    )


@kernel
def put_copy_text(source: Source, pos: int, due_ms: int, kept: bool, output: DecisionOutput) -> int:
    """Append the property text of a copy; return the hash of its TAGS.

    Args:
        kept: See `is_dropped`; TIMER_ROLL_TIMES counts these copies, as in Apache's broker.
    """
    data, frame = source.data, source.frames[0]
    start = pos + frame["prop_pos"]
    end, tags, rolls = start + frame["prop_len"], np.int64(0), np.int64(0)
    of_level = data[pos + frame["topic_pos"]] == SCHEDULE_INITIAL
    # a routed message has the properties of both, and is a level message for its consumer
    of_level = of_level or has_level(data, start, end)
    # the last TAGS and the last TIMER_ROLL_TIMES apply, as in any property text
    while start < end:
        until = entry_end(data, start, end)
        if of_level and not kept and is_delay(data, start, until):
            pass  # a moved message no longer has the due time of its level
        elif until > start and is_dropped(data, start, until, kept):
            if has_value(data, start, until, ROLLS):
                rolls = parse_number(data, start + ROLLS.size + 1, until, 0)
        elif until > start:
            if has_value(data, start, until, TAGS):
                tags = java_hash(data, start + TAGS.size + 1, until)
            put_bytes(output, data, start, until)
            put_byte(output, ENTRY_END)
        start = until + 1
    if kept:
        put_number_entry(output, ROLLS, min(max(rolls, 0), ROLLS_MAX) + 1)
    else:
        put_number_entry(output, DELIVER, due_ms)
    return tags


@kernel
def make_copies(
    source: Source,
    timers: Rows,
    order: Any,
    due_ms: Any,
    context: Context,
    kept: bool,
    output: DecisionOutput,
) -> None:
    """Make row i the copy of timer i that is due at due_ms[i], for those in `order`.

    Args:
        due_ms: (n,) i8: due times of the copies.
        timers, order: See `make_markers`.
        kept: Whether `due_ms` equals the timers' current due times.
    """
    data, frame = source.data, source.frames[0]
    for i in order:
        row, timer = output.rows[i], timers[i]
        # until the record proves to be complete
        row["status"] = UNREADABLE
        pos = read_target(source, timer)
        if pos < 0:
            continue
        set_common(source, pos, timer, due_ms[i], context, row)
        row["body_pos"], row["body_len"] = output.free_pos[0], frame["body_len"]
        put_bytes(
            output, data, pos + frame["body_pos"], pos + frame["body_pos"] + frame["body_len"]
        )
        row["prop_pos"] = output.free_pos[0]
        row["tags_hash"] = put_copy_text(source, pos, due_ms[i], kept, output)
        row["prop_len"] = output.free_pos[0] - row["prop_pos"]
        if kept:
            row["due_ms"] = due_ms[i]
            # records of the timer queue already have TIMER_OUT_MS in their text
            if data[pos + frame["topic_pos"]] != SCHEDULE_INITIAL:
                row["out_ms"] = -1
        else:
            row["timer_kind"], row["timer_value"] = TIMER_DELIVER_MS, due_ms[i]
