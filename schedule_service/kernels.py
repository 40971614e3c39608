"""Compiled loops of the level service.

redirect   put hook: redirects rows with a level to the schedule topic
track      dispatcher: reports new units of each level's queue, and decreases of due times
due_times  delivery: returns due times of units
count_due  delivery: counts the leading units that are due and fit into one batch
read_due   delivery: fills rows of a batch from the records of due units, without copying bodies
make_cancels   decisions: fills rows of a batch with the records that cancel messages
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.redirected import (
    CRC32,
    CRC32_ENTRY_BYTES,
    DUE_MS,
    NAME_GROWTH_MAX,
    QID_ILLEGAL,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    UNDERSCORE,
    D,
    R,
    T,
    find_target,
    has_queues,
    is_body_sound,
    set_message,
)
from delayed_delivery.kernels.texts import (
    DecisionOutput,
    put_bytes,
    put_entry,
    put_number_entry,
    target_values,
)
from message_store.kernels.bytes import Bytes
from message_store.kernels.index import KEYS_NAME, UNIQ_NAME
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_name, has_value, is_topic
from message_store.kernels.properties import MOVED_NAME, java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.layout import (
    DELAY_ILLEGAL,
    PROP_REAL_TOPIC,
    PROP_TIMER_OUT,
    PROP_TIMER_STALE,
    SYS_BORN_IPV6,
    SYS_COMMIT,
    SYS_STORE_IPV6,
    SYS_TRANSACTION_MASK,
    TIMER_NONE,
)
from message_store.queues.topic_table import QUEUES_MAX, TopicArrays

Rows = npt.NDArray[Any]
STALE_FLAGS = PROP_TIMER_OUT | PROP_REAL_TOPIC | PROP_TIMER_STALE

CANCELLED = np.frombuffer(b"DUEMQ_DECISION\x01cancelled\x02", np.uint8).copy()
CANCELLED_TOPIC = np.frombuffer(b"DUEMQ_TOPIC", np.uint8).copy()
CANCELLED_LEVEL = np.frombuffer(b"DUEMQ_LEVEL", np.uint8).copy()
CANCEL_ROOM = 96  # maximum bytes of a cancel's text that are not from its message

UNTOUCHED, CLAMPED, STRIPPED, ILLEGAL = 0, 1, 2, 4  # bits in the report of `redirect` for a row
NO_TEXT: Final = -1  # `read_properties`: the record must be read in Python

# Columns of the report of `track`.
ADDED_QUEUE, ADDED_FIRST, ADDED_DUE_MS, ADDED_END = range(4)
ADDED_COLUMNS: Final = 4
CUT_QUEUE, CUT_OFFSET, CUT_DUE_MS = range(3)
CUT_COLUMNS: Final = 3


class Source(NamedTuple):
    """Queue and topics that `read_due` reads from.

    Attributes:
        schedule, half: Topic indexes of the schedule and the half message topic.
        queue_id: Queue of the units.
        routed: 1 if topics without queues count as missing.
        first_offset: Queue offset of the unit with index 0.
        delay_ms: Delay of the level when the units were stored; -1 delivers units that are not due.
    """

    schedule: int
    half: int
    queue_id: int
    routed: int
    first_offset: int
    delay_ms: int


@kernel
def redirect(rows: Rows, count: int, schedule: int, half: int, delays_ms: Any, report: Any) -> int:
    """Redirect rows with a level to the schedule topic.

    Args:
        schedule, half: Topic indexes; rows that already go there stay.
        delays_ms: (levels + 1,) i8.
        report: (count,) u1 out: CLAMPED, STRIPPED or both of a redirected row, or ILLEGAL.

    Returns the number of rows with a report; the caller rewrites or refuses them.
    """
    unhandled = 0
    level_max = delays_ms.size - 1
    for i in range(count):
        report[i] = UNTOUCHED
        row = rows[i]
        level = np.int64(row["delay_level"])
        if level == 0 or row["status"] != 0:
            continue
        kind = row["sys_flag"] & SYS_TRANSACTION_MASK
        # The delay of a transaction counts from its commit: half and rollback records stay.
        if kind != 0 and kind != SYS_COMMIT:
            continue
        if level == DELAY_ILLEGAL:
            report[i] = ILLEGAL
            unhandled += 1
            continue
        # Apache delivers a negative level at once
        if level < 0 or row["topic_index"] == half:
            continue
        if level > level_max:  # as in Apache's broker: the highest level
            level = level_max
            report[i] |= CLAMPED
        if row["topic_index"] == schedule:  # a level message that is copied inside the store
            if row["due_delay_ms"] < 0:
                row["due_delay_ms"] = delays_ms[level]
            report[i] = UNTOUCHED
            continue
        # A level takes precedence over timer properties; the caller removes them.
        if row["timer_kind"] != TIMER_NONE or row["prop_flags"] & STALE_FLAGS:
            report[i] |= STRIPPED
        if report[i] != UNTOUCHED:
            unhandled += 1
        row["delay_level"] = level
        row["real_topic_index"], row["real_queue_id"] = row["topic_index"], row["queue_id"]
        # queue n - 1 has the messages of level n (ScheduleMessageService.delayLevel2QueueId)
        row["topic_index"], row["queue_id"] = schedule, level - 1
        # the encoder adds the store time: the sum is the code of the unit
        row["due_delay_ms"] = delays_ms[level]
    return unhandled


@kernel
def track(
    rows: Rows, count: int, schedule: int, last_due_ms: Any, row_of: Any, added: Any, cuts: Any
) -> Any:
    """Report the units that an appended batch added to the schedule queues.

    Args:
        last_due_ms: (queues,) i8 in and out: due time of each queue's newest unit.
        row_of: (queues,) i4, zeros before and after: one more than the queue's row in `added`.
        added: (queues, ADDED_COLUMNS) i8 out: queue, first offset, its due time, end.
        cuts: (n, CUT_COLUMNS) i8 out: queue, offset, due time of units due before the previous one.

    Returns (rows of `added`, cuts); cuts that do not fit into `cuts` are omitted.
    """
    queues, n_cuts = 0, 0
    for i in range(count):
        row = rows[i]
        if row["topic_index"] != schedule or row["status"] != 0:
            continue
        kind = row["sys_flag"] & SYS_TRANSACTION_MASK
        queue = np.int64(row["queue_id"])
        if (kind != 0 and kind != SYS_COMMIT) or queue >= last_due_ms.size:
            continue
        # the code of a unit of the schedule topic is its due time
        due = row["tags_code"]
        if row_of[queue] == 0:  # the queue's first unit in this batch
            added[queues, ADDED_QUEUE], added[queues, ADDED_DUE_MS] = queue, due
            added[queues, ADDED_FIRST] = row["queue_offset"]
            queues += 1
            row_of[queue] = queues
        added[row_of[queue] - 1, ADDED_END] = row["queue_offset"] + 1
        # Due times of a level decrease when its delay was shortened or the clock was set back.
        if due < last_due_ms[queue] and n_cuts < cuts.shape[0]:
            cuts[n_cuts, CUT_QUEUE], cuts[n_cuts, CUT_DUE_MS] = queue, due
            cuts[n_cuts, CUT_OFFSET] = row["queue_offset"]
            n_cuts += 1
        last_due_ms[queue] = due
    for i in range(queues):  # clear only the entries that were set: `row_of` is reused
        row_of[added[i, ADDED_QUEUE]] = 0
    return queues, n_cuts


@kernel
def read_properties(
    data: Bytes, pos: int, end: int, arrays: TopicArrays, guess: int, row: Any
) -> int:
    """Set topic, queue, tags hash and due time of `row` from a property text; return its end.

    The message does not get the CRC of the record's properties, nor the due time that the timers
    added before they returned it; each is the last entry. Returns NO_TEXT if a CRC is elsewhere, if
    REAL_TOPIC or REAL_QID is missing or invalid, or if the record has DELAy instead of DELAY.

    Args:
        guess: Topic index to try first, or -1.
    """
    topic, queue, tags, stop = np.int64(-1), np.int64(-1), np.int64(0), end
    row["due_ms"] = -1
    while pos < end:
        until = entry_end(data, pos, end)
        first = data[pos]  # most entries are none of these: compare one byte before whole names
        if first == T and has_value(data, pos, until, TAGS):
            tags = java_hash(data, pos + TAGS.size + 1, until)
        elif first == R and has_value(data, pos, until, REAL_TOPIC):
            start = pos + REAL_TOPIC.size + 1
            topic = find_target(data, start, until - start, arrays, guess)
        elif first == R and has_value(data, pos, until, REAL_QID):
            queue = parse_number(data, pos + REAL_QID.size + 1, until, QID_ILLEGAL)
        elif first == UNDERSCORE and has_name(data, pos, until, CRC32):
            if until + 1 != end or until + 1 - pos != CRC32_ENTRY_BYTES:
                return NO_TEXT
            stop = pos
        elif first == D and has_name(data, pos, until, DUE_MS):
            # the timers append it as the last entry; elsewhere it is the client's own text
            if until + 1 == end:
                row["due_ms"] = parse_number(data, pos + DUE_MS.size + 1, until, -1)
                stop = pos
        elif first == D and has_name(data, pos, until, MOVED_NAME):
            # DELAy must become DELAY again, which changes the text
            return NO_TEXT
        pos = until + 1
    # the reason for quarantine is found in Python
    if topic < 0 or queue < 0 or queue >= QUEUES_MAX:
        return NO_TEXT
    row["topic_index"], row["queue_id"], row["tags_hash"] = topic, queue, tags
    return stop


@kernel
def matches_unit(frame: Any, unit: Any, source: Source) -> bool:
    """Return whether a record matches its unit: queue and queue offset."""
    if frame["queue_id"] != source.queue_id:
        return False
    return np.int64(frame["queue_offset"]) == source.first_offset + unit["index"]


@kernel
def is_due_time(frame: Any, unit: Any, source: Source, due_ms: int) -> bool:
    """Return whether the due time of a unit is the one of its record.

    For other units, Python finds out whether the disk has changed the unit, or an Apache broker had
    other delays.

    Args:
        due_ms: DUEMQ_DUE_MS of a record that the timers returned, -1 without it.
    """
    if source.delay_ms < 0:
        return True
    # a copy keeps the due time of its source, whatever its own store time
    if frame["prepared_offset"] < 0:
        return due_ms < 0 or np.int64(unit["tags_code"]) == due_ms
    return np.int64(unit["tags_code"]) == frame["store_ms"] + source.delay_ms


@kernel
def read_due(
    data: Bytes, span: Any, units: Rows, arrays: TopicArrays, source: Any, scratch: Rows, rows: Rows
) -> int:
    """Fill rows from the records of `units`, up to the first record that Python must read.

    Args:
        data: Bytes of a log file: the staging buffer of the batch.
        span: (log offset of data[0], bytes of data that are written).
        source: `Source`.
        scratch: (1,) layout.SCANNED.
        rows: (n,) layout.PUT out, n >= units.size.

    Returns the number of leading units that have a row.
    """
    for i in range(units.size):
        unit, row, frame = units[i], rows[i], scratch[0]
        # A damaged unit may point anywhere: no byte outside the written part is read.
        pos = np.int64(unit["phys_offset"] - span[0])
        if pos < 0 or pos + unit["size"] > span[1] or unit["size"] + NAME_GROWTH_MAX > data.size:
            return i
        size = read_frame(data, pos, pos + unit["size"], unit["phys_offset"], frame)
        if size != unit["size"] or not matches_unit(frame, unit, source):
            return i
        if not is_topic(
            data, pos + frame["topic_pos"], frame["topic_len"], arrays, source.schedule
        ):
            return i
        if not is_body_sound(data, pos, frame):
            return i
        prop_pos = pos + frame["prop_pos"]
        prop_end = prop_pos + frame["prop_len"]
        # messages of one producer follow each other: try the topic of the previous row first
        guess = np.int64(rows[i - 1]["topic_index"]) if i else np.int64(-1)
        end = read_properties(data, prop_pos, prop_end, arrays, guess, row)
        # a delivery into an internal topic would be delayed or hidden again
        if end < 0 or row["topic_index"] == source.schedule or row["topic_index"] == source.half:
            return i
        # a unit that the disk has changed may be due too early
        if not is_due_time(frame, unit, source, row["due_ms"]):
            return i
        if source.routed != 0 and not has_queues(arrays, row["topic_index"]):
            return i
        # body and properties stay in the mapped file, which is the staging buffer of the batch
        row["body_pos"], row["body_len"] = pos + frame["body_pos"], frame["body_len"]
        row["prop_pos"], row["prop_len"] = prop_pos, end - prop_pos
        set_message(data, pos, frame, unit["phys_offset"], row)
    return units.size


@kernel
def due_times(units: Rows, hash_max: int, out: Any) -> int:
    """Set out (n,) i8 to the tags codes of units, which are due times.

    Returns the number of codes that are hashes of tags: -hash_max..hash_max - 1.
    """
    hashes = 0
    for i in range(units.size):
        due = units[i]["tags_code"]
        out[i] = due
        # hashes of tags have 32 bits, times in ms more: such a unit was not written as a due time
        if -hash_max <= due < hash_max:
            hashes += 1
    return hashes


@kernel
def count_due(units: Rows, due_ms: Any, now_ms: int, bytes_max: int) -> int:
    """Return the number of leading units that are due and fit into one batch.

    Args:
        due_ms: (n,) i8, n = units.size; units after one that is not due are not counted.
        bytes_max: Maximum bytes of the batch; a larger unit is delivered alone.
    """
    total = np.int64(0)
    for i in range(units.size):
        total += units[i]["size"]
        # The first unit is delivered even if it alone exceeds `bytes_max`.
        if due_ms[i] > now_ms or (total > bytes_max and i > 0):
            return i
    return units.size


class CancelContext(NamedTuple):
    """Values that are equal for all records of a call of `make_cancels`."""

    topic_index: int  # of the topic of decisions
    now_ms: int
    body_pos: int  # position of the records' body in the staging buffer: one byte


@kernel
def make_cancels(
    data: Bytes,
    span: Any,
    order: Any,
    offsets: Any,
    context: CancelContext,
    frames: Rows,
    output: DecisionOutput,
) -> None:
    """Make row i the record that cancels the message at offsets[i], for those in `order`.

    Readable twin: `naive_cancel` in the tests.

    Args:
        data: Bytes of a log file.
        span: (log offset of data[0], bytes of data that are written).
        order: (m,) i8: indexes of offsets in this file.
        offsets: (n,) i8: log offsets of level messages.
        frames: (1,) message_store.layout.SCANNED, scratch.
        output: Its rows keep their status where a record is damaged.
    """
    frame = frames[0]
    for i in order:
        row, pos = output.rows[i], np.int64(offsets[i] - span[0])
        if pos < 0 or pos >= span[1]:
            continue
        if read_frame(data, pos, span[1], offsets[i], frame) < 0:
            continue
        if not is_body_sound(data, pos, frame):
            continue
        set_message(data, pos, frame, offsets[i], row)
        # the broker's own record: nothing of the message but its hosts
        row["topic_index"], row["queue_id"] = context.topic_index, 0
        row["sys_flag"] &= SYS_BORN_IPV6 | SYS_STORE_IPV6
        row["flag"] = row["reconsume_times"] = row["tags_hash"] = 0
        row["born_ms"] = context.now_ms
        row["body_pos"], row["body_len"] = context.body_pos, 1
        start = pos + frame["prop_pos"]
        topic, _, unique, keys = target_values(data, start, start + frame["prop_len"])
        row["prop_pos"] = output.free_pos[0]
        # a lookup finds the cancel by the keys of the message
        if unique[0] < unique[1]:
            put_entry(output, UNIQ_NAME, data, unique[0], unique[1])
        if keys[0] < keys[1]:
            put_entry(output, KEYS_NAME, data, keys[0], keys[1])
        put_bytes(output, CANCELLED, 0, CANCELLED.size)
        put_entry(output, CANCELLED_TOPIC, data, topic[0], topic[1])
        put_number_entry(output, CANCELLED_LEVEL, frame["queue_id"] + 1)
        row["prop_len"] = output.free_pos[0] - row["prop_pos"]
