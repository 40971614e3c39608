"""Stage 4, compiled: records of due timers to rows of a batch.

gather    reads records in the order of the log, fills rows in the order of delivery
outcome   after the put: what became of the rows

Bodies and property texts are copied: the timers of one batch lie in several log files, and the
batch is put while the next one is read. A record is believed only if it is the very one that was
promised for this moment; any other record is left to `timer_store.dequeue.gather`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from delivery.kernels.redirected import read_hosts, set_plain
from message_store.kernels.bytes import Bytes, copy, crc32, get_i4, get_i8
from message_store.kernels.encode import MESSAGE_ILLEGAL
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, is_named, is_topic
from message_store.kernels.properties import java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic
from message_store.layout import TIMER_NONE
from message_store.queues.topic_table import QUEUES_MAX, TopicArrays
from timer_store.kernels.fetch import (
    EXACT,
    OUT,
    REAL_QID,
    REAL_TOPIC,
    ROLLS,
    due_of,
    is_entry,
    take_timer,
)
from timer_store.kernels.transfer import is_delay
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
)

Rows = npt.NDArray[Any]
NOT_HERE = -1
SKIPPED = 1  # status of a row that is not to be put: its record is gone

TAGS = np.frombuffer(b"TAGS", np.uint8).copy()
ENQUEUE = np.frombuffer(b"TIMER_ENQUEUE_MS", np.uint8).copy()
DEQUEUE = np.frombuffer(b"TIMER_DEQUEUE_MS", np.uint8).copy()
CRC32 = np.frombuffer(b"__CRC32#", np.uint8).copy()
T, R, D, UNDERSCORE = 84, 82, 68, 95


class Into(NamedTuple):
    """What `gather` fills."""

    rows: Rows  # (n,) message_store.layout.PUT
    staging: Bytes
    is_malformed: npt.NDArray[np.uint8]  # (n,): 1: left to the plain way


class Scratch(NamedTuple):
    """Room that kernels cannot make themselves."""

    frames: Rows  # (1,) message_store.layout.SCANNED
    text: Rows  # (1,) TIMER_TEXT


@kernel
def is_dropped(data: Bytes, pos: int, end: int, kind: int) -> bool:
    """Return whether an entry tells of an earlier delivery, or is a CRC of the record it lies in.

    Without regard to its value: an empty one is dropped, too. Of a timer that was born with a level
    (`kind`: FROM_*) what made it a timer is dropped.
    """
    size = end - pos
    if size > 8 and data[pos + 8] == 1:
        return is_named(data, pos, CRC32)
    if kind == FROM_LEVEL:
        return False
    if size > 16 and data[pos + 16] == 1:
        if is_named(data, pos, ENQUEUE) or is_named(data, pos, DEQUEUE):
            return True
        return kind == FROM_ROUTE and is_named(data, pos, ROLLS)
    if kind != FROM_ROUTE or size <= 12 or data[pos + 12] != 1:
        return False
    return is_named(data, pos, OUT) or is_named(data, pos, EXACT)


@kernel
def read_entries(data: Bytes, pos: int, end: int, text: Any, row: Any) -> bool:
    """Read what matters off a property text into `text` and `row`; return whether some is dropped.

    The last of equal names counts.
    """
    text["out_ms"] = text["exact_ms"] = text["value"] = NO_NUMBER
    text["kind"], text["flags"], text["topic_len"] = TIMER_NONE, 0, 0
    text["name_pos"] = -1
    row["queue_id"], row["tags_hash"] = -1, 0
    drops = False
    while pos < end:
        until = entry_end(data, pos, end)
        first = data[pos]
        if first == T and until - pos > 5 and data[pos + 4] == 1 and is_named(data, pos, TAGS):
            row["tags_hash"] = java_hash(data, pos + 5, until)
        elif first == T and until - pos > 12 and data[pos + 5] == UNDERSCORE:
            take_timer(data, pos, until, text)
            drops = drops or is_dropped(data, pos, until, FROM_TIMER)
        elif first == R and is_entry(data, pos, until, REAL_TOPIC):
            text["topic_pos"] = pos + REAL_TOPIC.size + 1
            text["topic_len"] = until - pos - REAL_TOPIC.size - 1
        elif first == R and is_entry(data, pos, until, REAL_QID):
            queue = parse_number(data, pos + REAL_QID.size + 1, until, -1)
            row["queue_id"] = queue if 0 <= queue < QUEUES_MAX else -1
        elif first == D and is_entry(data, pos, until, EXACT):
            text["exact_ms"] = parse_number(data, pos + EXACT.size + 1, until, NO_NUMBER)
        elif first == D and is_delay(data, pos, until):
            text["name_pos"] = np.int64(-1) if text["flags"] & TEXT_LEVEL else pos + 4
            text["flags"] |= TEXT_LEVEL
        elif first == UNDERSCORE:
            drops = drops or is_dropped(data, pos, until, FROM_TIMER)
        pos = until + 1
    return drops


@kernel
def copy_kept(
    data: Bytes, pos: int, end: int, kind: int, name_pos: int, out: Bytes, at: int
) -> int:
    """Copy a property text without what is dropped; return the position behind it.

    Args:
        name_pos: where the last letter of DELAy lies, if it is to be DELAY again; else -1.
    """
    is_first = True
    while pos <= end:
        until = entry_end(data, pos, end)
        if not is_dropped(data, pos, until, kind):
            if not is_first:
                out[at] = 2
                at += 1
            copy(out, at, data, pos, until - pos)
            if pos <= name_pos and name_pos < until:
                out[at + name_pos - pos] = UPPER_Y
            at += until - pos
            is_first = False
        pos = until + 1
    return at


@kernel
def put_text(
    data: Bytes, start: int, end: int, text: Any, kind: int, drops: bool, out: Bytes, at: int
) -> int:
    """Copy the property text that a consumer is to see; return the position behind it."""
    if kind == FROM_ROUTE or drops:
        name_pos = np.int64(-1) if kind == FROM_TIMER else np.int64(text["name_pos"])
        return copy_kept(data, start, end, kind, name_pos, out, at)
    copy(out, at, data, start, end - start)
    if kind == FROM_LEVEL and text["name_pos"] >= 0:
        out[at + text["name_pos"] - start] = UPPER_Y
    return at + end - start


@kernel
def find_kind(data: Bytes, pos: int, staged: Any, frame: Any, arrays: Any, ids: Any) -> int:
    """Return what the record at `pos` is, if it is a whole one of the right size: FROM_*."""
    size, kind = np.int64(staged["record_size"]), FROM_NOTHING
    if read_frame(data, pos, pos + size, staged["phys_offset"], frame) != size:
        return FROM_NOTHING
    if is_topic(data, pos + frame["topic_pos"], frame["topic_len"], arrays, ids[0]):
        kind = FROM_TIMER if frame["queue_id"] == 0 else FROM_NOTHING
    elif is_topic(data, pos + frame["topic_pos"], frame["topic_len"], arrays, ids[5]):
        kind = FROM_LEVEL
    body_len = np.int64(frame["body_len"])
    crc = crc32(data, pos + frame["body_pos"], body_len) & 0x7FFFFFFF
    return kind if body_len == 0 or crc == get_i4(data, pos + 8) else FROM_NOTHING


@kernel
def is_due(text: Any, kind: int, store_ms: int, timer: Any) -> bool:
    """Return whether a record was promised for the time of its unit, and cancels nothing.

    The promise of a level stands in the units alone, and nothing it carries is a marker.
    """
    if kind == FROM_LEVEL:
        return True
    due_ms = due_of(text, store_ms, 1)
    if due_ms < 0 or (timer["due_ms"] < due_ms and timer["state"] != STAGED_FIRED):
        return False
    return text["flags"] & TEXT_MARKER == 0


@kernel
def is_routed(text: Any) -> bool:
    """Return whether a timer was sent with a level.

    Readable twin: `timer_store.dequeue.original_properties`.
    """
    if text["flags"] & TEXT_LEVEL == 0:
        return False
    return text["exact_ms"] != NO_NUMBER and text["kind"] == TIMER_NONE


@kernel
def set_target(data: Bytes, text: Any, arrays: TopicArrays, ids: Any, guess: int, row: Any) -> bool:
    """Set the real topic of `row`; False: there is none that it may go to."""
    pos, size = text["topic_pos"], np.int64(text["topic_len"])
    index = guess
    if not is_topic(data, pos, size, arrays, guess):
        index = find_topic(data, pos, size, arrays) if size > 0 else NOT_HERE
    row["topic_index"] = index
    if index < 0 or index == ids[0] or index == ids[1] or row["queue_id"] < 0:
        return False
    topic = arrays.topics[index]
    return ids[2] == 0 or topic["write_queues"] != 0 or topic["read_queues"] != 0


@kernel
def set_rest(data: Bytes, pos: int, frame: Any, staged: Any, now_ms: int, row: Any) -> None:
    """Set every other column but the positions of body and properties."""
    row["real_topic_index"], row["real_queue_id"] = -1, 0
    row["flag"], row["sys_flag"] = get_i4(data, pos + 16), frame["sys_flag"]
    row["born_ms"] = get_i8(data, pos + 40)
    after = read_hosts(data, pos + 48, frame["sys_flag"], row)
    row["reconsume_times"] = get_i4(data, after)
    row["prepared_offset"] = -(staged["phys_offset"] + 1)
    set_plain(row)
    row["enqueue_ms"], row["dequeue_ms"] = staged["write_ms"], now_ms


@kernel
def gather(
    data: Bytes,
    span: Any,
    staged: Rows,
    order: Any,
    arrays: TopicArrays,
    ids: Any,
    scratch: Scratch,
    into: Into,
) -> int:
    """Make rows of the records of staged[order], all of one log file.

    Args:
        data: the file's bytes.
        span: (log offset of data[0], bytes of data that are written).
        staged: (n,) STAGED; row i becomes into.rows[i].
        order: (m,) indexes, ascending by log offset.
        ids: (6,) i8: topic indexes of timer and half topic; 1 if topics without queues count as
            missing; now_ms; the first free byte of the staging buffer, which has room for all;
            topic index of the schedule topic.

    Returns the first free byte of the staging buffer behind them.
    """
    frame, text, guess, at = scratch.frames[0], scratch.text[0], np.int64(-1), ids[4]
    for i in order:
        timer, row = staged[i], into.rows[i]
        into.is_malformed[i] = 1
        pos = np.int64(timer["phys_offset"] - span[0])
        if pos < 0 or timer["record_size"] < 0 or pos + timer["record_size"] > span[1]:
            continue
        kind = find_kind(data, pos, timer, frame, arrays, ids)
        if kind == FROM_NOTHING:
            continue
        start = pos + frame["prop_pos"]
        end = start + frame["prop_len"]
        drops = read_entries(data, start, end, text, row)
        if not is_due(text, kind, frame["store_ms"], timer):
            continue
        if not set_target(data, text, arrays, ids, guess, row):
            continue
        if kind == FROM_LEVEL and row["topic_index"] == ids[5]:
            continue
        set_rest(data, pos, frame, timer, ids[3], row)
        if kind == FROM_TIMER and is_routed(text):
            kind = FROM_ROUTE
        if kind != FROM_TIMER:
            row["enqueue_ms"] = row["dequeue_ms"] = -1
        guess = np.int64(row["topic_index"])
        row["body_pos"], row["body_len"] = at, frame["body_len"]
        copy(into.staging, at, data, pos + frame["body_pos"], np.int64(frame["body_len"]))
        row["prop_pos"] = at = at + frame["body_len"]
        at = put_text(data, start, end, text, kind, drops, into.staging, at)
        row["prop_len"] = at - row["prop_pos"]
        into.is_malformed[i] = 0
    return at


@kernel
def outcome(rows: Rows, count: int, store_ms: Any, topic_index: Any) -> Any:
    """Note store time and topic of the leading rows that the store did not refuse.

    Args:
        store_ms, topic_index: (n,) i8, i4 out, n >= count.

    Returns (leading rows, rows that were refused for good).
    """
    done, illegal = count, 0
    for i in range(count):
        status = rows[i]["status"]
        if status > SKIPPED:
            done = min(done, i)
            illegal += status == MESSAGE_ILLEGAL
        store_ms[i], topic_index[i] = rows[i]["store_ms"], rows[i]["topic_index"]
    return done, illegal
