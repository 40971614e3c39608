"""Compiled checks of `message_store.verify`: record boundaries, units and keys.

Every offset is checked against the bounds of its file before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes, get_i4, get_i8
from message_store.kernels.index import positive_hash, record_keys
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8
from message_store.kernels.names import find_byte
from message_store.kernels.properties import TAGS_NAME, equals, find_tags_and_level, java_hash_on
from message_store.kernels.scan import read_frame
from message_store.layout import (
    ENTRY_END,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    ITEM_AT,
    ITEM_BYTES,
    NAME_END,
    RECORD_AT,
    RECORD_FIXED_BYTES,
)

Rows = npt.NDArray[Any]
Codes = npt.NDArray[np.uint8]

ELSEWHERE = 255  # initial value of a code: the offset is in another file
MAGIC_BYTES = (0xDA, 0xA3, 0x20)  # first bytes of MAGIC_V1 and MAGIC_V2
SECOND_MS = 1_000  # an index item has whole seconds
GOOD, NO_RECORD, WRONG_SIZE, WRONG_TOPIC, WRONG_QUEUE, WRONG_NUMBER, WRONG_CODE = range(7)
NO_KEY, WRONG_TIME = 7, 8
TAG_PART = np.frombuffer(b"#T#", np.uint8).copy()  # between topic and tag in keys of Apache 5.5
EXTENDED_CODE_MAX = -2_147_483_649  # at most this: an address in ConsumeQueueExt


@kernel
def find_record(data: Bytes, pos: int, end: int, log_offset: int, row: Any) -> int:
    """Return the start of the next valid record from data[pos] on, -1 without one.

    `log_offset` is the log offset of data[0]; a record must have its own log offset.
    """
    while pos + RECORD_FIXED_BYTES <= end:
        if load_u8(data, np.int64(pos + RECORD_AT.magic)) == 0:  # eight starts without a magic
            pos += 8
            continue
        start = pos + RECORD_AT.magic
        # two bytes first: the whole frame is read only where they match
        magic = data[start] == MAGIC_BYTES[0] and data[start + 1] == MAGIC_BYTES[1]
        if (
            magic
            and data[start + 2] == MAGIC_BYTES[2]
            and read_frame(data, pos, end, log_offset + pos, row) > 0
        ):
            return pos
        pos += 1
    return -1


@kernel
def check_units(
    units: Rows, data: Bytes, span: Any, topic: Bytes, queue: Any, scratch: Rows, out: Codes
) -> None:
    """Compare units whose record lies in span with that record.

    Args:
        units: (n,) UNIT.
        data: Bytes of the log file.
        span: (log offset of data[0], end of its records).
        topic: Name of the topic.
        queue: (queue id, queue offset of units[0], 1 if codes are due times).
        scratch: (1,) SCANNED.
        out: (n,) in and out: code of each unit, ELSEWHERE before.
    """
    for i in range(units.size):
        phys = units[i]["phys_offset"]
        if span[0] <= phys < span[1]:
            out[i] = check_unit(units[i], queue[1] + i, data, span, topic, queue, scratch[0])


@kernel
def check_unit(
    unit: Any, number: int, data: Bytes, span: Any, topic: Bytes, queue: Any, row: Any
) -> int:
    """Return the code of a unit, after a comparison with its record."""
    phys = unit["phys_offset"]
    pos = phys - span[0]
    size = read_frame(data, pos, span[1] - span[0], phys, row)
    if size < 0:
        return NO_RECORD
    if size != unit["size"]:
        return WRONG_SIZE
    if not equals(data, pos + row["topic_pos"], np.int64(row["topic_len"]), topic):
        return WRONG_TOPIC
    if row["queue_id"] != queue[0]:
        return WRONG_QUEUE
    if row["queue_offset"] != number:
        return WRONG_NUMBER
    code = unit["tags_code"]
    tags_hash, level = find_tags_and_level(data, pos + row["prop_pos"], np.int64(row["prop_len"]))
    # the code may be a due time instead of the hash of a tag
    is_due = queue[2] != 0 and level > 0
    # the rule of the due time is not known here, but no message is due before it is stored
    good = code >= row["store_ms"] if is_due else code == tags_hash
    good = good or (is_due and row["prepared_offset"] < 0)  # a copy may be due already
    # Apache may keep a filter's bits elsewhere and store their address in the unit
    return GOOD if good or code <= EXTENDED_CODE_MAX else WRONG_CODE


@kernel
def tag_key(data: Bytes, pos: int, row: Any) -> int:
    """Return the hash by which Apache 5.5 indexes the tag of the record at `pos`; -1: no tag."""
    topic = pos + np.int64(row["topic_pos"])
    # the key is topic + "#T#" + tag
    key = java_hash_on(0, data, topic, topic + row["topic_len"])
    key = java_hash_on(key, TAG_PART, 0, TAG_PART.size)
    start = pos + np.int64(row["prop_pos"])
    end = start + np.int64(row["prop_len"])
    while start < end:
        entry_end = find_byte(data, start, end, ENTRY_END)
        name_end = find_byte(data, start, entry_end, NAME_END)
        if name_end + 1 < entry_end and equals(data, start, name_end - start, TAGS_NAME):
            return positive_hash(java_hash_on(key, data, name_end + 1, entry_end))
        start = entry_end + 1
    return -1


@kernel
def check_items(items: Rows, data: Bytes, span: Any, scratch: Rows, keys: Rows, out: Codes) -> None:
    """Compare index items whose record lies in span with keys and tag of that record.

    Args:
        items: (n,) KEYED; store_ms is the time in the item, in whole seconds.
        data, span, scratch, out: See `check_units`.
        keys: Scratch for the keys of one record.
    """
    row = scratch[0]
    for i in range(items.size):
        phys = items[i]["phys_offset"]
        if not span[0] <= phys < span[1]:
            continue
        if read_frame(data, phys - span[0], span[1] - span[0], phys, row) < 0:
            out[i] = NO_RECORD
            continue
        count = record_keys(data, phys - span[0], row, keys, 0)
        is_tag = items[i]["key_hash"] == tag_key(data, phys - span[0], row)
        # Apache 5.5 also indexes tags
        out[i] = GOOD if is_tag else NO_KEY
        for k in range(count):
            if keys[k]["key_hash"] == items[i]["key_hash"]:
                out[i] = GOOD
        late = row["store_ms"] - items[i]["store_ms"]
        # After the clock was set back, new items have the start time of their file.
        before = late < 0 and items[i]["at_begin"] != 0
        if out[i] == GOOD and not (0 <= late < SECOND_MS or before):
            out[i] = WRONG_TIME


@kernel
def mark_chains(file: Bytes, slot_count: int, item_count: int, reached: Codes) -> int:
    """Set `reached` to 1 for every item that a query for its hash finds; return the used slots.

    Args:
        file: (n,) u1: bytes of an index file.
        reached: (item_count,) zeros.
    """
    items = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES
    used = 0
    for slot in range(slot_count):
        index = get_i4(file, INDEX_HEADER_BYTES + slot * INDEX_SLOT_BYTES)
        used += 1 if index > 0 else 0
        while 0 < index < item_count:
            position = items + index * ITEM_BYTES
            key_hash = get_i4(file, position + ITEM_AT.key_hash)
            # A query follows the chain only as long as items belong to its slot.
            if key_hash < 0 or key_hash % slot_count != slot:
                break
            reached[index] = 1
            previous = get_i4(file, position + ITEM_AT.prev_index)
            # a chain leads to older items only; without this check damage could make a loop
            if previous >= index:
                break
            index = previous
    return used


@kernel
def read_items(file: Bytes, slot_count: int, first: int, begin_ms: int, out: Rows) -> None:
    """Fill (n,) KEYED from the items first, first + 1, ... of an index file."""
    position = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES + first * ITEM_BYTES
    for i in range(out.size):
        out[i]["key_hash"] = get_i4(file, position + ITEM_AT.key_hash)
        out[i]["phys_offset"] = get_i8(file, position + ITEM_AT.phys_offset)
        out[i]["store_ms"] = begin_ms + get_i4(file, position + ITEM_AT.time_diff_s) * SECOND_MS
        position += ITEM_BYTES
