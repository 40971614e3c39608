"""Compiled loops of the level service.

redirect   put hook: rows with a level go to the schedule topic
track      after an append: what joined which level's queue, and where due times decrease
due_times  deliver: when units are due, and how many leading ones may leave
read_due   deliver: records of due units become rows of a batch, without a copy
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from delivery.kernels.redirected import (
    CRC32,
    CRC32_ENTRY_BYTES,
    NAME_GROWTH_MAX,
    QID_ILLEGAL,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    read_hosts,
    set_plain,
)
from message_store.kernels.bytes import Bytes, crc32, get_i4, get_i8
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, is_named, is_topic
from message_store.kernels.properties import java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic
from message_store.layout import (
    DELAY_ILLEGAL,
    PROP_REAL_TOPIC,
    PROP_TIMER_OUT,
    PROP_TIMER_STALE,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
    TIMER_NONE,
)
from message_store.queues.topic_table import QUEUES_MAX, TopicArrays

Rows = npt.NDArray[Any]
DUE_NAME = np.frombuffer(b"DUEMQ_DUE_MS", np.uint8).copy()
MOVED_NAME = np.frombuffer(b"DELAy", np.uint8).copy()
STALE_FLAGS = PROP_TIMER_OUT | PROP_REAL_TOPIC | PROP_TIMER_STALE

UNTOUCHED, CLAMPED, STRIPPED, ILLEGAL = 0, 1, 2, 4  # bits that redirect reports of a row


@kernel
def redirect(rows: Rows, count: int, schedule: int, half: int, delays_ms: Any, report: Any) -> int:
    """Send rows with a level to the schedule topic; return how many need a look by Python.

    Args:
        schedule, half: topic indexes; rows that already go there stay.
        delays_ms: (levels + 1,) i8.
        report: (count,) u1 out: CLAMPED, STRIPPED or both of a redirected row, or ILLEGAL.
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
        if kind != 0 and kind != SYS_COMMIT:
            continue
        if level == DELAY_ILLEGAL:
            report[i] = ILLEGAL
            unhandled += 1
            continue
        if level < 0 or row["topic_index"] == half:
            continue
        if level > level_max:
            level = level_max
            report[i] |= CLAMPED
        if row["topic_index"] == schedule:
            if row["due_delay_ms"] < 0:
                row["due_delay_ms"] = delays_ms[level]
            report[i] = UNTOUCHED
            continue
        if row["timer_kind"] != TIMER_NONE or row["prop_flags"] & STALE_FLAGS:
            report[i] |= STRIPPED
        if report[i] != UNTOUCHED:
            unhandled += 1
        row["delay_level"] = level
        row["real_topic_index"], row["real_queue_id"] = row["topic_index"], row["queue_id"]
        row["topic_index"], row["queue_id"] = schedule, level - 1
        row["due_delay_ms"] = delays_ms[level]
    return unhandled


