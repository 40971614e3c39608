"""Compiled encoder of a batch: writes log records and units of consume queues.

prepare       finds the queue slot and the record size of each row; refuses rows that are too long
encode        numbers rows and writes their records, up to the end of the file
group_units   writes the units of the records, grouped by queue
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import (
    Bytes,
    copy,
    crc32,
    digits_len,
    put_digits,
    put_i2,
    put_i4,
    put_i8,
)
from message_store.kernels.kernel import kernel
from message_store.layout import (
    BLANK_BYTES,
    CRC_MASK,
    ENTRY_END,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_AT,
    RECORD_FIXED_BYTES,
    RECORD_HEAD_BYTES,
    SYS_BORN_IPV6,
    SYS_COMMIT,
    SYS_STORE_IPV6,
    SYS_TRANSACTION_MASK,
    TAGS_DUE,
    TOPIC_BYTES_V1_MAX,
    UNIT_AT,
    UNIT_BYTES,
)
from message_store.queues.topic_table import TopicArrays

Rows = npt.NDArray[Any]
MESSAGE_ILLEGAL = 13
PROPERTY_BYTES_MAX = 32_767
BLOCK_SLOT, BLOCK_FIRST, BLOCK_OFFSET, BLOCK_END = range(4)  # columns of `group_units`' blocks
NOT_SET = -1  # in BLOCK_OFFSET of a block without units yet
IPV4_BYTES, IPV6_BYTES, PORT_BYTES = 4, 16, 4
TIME_BYTES, LENGTH_BYTES = 8, 2
TAIL_AT = RECORD_AT.reconsume_times  # first field after both hosts
PREPARED_OFFSET_AT = RECORD_AT.prepared_offset - TAIL_AT
BODY_LEN_AT = RECORD_AT.body_len - TAIL_AT
BODY_AT = RECORD_HEAD_BYTES - TAIL_AT
OUT_NAME = np.frombuffer(b"TIMER_OUT_MS\x01", np.uint8).copy()
DUE_NAME = np.frombuffer(b"DUEMQ_DUE_MS\x01", np.uint8).copy()
ENQUEUE_NAME = np.frombuffer(b"TIMER_ENQUEUE_MS\x01", np.uint8).copy()
DEQUEUE_NAME = np.frombuffer(b"TIMER_DEQUEUE_MS\x01", np.uint8).copy()
REAL_TOPIC_NAME = np.frombuffer(b"REAL_TOPIC\x01", np.uint8).copy()
REAL_QID_NAME = np.frombuffer(b"REAL_QID\x01", np.uint8).copy()


@kernel
def has_times(row: Any) -> bool:
    """Return whether a row has one of the number columns that become properties."""
    return max(row["out_ms"], row["due_ms"], row["enqueue_ms"], row["dequeue_ms"]) >= 0


@kernel
def number_bytes(name: Bytes, value: int) -> int:
    """Return the size of the entry of a number, 0 for a negative one, which is not written."""
    return name.size + digits_len(np.int64(value)) + 1 if value >= 0 else 0


@kernel
def times_bytes(row: Any) -> int:
    """Return the size of the entries of the number columns."""
    size = number_bytes(OUT_NAME, row["out_ms"]) + number_bytes(DUE_NAME, row["due_ms"])
    size += number_bytes(ENQUEUE_NAME, row["enqueue_ms"])
    return size + number_bytes(DEQUEUE_NAME, row["dequeue_ms"])


@kernel
def property_bytes(row: Any, staging: Bytes, topics: Any) -> int:
    """Return the size of the property text as it will be stored."""
    size = np.int64(row["prop_len"])
    timed = has_times(row)
    if row["real_topic_index"] < 0 and not timed:
        return size
    # a separator is needed only between the client's text and the appended entries
    if size > 0 and staging[row["prop_pos"] + size - 1] != ENTRY_END:
        size += 1
    if timed:
        size += times_bytes(row)
    if row["real_topic_index"] < 0:
        return size
    size += REAL_TOPIC_NAME.size + topics[row["real_topic_index"]]["name_len"] + 1
    return size + REAL_QID_NAME.size + digits_len(np.int64(row["real_queue_id"])) + 1


@kernel
def prepare(
    rows: Rows,
    count: int,
    staging: Bytes,
    arrays: TopicArrays,
    body_bytes_max: int,
    record_bytes_max: int,
) -> Any:
    """Set `queue_slot` and `record_size`; refuse rows that are too long with status 13.

    Returns (first row whose queue has no slot yet, or `count`; bytes of all records; refused).
    """
    total, refused = np.int64(0), 0
    for i in range(count):
        row = rows[i]
        if row["status"] != 0:
            continue
        topic = arrays.topics[row["topic_index"]]
        prop_len = property_bytes(row, staging, arrays.topics)
        if prop_len > PROPERTY_BYTES_MAX and max(row["enqueue_ms"], row["dequeue_ms"]) >= 0:
            row["enqueue_ms"] = row["dequeue_ms"] = -1  # drop these properties: they are optional
            prop_len = property_bytes(row, staging, arrays.topics)
        too_long = row["body_len"] > body_bytes_max or prop_len > PROPERTY_BYTES_MAX
        if too_long or row["queue_id"] < 0:
            row["status"] = MESSAGE_ILLEGAL
            refused += 1
            continue
        # The caller creates the missing queue and calls again from this row.
        if row["queue_id"] >= topic["slots_len"]:
            return i, total, refused
        # `slot_map` has the slots of all topics; a topic's queues are neighbours in it
        slot = arrays.slot_map[topic["slots_pos"] + row["queue_id"]]
        if slot < 0:
            return i, total, refused
        row["queue_slot"] = slot
        size = RECORD_FIXED_BYTES + row["body_len"] + topic["name_len"] + prop_len
        # version 2 of the record has a length of two bytes (MessageVersion.MESSAGE_VERSION_V2)
        if topic["name_len"] > TOPIC_BYTES_V1_MAX:
            size += 1
        if row["sys_flag"] & SYS_BORN_IPV6:
            size += IPV6_EXTRA_BYTES
        if row["sys_flag"] & SYS_STORE_IPV6:
            size += IPV6_EXTRA_BYTES
        if size > record_bytes_max:
            row["status"] = MESSAGE_ILLEGAL
            refused += 1
            continue
        row["record_size"] = size
        total += size
    return count, total, refused


@kernel
def put_host(out: Bytes, pos: int, hi: Any, lo: Any, port: int, ipv6: bool) -> int:
    """Write address and port of a host; return the position after them."""
    if ipv6:
        put_i8(out, pos, np.int64(hi))
        put_i8(out, pos + IPV6_BYTES // 2, np.int64(lo))
        pos += IPV6_BYTES
    else:
        # an IPv4 address is in the low word
        put_i4(out, pos, np.int64(lo))
        pos += IPV4_BYTES
    put_i4(out, pos, port)
    return pos + PORT_BYTES


@kernel
def put_number(out: Bytes, pos: int, name: Bytes, value: int) -> int:
    """Write the entry of a number unless it is negative; return the position after it."""
    if value < 0:
        return pos
    copy(out, pos, name, 0, name.size)
    pos = put_digits(out, pos + name.size, np.int64(value))
    out[pos] = ENTRY_END
    return pos + 1


@kernel
def put_times(out: Bytes, pos: int, row: Any) -> int:
    """Write the entries of the number columns; return the position after them."""
    pos = put_number(out, pos, OUT_NAME, row["out_ms"])
    pos = put_number(out, pos, DUE_NAME, row["due_ms"])
    pos = put_number(out, pos, ENQUEUE_NAME, row["enqueue_ms"])
    return put_number(out, pos, DEQUEUE_NAME, row["dequeue_ms"])


@kernel
def put_properties(out: Bytes, pos: int, row: Any, staging: Bytes, arrays: TopicArrays) -> int:
    """Write the property text, the number columns, REAL_TOPIC and REAL_QID of a redirected row."""
    size = np.int64(row["prop_len"])
    copy(out, pos, staging, row["prop_pos"], size)
    pos += size
    timed = has_times(row)
    if row["real_topic_index"] < 0 and not timed:
        return pos
    # the text of a client may lack the last separator
    if size > 0 and out[pos - 1] != ENTRY_END:
        out[pos] = ENTRY_END
        pos += 1
    if timed:
        pos = put_times(out, pos, row)
    if row["real_topic_index"] < 0:
        return pos
    copy(out, pos, REAL_TOPIC_NAME, 0, REAL_TOPIC_NAME.size)
    pos += REAL_TOPIC_NAME.size
    topic = arrays.topics[row["real_topic_index"]]
    copy(out, pos, arrays.names, topic["name_pos"], topic["name_len"])
    pos += topic["name_len"]
    out[pos] = ENTRY_END
    copy(out, pos + 1, REAL_QID_NAME, 0, REAL_QID_NAME.size)
    pos = put_digits(out, pos + 1 + REAL_QID_NAME.size, np.int64(row["real_queue_id"]))
    out[pos] = ENTRY_END
    return pos + 1


@kernel
def put_record(out: Bytes, start: int, row: Any, staging: Bytes, arrays: TopicArrays) -> None:
    """Write one record; the row already has its offsets and its size."""
    topic = arrays.topics[row["topic_index"]]
    name_len = np.int64(topic["name_len"])
    wide = name_len > TOPIC_BYTES_V1_MAX
    sys_flag = np.int64(row["sys_flag"])
    body_len = np.int64(row["body_len"])
    put_i4(out, start + RECORD_AT.total_size, row["record_size"])
    put_i4(out, start + RECORD_AT.magic, MAGIC_V2 if wide else MAGIC_V1)
    # as in Apache's broker, the CRC is stored without its sign bit (UtilAll.crc32)
    crc = crc32(staging, row["body_pos"], body_len) & CRC_MASK
    put_i4(out, start + RECORD_AT.body_crc, crc)
    put_i4(out, start + RECORD_AT.queue_id, row["queue_id"])
    put_i4(out, start + RECORD_AT.flag, row["flag"])
    put_i8(out, start + RECORD_AT.queue_offset, row["queue_offset"])
    put_i8(out, start + RECORD_AT.phys_offset, row["phys_offset"])
    put_i4(out, start + RECORD_AT.sys_flag, sys_flag)
    put_i8(out, start + RECORD_AT.born_ms, row["born_ms"])
    # an IPv6 host moves every field after it, so from here on positions are relative
    born_ipv6 = (sys_flag & SYS_BORN_IPV6) != 0
    pos = start + RECORD_AT.born_ip
    pos = put_host(out, pos, row["born_ip_hi"], row["born_ip_lo"], row["born_port"], born_ipv6)
    put_i8(out, pos, row["store_ms"])
    store_ipv6 = (sys_flag & SYS_STORE_IPV6) != 0
    pos += TIME_BYTES
    pos = put_host(out, pos, row["store_ip_hi"], row["store_ip_lo"], row["store_port"], store_ipv6)
    put_i4(out, pos, row["reconsume_times"])
    put_i8(out, pos + PREPARED_OFFSET_AT, row["prepared_offset"])
    put_i4(out, pos + BODY_LEN_AT, body_len)
    copy(out, pos + BODY_AT, staging, row["body_pos"], body_len)
    pos += BODY_AT + body_len
    if wide:
        put_i2(out, pos, name_len)
        pos += 1
    else:
        out[pos] = name_len
    copy(out, pos + 1, arrays.names, topic["name_pos"], name_len)
    pos += 1 + name_len
    # the length of the properties precedes them, but is known only after they were written
    end = put_properties(out, pos + LENGTH_BYTES, row, staging, arrays)
    put_i2(out, pos, end - pos - LENGTH_BYTES)


@kernel
def set_tags_code(row: Any, store_ms: int) -> None:
    """Set the tags code: the hash of the tag, or a due time that may depend on the store time.

    A row with both `due_ms` and `due_delay_ms` keeps its hash; its `due_ms` becomes store time +
    `due_delay_ms`, unless that has more digits than `prepare` made room for.
    """
    after_ms = np.int64(row["due_delay_ms"])
    row["tags_code"] = row["tags_hash"]
    if after_ms == TAGS_DUE:
        row["tags_code"] = row["due_ms"]
    # a level message: its unit has the due time in place of the hash
    # (CommitLog.checkMessageAndReturnSize)
    elif after_ms >= 0 and row["due_ms"] < 0:
        row["tags_code"] = store_ms + after_ms
    # another number of digits would change the size of the record, which `prepare` has fixed
    elif after_ms >= 0 and digits_len(store_ms + after_ms) == digits_len(np.int64(row["due_ms"])):
        row["due_ms"] = store_ms + after_ms


@kernel
def has_queue_offset(sys_flag: int) -> bool:
    """Return whether a record has a queue offset: it is neither prepared nor a rollback."""
    kind = sys_flag & SYS_TRANSACTION_MASK
    return kind == 0 or kind == SYS_COMMIT


@kernel
def encode(
    rows: Rows,
    span: Any,
    staging: Bytes,
    arrays: TopicArrays,
    out: Bytes,
    log_start: int,
    file_left: int,
    store_ms: int,
) -> Any:
    """Number and write rows span[0]..span[1] while they fit.

    Args:
        log_start: Log offset of out[0].
        file_left: Bytes left in the log file from there on.

    Returns (next row, bytes written, log offset of the last record or -1).
    """
    pos, last = np.int64(0), np.int64(-1)  # -1: no record was written
    i = span[0]
    while i < span[1]:
        row = rows[i]
        if row["status"] != 0:
            i += 1
            continue
        size = np.int64(row["record_size"])
        # a file must keep room for the blank record that ends it
        if size + BLANK_BYTES > file_left - pos or pos + size > out.size:
            break
        queue = arrays.queues[row["queue_slot"]]
        row["store_ms"] = store_ms
        row["phys_offset"] = log_start + pos
        # prepared and rolled back messages are in no queue; Apache stores 0
        row["queue_offset"] = 0
        if has_queue_offset(row["sys_flag"]):
            row["queue_offset"] = queue["next_offset"]
            queue["next_offset"] += 1
        set_tags_code(row, store_ms)
        put_record(out, pos, row, staging, arrays)
        last = log_start + pos
        pos += size
        i += 1
    return i, pos, last


@kernel
def revert_queue_offsets(rows: Rows, first: int, end: int, arrays: TopicArrays) -> None:
    """Undo the queue offsets of rows whose write failed."""
    for i in range(first, end):
        row = rows[i]
        if row["status"] == 0 and has_queue_offset(row["sys_flag"]):
            arrays.queues[row["queue_slot"]]["next_offset"] -= 1


@kernel
def count_by_slot(rows: Rows, first: int, end: int, counts: Any, touched: Any) -> int:
    """Count units per queue slot; list the slots in order of appearance; return their number."""
    n = 0
    for i in range(first, end):
        row = rows[i]
        if row["status"] != 0 or not has_queue_offset(row["sys_flag"]):
            continue
        slot = row["queue_slot"]
        # the first unit of this queue in the batch
        if counts[slot] == 0:
            touched[n] = slot
            n += 1
        counts[slot] += 1
    return n


@kernel
def group_units(rows: Rows, first: int, end: int, counts: Any, touched: Any, out: Bytes) -> int:
    """Write units grouped by queue; return the number of blocks.

    Args:
        counts: Scratch, a zero per slot; zero again afterwards.
        touched: (n, 4) i8 out, a block per queue: BLOCK_SLOT, first and end unit in `out`
            (BLOCK_FIRST, BLOCK_END), queue offset of the first (BLOCK_OFFSET).
    """
    blocks = count_by_slot(rows, first, end, counts, touched[:, BLOCK_SLOT])
    # assign a range of `out` to every block; counts[slot] becomes the block as -(block + 1)
    start = 0
    for k in range(blocks):
        slot = touched[k, BLOCK_SLOT]
        touched[k, BLOCK_FIRST] = touched[k, BLOCK_END] = start
        touched[k, BLOCK_OFFSET] = NOT_SET
        size = counts[slot]
        counts[slot] = -(k + 1)
        start += size
    # rows in log order keep their order within each block
    for i in range(first, end):
        row = rows[i]
        if row["status"] != 0 or not has_queue_offset(row["sys_flag"]):
            continue
        k = -counts[row["queue_slot"]] - 1
        if touched[k, BLOCK_OFFSET] == NOT_SET:
            touched[k, BLOCK_OFFSET] = row["queue_offset"]
        pos = touched[k, BLOCK_END] * UNIT_BYTES
        put_i8(out, pos + UNIT_AT.phys_offset, row["phys_offset"])
        put_i4(out, pos + UNIT_AT.size, row["record_size"])
        put_i8(out, pos + UNIT_AT.tags_code, row["tags_code"])
        touched[k, BLOCK_END] += 1
    # only the used entries are cleared: `counts` has one for each queue of the store
    for k in range(blocks):
        counts[touched[k, BLOCK_SLOT]] = 0
    return blocks
