"""Hashes that identify a record and its copies by an Apache broker.

An Apache broker that rolls or delivers a timer writes a new record, which does not name the source
record. Both have the same topic, queue, key, TIMER_OUT_MS, birth and body: the hash of these is the
identity. The hash of topic+key and TIMER_OUT_MS, by which a marker names its target, is the name.

The wheel's copies have TIMER_ROLL_TIMES, or, delivered, TIMER_DEQUEUE_MS. The copies of the
timeline in RocksDB (5.4) have TIMER_ROLL_LABEL, or, delivered, neither REAL_TOPIC nor REAL_QID.

A level message that timers own has no TIMER_OUT_MS, but DELAy, also in copies that Apache's wheel
or its level service delivers. In its identity, the number of its retries replaces TIMER_OUT_MS: a
message that is sent back again and again has the same key, birth and body each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from delayed_delivery.kernels.redirected import DEQUEUE_MS, REAL_QID, REAL_TOPIC
from message_store.kernels.bytes import Bytes, get_i4, get_i8
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import MOVED_NAME, TAGS_NAME, equals, find_value, parse_number
from message_store.kernels.scan import read_frame
from message_store.layout import RECORD_AT
from timer_store.kernels.due_time import MARKER, OUT, ROLLS
from timer_store.layout import Rows

FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
FNV_END = np.uint64(256)  # not a byte value: words with different boundaries get different hashes
KEY = np.frombuffer(b"UNIQ_KEY", np.uint8).copy()
ROLL_LABEL = np.frombuffer(b"TIMER_ROLL_LABEL", np.uint8).copy()
RECALL_TAG = np.frombuffer(b"_RECALL_TAG_", np.uint8).copy()
PLUS = np.uint64(ord("+"))
ROLLS_MAX = (1 << 31) - 1
NO_TIME = -1
ALL, DELIVERED, SPECIAL = 0, 1, 2  # records of interest; see `identify`


@kernel
def mix_bytes(start: int, data: Bytes, pos: int, end: int) -> int:
    """Return an FNV-1a hash with some bytes added."""
    h = np.uint64(start)
    for i in range(pos, end):
        h = (h ^ np.uint64(data[i])) * FNV_PRIME
    return h


@kernel
def mix_word(start: int, data: Bytes, pos: int, end: int) -> int:
    """Return an FNV-1a hash with some bytes and an end mark added."""
    return (mix_bytes(start, data, pos, end) ^ FNV_END) * FNV_PRIME


@kernel
def mix_number(start: int, number: int) -> int:
    """Return an FNV-1a hash with the eight bytes of a number added."""
    h, value = np.uint64(start), np.uint64(number)
    for i in range(8):
        h = (h ^ ((value >> np.uint64(8 * i)) & np.uint64(255))) * FNV_PRIME
    return h


@kernel
def mix_decimal(start: int, number: int) -> int:
    """Return an FNV-1a hash with the decimal digits of a number from 0 on, and an end mark."""
    h, scale = np.uint64(start), np.int64(1)
    while number // scale >= 10:
        scale *= 10
    while scale > 0:
        h = (h ^ np.uint64(ord("0") + number // scale % 10)) * FNV_PRIME
        scale //= 10
    return (h ^ FNV_END) * FNV_PRIME


@kernel
def identity_of(data: Bytes, pos: int, frame: Any, out_ms: int, delivered: bool) -> int:
    """Return the identity of the record at data[pos], 0 if it has no real topic.

    Args:
        delivered: The topic and queue of the record count: it is a copy of a timer only there.
    """
    text, size = pos + frame["prop_pos"], frame["prop_len"]
    first, end = find_value(data, text, size, REAL_TOPIC)
    if delivered:
        # a delivered copy is in the real topic itself
        first = pos + frame["topic_pos"]
        h = mix_word(FNV_START, data, first, first + frame["topic_len"])
        h = mix_decimal(h, np.int64(frame["queue_id"]))
    elif end > 0:
        h = mix_word(FNV_START, data, first, end)
        first, end = find_value(data, text, size, REAL_QID)
        h = mix_word(h, data, first, end)
    else:
        return np.int64(0)
    first, end = find_value(data, text, size, KEY)
    h = mix_word(h, data, first, end)
    # equal messages with different due times are different timers
    h = mix_number(h, out_ms)
    # birth and body distinguish messages that have no key
    h = mix_number(h, get_i8(data, pos + RECORD_AT.born_ms))
    h = mix_number(h, get_i4(data, pos + RECORD_AT.body_crc))
    return np.int64(mix_number(h, frame["body_len"]))


@kernel
def recalls_by_key(data: Bytes, text: int, size: int, first: int, end: int) -> bool:
    """Return whether data[first:end], the value of a marker, is the key of its target alone.

    A recall of Apache 5.5 has this form, unless appendTopicForTimerDeleteKey is set.
    Source: RecallMessageProcessor
    """
    tag, tag_end = find_value(data, text, size, TAGS_NAME)
    if tag_end - tag != RECALL_TAG.size or not equals(data, tag, tag_end - tag, RECALL_TAG):
        return False
    key, key_end = find_value(data, text, size, KEY)
    # the value of the marker must be exactly the key of the marker's own record
    if key_end - key != end - first:
        return False
    for i in range(end - first):
        if data[key + i] != data[first + i]:
            return False
    return True


@kernel
def set_name(data: Bytes, text: int, size: int, row: Any) -> None:
    """Set `name` and `marker` of a row. Source: TimerMessageStore.buildDeleteKey"""
    first, end = find_value(data, text, size, MARKER)
    row["marker"] = end > 0
    h = FNV_START
    if end > 0 and not recalls_by_key(data, text, size, first, end):
        # a marker: its value is the name of its target
        h = mix_bytes(h, data, first, end)
    else:  # topic+key, as a marker of 5.3.3 would write it
        first, end = find_value(data, text, size, REAL_TOPIC)
        h = mix_bytes(h, data, first, end)
        h = (h ^ PLUS) * FNV_PRIME
        first, end = find_value(data, text, size, KEY)
        h = mix_bytes(h, data, first, end)
    # without a key nothing can name the record
    row["name"] = np.int64(mix_number(h, row["out_ms"])) if end > 0 else np.int64(0)


@kernel
def count_rolls(data: Bytes, text: int, size: int) -> int:
    """Return TIMER_ROLL_TIMES; 1 for a record with TIMER_ROLL_LABEL, which is not counted."""
    first, end = find_value(data, text, size, ROLLS)
    rolls = min(max(parse_number(data, first, end, 0), 0), ROLLS_MAX)
    if rolls == 0 and find_value(data, text, size, ROLL_LABEL)[1] > 0:
        return np.int64(1)
    return np.int64(rolls)


@kernel
def out_time(data: Bytes, pos: int, frame: Any) -> int:
    """Return TIMER_OUT_MS; -2 - retries for a level message that timers own; NO_TIME if neither."""
    text, size = pos + frame["prop_pos"], frame["prop_len"]
    first, end = find_value(data, text, size, OUT)
    # the numbers below NO_TIME are free: no TIMER_OUT_MS is negative
    if end == 0 and find_value(data, text, size, MOVED_NAME)[1] > 0:
        retries = get_i4(data, pos + RECORD_AT.reconsume_times)
        return np.int64(-2 - max(retries, 0))
    return np.int64(max(parse_number(data, first, end, NO_TIME), NO_TIME))


@kernel
def is_selected(data: Bytes, text: int, size: int, selection: int) -> bool:
    """Return whether properties are those of a record of interest."""
    if selection == DELIVERED:
        for name in (DEQUEUE_MS, MOVED_NAME):
            if find_value(data, text, size, name)[1] > 0:
                return True
        # the timeline of 5.4 removes it from what it delivers
        return find_value(data, text, size, REAL_TOPIC)[1] == 0
    if selection == SPECIAL:
        is_marker = find_value(data, text, size, MARKER)[1] > 0
        return is_marker or count_rolls(data, text, size) > 0
    return True


@kernel
def identify(data: Bytes, span: Any, offsets: Any, selection: int, frames: Rows, out: Rows) -> int:
    """Make a row of each record at `offsets` that has an `out_time`; return the number of rows.

    Args:
        data: the bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        offsets: (n,) i8: log offsets of records in this file.
        selection: ALL; DELIVERED: copies that were delivered, with TIMER_DEQUEUE_MS or DELAy, or
            without REAL_TOPIC; SPECIAL: markers and rolled copies.
        frames: (1,) message_store.layout.SCANNED, scratch.
        out: (n,) layout.IDENTIFIED.
    """
    n, frame = 0, frames[0]
    for i in range(offsets.size):
        pos = np.int64(offsets[i] - span[0])
        if pos < 0 or pos >= span[1] or read_frame(data, pos, span[1], offsets[i], frame) < 0:
            continue
        text, size = pos + frame["prop_pos"], frame["prop_len"]
        if not is_selected(data, text, size, selection):
            continue
        out_ms = out_time(data, pos, frame)
        if out_ms == NO_TIME:
            continue
        row = out[n]
        row["phys_offset"], row["out_ms"] = offsets[i], out_ms
        row["identity"] = identity_of(data, pos, frame, out_ms, selection == DELIVERED)
        set_name(data, text, size, row)
        if row["marker"] != 0 and frame["prepared_offset"] < 0:
            row["name"] = 0  # a marker of DueMQ's: its origin has settled the timer already
        row["rolls"] = count_rolls(data, text, size)
        n += row["identity"] != 0  # a row without one is overwritten by the next
    return n