@kernel
def track(
    rows: Rows, count: int, schedule: int, last_due_ms: Any, place: Any, added: Any, cuts: Any
) -> Any:
    """Note what an appended batch added to the schedule queues.

    Args:
        last_due_ms: (queues,) i8: due time of each queue's newest unit; kept up to date.
        place: (queues,) i4, zeros before and after: one more than the queue's row in `added`.
        added: (queues, 4) i8 out: queue, first offset, its due time, end.
        cuts: (n, 3) i8 out: queue, offset, due time of units due before the one in front.

    Returns (rows of `added`, cuts); cuts that do not fit into `cuts` are left out.
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
        due = row["tags_code"]
        if place[queue] == 0:
            added[queues, 0], added[queues, 1], added[queues, 2] = queue, row["queue_offset"], due
            queues += 1
            place[queue] = queues
        added[place[queue] - 1, 3] = row["queue_offset"] + 1
        if due < last_due_ms[queue] and n_cuts < cuts.shape[0]:
            cuts[n_cuts, 0], cuts[n_cuts, 1], cuts[n_cuts, 2] = queue, row["queue_offset"], due
            n_cuts += 1
        last_due_ms[queue] = due
    for i in range(queues):
        place[added[i, 0]] = 0
    return queues, n_cuts


@kernel
def read_properties(
    data: Bytes, pos: int, end: int, arrays: TopicArrays, guess: int, row: Any
) -> int:
    """Set topic, queue and tags hash of `row` from a property text; return its end.

    `guess` is a topic index to be tried first, or -1.

    The end leaves a property CRC out, which belongs to the record it was made for, and the due time
    of a message that came back from the timers. Returns -1 if REAL_TOPIC or REAL_QID is missing or
    cannot be used, or if DELAY is called DELAy.
    """
    topic, queue, tags, stop = np.int64(-1), np.int64(-1), np.int64(0), end
    while pos < end:
        until = entry_end(data, pos, end)
        size = until - pos
        if size > 5 and data[pos + 4] == 1 and is_named(data, pos, TAGS):
            tags = java_hash(data, pos + 5, until)
        elif size > 11 and data[pos + 10] == 1 and is_named(data, pos, REAL_TOPIC):
            topic = guess
            if not is_topic(data, pos + 11, size - 11, arrays, guess):
                topic = find_topic(data, pos + 11, size - 11, arrays)
        elif size > 9 and data[pos + 8] == 1 and is_named(data, pos, REAL_QID):
            queue = parse_number(data, pos + 9, until, QID_ILLEGAL)
        elif size > 8 and data[pos + 8] == 1 and is_named(data, pos, CRC32):
            if until + 1 != end or size + 1 != CRC32_ENTRY_BYTES:
                return -1
            stop = pos
        elif size > 12 and data[pos + 12] == 1 and is_named(data, pos, DUE_NAME):
            stop = pos if until + 1 == end else stop
        elif size > 5 and data[pos + 5] == 1 and is_named(data, pos, MOVED_NAME):
            return -1
        pos = until + 1
    if topic < 0 or queue < 0 or queue >= QUEUES_MAX:
        return -1
    row["topic_index"], row["queue_id"], row["tags_hash"] = topic, queue, tags
    return stop


@kernel
def read_due(
    data: Bytes, span: Any, units: Rows, arrays: TopicArrays, ids: Any, scratch: Rows, rows: Rows
) -> int:
    """Make rows of the records of `units`; stop at the first that must go the plain way.

    Args:
        data: a log file's bytes, the staging buffer of the batch to be.
        span: (log offset of data[0], bytes of data that are written).
        ids: (4,) i8: topic indexes of schedule and half topic; the queue id the units came
            from; 1 if topics without queues count as missing.
        scratch: (1,) layout.SCANNED.
        rows: (n,) layout.PUT, n >= units.size.

    Returns how many leading units have their row.
    """
    for i in range(units.size):
        unit, row, frame = units[i], rows[i], scratch[0]
        pos = np.int64(unit["phys_offset"] - span[0])
        if pos < 0 or pos + unit["size"] > span[1] or unit["size"] + NAME_GROWTH_MAX > data.size:
            return i
        size = read_frame(data, pos, pos + unit["size"], unit["phys_offset"], frame)
        if size != unit["size"] or frame["queue_id"] != ids[2]:
            return i
        if not is_topic(data, pos + frame["topic_pos"], frame["topic_len"], arrays, ids[0]):
            return i
        body_pos, body_len = pos + frame["body_pos"], np.int64(frame["body_len"])
        if crc32(data, body_pos, body_len) & 0x7FFFFFFF != get_i4(data, pos + 8) and body_len > 0:
            return i
        prop_pos = pos + frame["prop_pos"]
        prop_end = prop_pos + frame["prop_len"]
        guess = np.int64(rows[i - 1]["topic_index"]) if i else np.int64(-1)
        end = read_properties(data, prop_pos, prop_end, arrays, guess, row)
        if end < 0 or row["topic_index"] == ids[0] or row["topic_index"] == ids[1]:
            return i
        topic = arrays.topics[row["topic_index"]]
        if ids[3] != 0 and topic["write_queues"] == 0 and topic["read_queues"] == 0:
            return i
        row["body_pos"], row["body_len"] = body_pos, body_len
        row["prop_pos"], row["prop_len"] = prop_pos, end - prop_pos
        row["real_topic_index"], row["real_queue_id"] = -1, 0
        row["flag"], row["sys_flag"] = get_i4(data, pos + 16), frame["sys_flag"]
        row["born_ms"] = get_i8(data, pos + 40)
        after = read_hosts(data, pos + 48, frame["sys_flag"], row)
        row["reconsume_times"] = get_i4(data, after)
        row["prepared_offset"] = -(unit["phys_offset"] + 1)
        set_plain(row)
    return units.size


@kernel
def due_times(units: Rows, hash_max: int, out: Any) -> int:
    """Set out (n,) i8 to the due times of units; return how many cannot be a time.

    These lie in -hash_max..hash_max - 1: they are hashes of tags.
    """
    unhandled = 0
    for i in range(units.size):
        due = units[i]["tags_code"]
        out[i] = due
        if -hash_max <= due < hash_max:
            unhandled += 1
    return unhandled


@kernel
def leaving(units: Rows, due_ms: Any, now_ms: int, bytes_max: int) -> int:
    """Return how many leading units may leave: each due, none before its elders, all in one piece.

    Args:
        due_ms: (n,) i8, n = units.size; they may decrease.
        bytes_max: of the piece; a unit that is bigger leaves alone.
    """
    total = np.int64(0)
    for i in range(units.size):
        total += units[i]["size"]
        if due_ms[i] > now_ms or (total > bytes_max and i > 0):
            return i
    return units.size


@kernel
def leading_stored(rows: Rows, count: int) -> int:
    """Return how many leading rows have status 0."""
    for i in range(count):
        if rows[i]["status"] != 0:
            return i
    return count
