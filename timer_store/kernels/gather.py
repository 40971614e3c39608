"""Stage 4, compiled: conversion of due timers' records to rows of a batch.

`gather` reads records in the order of the log and fills rows in the order of delivery. It copies
bodies and property texts, because the timers of one batch are in several log files. It skips every
record that is not valid, not a timer, or not due at the time of its unit:
`timer_store.dequeue.deliverer` handles those in Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.redirected import (
    CRC32,
    DEQUEUE_MS,
    DUE_MS,
    ENQUEUE_MS,
    TAGS,
    UNDERSCORE,
    D,
    R,
    T,
    find_target,
    has_queues,
    is_body_sound,
    set_message,
    take_target,
)
from message_store.kernels.bytes import Bytes, copy
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_name, has_value, is_topic
from message_store.kernels.properties import java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.layout import ENTRY_END, TIMER_NONE
from message_store.queues.topic_table import TopicArrays
from timer_store.kernels.due_time import OUT, ROLLS, due_of, take_timer
from timer_store.kernels.enqueue import Scratch
from timer_store.kernels.transfer import DELA, is_delay
from timer_store.layout import (
    FROM_LEVEL,
    FROM_NOTHING,
    FROM_ROUTE,
    FROM_TIMER,
    NO_NUMBER,
    STAGED_FIRED,
    TEXT_LEVEL,
    TEXT_MARKER,
    UPPER_Y,
    Rows,
)


class Output(NamedTuple):
    """Output of `gather`."""

    rows: Rows  # (n,) message_store.layout.PUT
    staging: Bytes  # with room for all
    end: npt.NDArray[np.int64]  # (1,): position of its first free byte
    is_malformed: npt.NDArray[np.uint8]  # (n,): 1: skipped, see `timer_store.dequeue.deliverer`


class Context(NamedTuple):
    """Values that all records of a batch share."""

    timer: int  # topic index of the timer topic
    schedule: int  # topic index of the levels' topic
    half: int  # topic index of half messages, which is no target of a delivery
    routed: bool  # topics without queues count as missing
    now_ms: int
    precision_ms: int  # of the wheel


@kernel
def is_dropped(data: Bytes, pos: int, end: int, kind: int) -> bool:
    """Return whether an entry, even an empty one, is omitted from the delivered message.

    These are entries of an earlier delivery and the CRC of the source record; for a routed message
    (`kind`: FROM_*) also the entries that make it a timer.
    """
    if has_name(data, pos, end, CRC32):
        return True
    if kind == FROM_LEVEL:
        return False
    if has_name(data, pos, end, ENQUEUE_MS) or has_name(data, pos, end, DEQUEUE_MS):
        return True
    if kind != FROM_ROUTE:
        return False
    if has_name(data, pos, end, ROLLS) or has_name(data, pos, end, OUT):
        return True
    return has_name(data, pos, end, DUE_MS)


@kernel
def read_entries(data: Bytes, pos: int, end: int, text: Any, row: Any) -> bool:
    """Read a property text into `text` and `row`; return whether any entry `is_dropped`.

    The last of equal names applies.
    """
    text["out_ms"] = text["exact_ms"] = text["value"] = NO_NUMBER
    text["kind"], text["flags"], text["topic_len"] = TIMER_NONE, 0, 0
    text["name_pos"] = -1
    text["queue_id"], row["tags_hash"] = -1, 0
    drops = False
    while pos < end:
        until = entry_end(data, pos, end)
        first = data[pos]
        if first == T and has_value(data, pos, until, TAGS):
            row["tags_hash"] = java_hash(data, pos + TAGS.size + 1, until)
        elif first == T and until - pos > OUT.size and data[pos + 5] == UNDERSCORE:  # TIMER_...
            take_timer(data, pos, until, text)
            drops = drops or is_dropped(data, pos, until, FROM_TIMER)
        elif first == R:
            take_target(data, pos, until, text)
        elif first == D and has_value(data, pos, until, DUE_MS):
            text["exact_ms"] = parse_number(data, pos + DUE_MS.size + 1, until, NO_NUMBER)
        elif first == D and is_delay(data, pos, until):
            # the position of its last letter; with two such entries, neither is renamed
            text["name_pos"] = np.int64(-1) if text["flags"] & TEXT_LEVEL else pos + DELA.size
            text["flags"] |= TEXT_LEVEL
        # __CRC32# begins so
        elif first == UNDERSCORE:
            drops = drops or is_dropped(data, pos, until, FROM_TIMER)
        pos = until + 1
    row["queue_id"] = text["queue_id"]
    return drops


@kernel
def copy_kept(
    data: Bytes, pos: int, end: int, kind: int, name_pos: int, out: Bytes, start: int
) -> int:
    """Copy a property text without the entries of `is_dropped`; return the position after it.

    Args:
        name_pos: Position of the last letter of DELAy if it becomes DELAY again, else -1.
    """
    is_first = True
    # including `end`: the empty entry after a last separator keeps the separator
    while pos <= end:
        until = entry_end(data, pos, end)
        if not is_dropped(data, pos, until, kind):
            if not is_first:
                out[start] = ENTRY_END
                start += 1
            copy(out, start, data, pos, until - pos)
            if pos <= name_pos and name_pos < until:
                out[start + name_pos - pos] = UPPER_Y
            start += until - pos
            is_first = False
        pos = until + 1
    return start


@kernel
def put_text(
    data: Bytes, start: int, end: int, text: Any, kind: int, drops: bool, out: Bytes, position: int
) -> int:
    """Copy the property text for the consumer; return the position after it."""
    if kind == FROM_ROUTE or drops:
        # copy entry by entry only if entries are omitted
        name_pos = np.int64(-1) if kind == FROM_TIMER else np.int64(text["name_pos"])
        return copy_kept(data, start, end, kind, name_pos, out, position)
    copy(out, position, data, start, end - start)
    if kind == FROM_LEVEL and text["name_pos"] >= 0:
        out[position + text["name_pos"] - start] = UPPER_Y
    return position + end - start


@kernel
def find_kind(data: Bytes, pos: int, staged: Any, frame: Any, arrays: Any, context: Context) -> int:
    """Return FROM_* of the record at `pos`, FROM_NOTHING if it is incomplete or of another size."""
    size, kind = np.int64(staged["record_size"]), FROM_NOTHING
    if read_frame(data, pos, pos + size, staged["phys_offset"], frame) != size:
        return FROM_NOTHING
    if is_topic(data, pos + frame["topic_pos"], frame["topic_len"], arrays, context.timer):
        kind = FROM_TIMER if frame["queue_id"] == 0 else FROM_NOTHING
    elif is_topic(data, pos + frame["topic_pos"], frame["topic_len"], arrays, context.schedule):
        kind = FROM_LEVEL
    # last, because it reads the whole body
    return kind if is_body_sound(data, pos, frame) else FROM_NOTHING


@kernel
def is_due(text: Any, kind: int, store_ms: int, timer: Any, precision_ms: int) -> bool:
    """Return whether a record is a timer with the due time of its unit, and not a marker.

    The due time of a level message is only in the unit of its queue, and a level message is never
    a marker. A unit of an Apache broker is due at the end of its slot. Twin:
    `timer_store.dequeue.unit_check`.
    """
    if kind == FROM_LEVEL:
        return True
    due_ms = due_of(text, store_ms, precision_ms)
    if due_ms < 0 or text["flags"] & TEXT_MARKER != 0:
        return False
    late_ms = timer["due_ms"] - due_ms
    if late_ms == 0 or timer["state"] == STAGED_FIRED:
        return True
    return late_ms > 0 and late_ms <= precision_ms and timer["due_ms"] % precision_ms == 0


@kernel
def is_routed(text: Any) -> bool:
    """Return whether a timer was sent with a level.

    Readable twin: `timer_store.dequeue.original_properties`.
    """
    if text["flags"] & TEXT_LEVEL == 0:
        return False
    return text["exact_ms"] != NO_NUMBER and text["kind"] == TIMER_NONE


@kernel
def set_target(
    data: Bytes, text: Any, arrays: TopicArrays, context: Context, guess: int, row: Any
) -> bool:
    """Set the real topic of `row`; return whether messages can be delivered to it."""
    index = find_target(data, text["topic_pos"], np.int64(text["topic_len"]), arrays, guess)
    row["topic_index"] = index
    # a delivery into an internal topic would be delayed, or hidden, again
    if index < 0 or index == context.timer or index == context.half or row["queue_id"] < 0:
        return False
    return not context.routed or has_queues(arrays, index)


@kernel
def gather(
    data: Bytes,
    span: Any,
    staged: Rows,
    order: Any,
    arrays: TopicArrays,
    context: Context,
    scratch: Scratch,
    output: Output,
) -> None:
    """Make rows of the records of staged[order], all of one log file.

    Args:
        data: the file's bytes.
        span: (log offset of data[0], bytes of data that are written).
        staged: (n,) STAGED; row i becomes output.rows[i].
        order: (m,) indexes, ascending by log offset.
    """
    frame, text, guess = scratch.frames[0], scratch.text[0], np.int64(-1)
    # several calls, one for each log file, share the staging buffer
    position = output.end[0]
    for i in order:
        timer, row = staged[i], output.rows[i]
        output.is_malformed[i] = 1
        # A damaged unit may point anywhere: no byte outside the written part is read.
        pos = np.int64(timer["phys_offset"] - span[0])
        if pos < 0 or timer["record_size"] < 0 or pos + timer["record_size"] > span[1]:
            continue
        kind = find_kind(data, pos, timer, frame, arrays, context)
        if kind == FROM_NOTHING:
            continue
        start = pos + frame["prop_pos"]
        end = start + frame["prop_len"]
        drops = read_entries(data, start, end, text, row)
        # The due times of record and unit must be equal, so that a unit of another lap or store
        # delivers no message early.
        if not is_due(text, kind, frame["store_ms"], timer, context.precision_ms):
            continue
        if not set_target(data, text, arrays, context, guess, row):
            continue
        if kind == FROM_LEVEL and row["topic_index"] == context.schedule:
            continue
        set_message(data, pos, frame, timer["phys_offset"], row)
        row["enqueue_ms"], row["dequeue_ms"] = timer["write_ms"], context.now_ms
        # A message that was sent with a level is delivered as by the level service, without
        # timer properties.
        if kind == FROM_TIMER and is_routed(text):
            kind = FROM_ROUTE
        if kind != FROM_TIMER:
            row["enqueue_ms"] = row["dequeue_ms"] = -1
        guess = np.int64(row["topic_index"])  # the next record often goes to the same topic
        row["body_pos"], row["body_len"] = position, frame["body_len"]
        copy(output.staging, position, data, pos + frame["body_pos"], np.int64(frame["body_len"]))
        # the properties follow the body
        row["prop_pos"] = position = position + frame["body_len"]
        position = put_text(data, start, end, text, kind, drops, output.staging, position)
        row["prop_len"] = position - row["prop_pos"]
        output.is_malformed[i] = 0
    # skipped rows took no room
    output.end[0] = position
