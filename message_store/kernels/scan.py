"""Compiled walk over log bytes: checks every record and returns its columns.

The module also contains readers for pulls and deliveries: copy records, decode queue units.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes, copy, crc32, get_i2, get_i4, get_i8
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import equals, find_tags_and_level
from message_store.kernels.topics import find_topic
from message_store.layout import (
    BLANK_BYTES,
    CRC_MASK,
    DAMAGE_BODY_CRC,
    IPV6_EXTRA_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_AT,
    RECORD_FIXED_BYTES,
    RECORD_HEAD_BYTES,
    SYS_BORN_IPV6,
    SYS_STORE_IPV6,
    TOPIC_BYTES_V1_MAX,
    UNIT_AT,
    UNIT_BYTES,
)
from message_store.queues.topic_table import TopicArrays

STOP_FULL = 0  # `out` is full, or the walk reached its end
STOP_BLANK = 1  # the rest of this file is blank: continue with the next file
STOP_INVALID = 2  # no valid record here

Rows = npt.NDArray[Any]


@kernel
def read_frame(data: Bytes, pos: int, end: int, log_offset: int, row: Any) -> int:
    """Fill the columns of `row` that need no property; return the record's size, or -1 - STOP_*."""
    if end - pos < BLANK_BYTES:
        return -1 - STOP_INVALID
    size = get_i4(data, pos + RECORD_AT.total_size)
    magic = get_i4(data, pos + RECORD_AT.magic)
    # CommitLog fills the end of a file with a blank record
    if magic == MAGIC_BLANK and size > 0:
        return -1 - STOP_BLANK
    wide = 1 if magic == MAGIC_V2 else 0  # the second byte of the topic's length
    fixed = RECORD_FIXED_BYTES + wide
    if (magic != MAGIC_V1 and wide == 0) or size < fixed or size > end - pos:
        return -1 - STOP_INVALID
    # an IPv6 host moves every field after it
    sys_flag = get_i4(data, pos + RECORD_AT.sys_flag)
    born_extra = IPV6_EXTRA_BYTES if sys_flag & SYS_BORN_IPV6 else 0
    extra = born_extra + (IPV6_EXTRA_BYTES if sys_flag & SYS_STORE_IPV6 else 0)
    # A record knows its own log offset, so bytes that were copied elsewhere are not valid.
    if size < fixed + extra or get_i8(data, pos + RECORD_AT.phys_offset) != log_offset:
        return -1 - STOP_INVALID
    # each length is checked against the record's size before it is used
    body_len = get_i4(data, pos + RECORD_AT.body_len + extra)
    if body_len < 0 or fixed + extra + body_len > size:
        return -1 - STOP_INVALID
    start = RECORD_HEAD_BYTES + extra + body_len
    topic_len = get_i2(data, pos + start) if wide else np.int64(data[pos + start])
    start += 1 + wide
    if (
        topic_len < 1
        or (wide == 0 and topic_len > TOPIC_BYTES_V1_MAX)
        or start + topic_len + 2 > size
    ):
        return -1 - STOP_INVALID
    prop_len = get_i2(data, pos + start + topic_len)
    # the parts fill the record exactly
    if prop_len < 0 or start + topic_len + 2 + prop_len != size:
        return -1 - STOP_INVALID
    row["phys_offset"] = log_offset
    row["record_size"] = size
    row["sys_flag"] = sys_flag
    row["queue_id"] = get_i4(data, pos + RECORD_AT.queue_id)
    row["queue_offset"] = get_i8(data, pos + RECORD_AT.queue_offset)
    row["store_ms"] = get_i8(data, pos + RECORD_AT.store_ms + born_extra)
    row["prepared_offset"] = get_i8(data, pos + RECORD_AT.prepared_offset + extra)
    row["body_pos"], row["body_len"] = RECORD_HEAD_BYTES + extra, body_len
    row["topic_pos"], row["topic_len"] = start, topic_len
    row["prop_pos"], row["prop_len"] = start + topic_len + 2, prop_len
    return size


@kernel
def walk(
    data: Bytes, pos: int, end: int, log_offset: int, arrays: TopicArrays, check: bool, out: Rows
) -> tuple[int, int, int]:
    """Read records from data[pos:end] into `out`; return (count, next pos, STOP_*).

    Args:
        log_offset: Log offset of data[pos].
        check: Compare the CRCs of bodies and mark damage.
    """
    n = 0
    while n < out.size and pos < end:
        row = out[n]
        size = read_frame(data, pos, end, log_offset, row)
        if size < 0:
            return n, pos, -1 - size
        row["damage"] = 0
        # as in CommitLog.checkMessageAndReturnSize, an empty body is not checked
        if check and row["body_len"] > 0:
            crc = crc32(data, pos + row["body_pos"], row["body_len"]) & CRC_MASK
            if crc != get_i4(data, pos + RECORD_AT.body_crc):
                row["damage"] = DAMAGE_BODY_CRC
        row["topic_index"] = find_topic(data, pos + row["topic_pos"], row["topic_len"], arrays)
        tags_hash, level = find_tags_and_level(data, pos + row["prop_pos"], row["prop_len"])
        row["tags_hash"], row["delay_level"] = tags_hash, level
        pos += size
        log_offset += size
        n += 1
    return n, pos, STOP_FULL


@kernel
def leading_inside(units: Rows, start: int, end: int) -> Any:
    """Return (number of leading units within start..end of the log, bytes of their records)."""
    total = np.int64(0)
    for i in range(units.size):
        pos, size = units[i]["phys_offset"], np.int64(units[i]["size"])
        # `pos > end - size` cannot overflow, unlike `pos + size > end`
        if size <= 0 or pos < start or pos > end - size:
            return i, total
        total += size
    return units.size, total


@kernel
def copy_records(
    data: Bytes, units: Rows, base: int, topic: Bytes, queue: Any, scratch: Rows, out: Bytes
) -> int:
    """Copy the records of `units` from data (data[0] is log offset `base`), end to end.

    Args:
        topic: Name of the queue's topic.
        queue: (queue id, queue offset of the unit with index 0, 1 if records must name both).
        scratch: (1,) SCANNED.

    Returns the number of copied records; it stops at a record that does not match its unit.
    """
    start, frame = np.int64(0), scratch[0]
    for i in range(units.size):
        unit = units[i]
        pos, size = unit["phys_offset"] - base, np.int64(unit["size"])
        # the unit's size is the limit: a record that is longer or shorter does not belong to it
        if read_frame(data, pos, pos + size, unit["phys_offset"], frame) != size:
            return i
        # A unit may point at a record of another queue after damage.
        if queue[2] != 0 and (
            frame["queue_id"] != queue[0]
            or frame["queue_offset"] != queue[1] + unit["index"]
            or not equals(data, pos + frame["topic_pos"], np.int64(frame["topic_len"]), topic)
        ):
            return i
        copy(out, start, data, pos, size)
        start += size
    return units.size


@kernel
def read_units(block: Bytes, out: Rows) -> int:
    """Decode consume queue units up to the first empty one (size <= 0); return their number."""
    for i in range(out.size):
        position = i * UNIT_BYTES
        size = get_i4(block, position + UNIT_AT.size)
        phys = get_i8(block, position + UNIT_AT.phys_offset)
        # the unwritten rest of a file is zero
        if size <= 0 or phys < 0:
            return i
        out[i]["phys_offset"] = phys
        out[i]["size"], out[i]["index"] = size, i
        out[i]["tags_code"] = get_i8(block, position + UNIT_AT.tags_code)
    return out.size


@kernel
def valid_units(block: Bytes, count: int) -> int:
    """Return the number of leading units of `block` that are valid."""
    for i in range(count):
        position = i * UNIT_BYTES
        if (
            get_i4(block, position + UNIT_AT.size) <= 0
            or get_i8(block, position + UNIT_AT.phys_offset) < 0
        ):
            return i
    return count


@kernel
def readable_units(
    units: Rows, log_min: int, blank_size: int, count_max: int, bytes_max: int
) -> int:
    """Return the number of leading units within limits; -1 if one of them is not a message.

    Args:
        units: (n,) layout.UNIT, n >= 1.
        log_min: Minimum log offset; earlier records were removed.
        blank_size: Size of padding units.
        count_max, bytes_max: Limits of one response; a single unit may exceed them.
    """
    total = np.int64(0)
    count = min(np.int64(units.size), np.int64(count_max))
    for i in range(count):
        unit = units[i]
        # removed records and padding: the general path finds the next offset
        if unit["phys_offset"] < log_min or unit["size"] == blank_size:
            return -1
        total += unit["size"]
        if total > bytes_max and i > 0:
            return i
    return count
