"""Compiled loops that turn log bytes into columns.

follow           find the end of consecutive records, without decoding them
walk             read consecutive records, with their topics
select_unusual   find records that may be more than a pending message or its delivery
check            find damaged bodies
spans            positions of the values of known properties, and one hash of all others
numbers          decimal values of one property
hashes           hashes of the values of one property
hash_pairs       hashes of two values, joined as in the name of a marker's target
gather           values of one property, back to back, as in an Arrow text column
tag_codes        tags codes of queue units, from the values of one property
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes, copy, crc32, get_i4, get_i8
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8
from message_store.kernels.names import find_byte
from message_store.kernels.properties import java_hash, parse_number
from message_store.kernels.scan import STOP_FULL, read_frame
from message_store.kernels.topics import find_topic
from message_store.layout import (
    DAMAGE_BODY_CRC,
    IPV6_EXTRA_BYTES,
    RECORD_HEAD,
    SYS_BORN_IPV6,
    SYS_STORE_IPV6,
)
from message_store.queues.topic_table import TopicArrays

Rows = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
SEEN_MAX = 64  # maximum properties of one record that are compared for equal names
SLOTS = 64  # slots of the table of known names: the highest six bits of a hash
KIND_OTHER, KIND_LEVEL, KIND_TIMER, KIND_DECISION, KIND_QUARANTINE = 0, 1, 2, 3, 4
"""Kinds of topics; records of other topics are deliveries."""
NAME_END, ENTRY_END, PLUS = ord("\x01"), ord("\x02"), ord("+")
CRC_MASK = 0x7FFFFFFF  # Apache clears the sign bit of a CRC
_FIELDS = RECORD_HEAD.fields or {}
_AT = {name: int(_FIELDS[name][1]) for name in _FIELDS}
BODY_CRC_AT, FLAG_AT, BORN_MS_AT = _AT["body_crc"], _AT["flag"], _AT["born_ms"]
RECONSUME_AT = _AT["reconsume_times"]
BORN_HOST_AT, BORN_HOST_BYTES = _AT["born_ip"], _AT["store_ms"] - _AT["born_ip"]
FACTOR = np.uint64(0x9E3779B97F4A7C15)


@kernel
def follow(data: Bytes, pos: int, until: int, base: int, row: Any) -> Any:
    """Follow records until one begins at or after `until`.

    Args:
        data: Bytes of the log; data[0] is log offset `base`.
    Returns:
        (position of the end, 0), or (position, -1 - STOP_* of `read_frame`).
    """
    while pos < until:
        size = read_frame(data, pos, data.size, base + pos, row)
        if size < 0:
            return pos, size
        pos += size
    return pos, 0


@kernel
def walk(data: Bytes, pos: int, end: int, base: int, arrays: TopicArrays, out: Rows) -> Any:
    """Read records from data[pos:end] into `out`; return (count, next pos, STOP_*).

    Like `message_store.kernels.scan.walk`, without tags, level and CRC; data[0] is log offset
    `base`.
    """
    n = 0
    topic_index = np.int64(-1)
    while n < out.size and pos < end:
        row = out[n]
        size = read_frame(data, pos, end, base + pos, row)
        if size < 0:
            return n, pos, -1 - size
        row["damage"] = 0
        topic_index = find_topic(data, pos + row["topic_pos"], row["topic_len"], arrays)
        row["topic_index"] = topic_index
        pos += size
        n += 1
    return n, pos, STOP_FULL


@kernel
def check(data: Bytes, base: int, rows: Rows) -> None:
    """Set the damage of records whose body does not match its CRC."""
    for i in range(rows.size):
        if rows[i]["body_len"] > 0:
            pos = rows[i]["phys_offset"] - base
            crc = crc32(data, pos + rows[i]["body_pos"], rows[i]["body_len"]) & CRC_MASK
            if crc != get_i4(data, pos + BODY_CRC_AT):
                rows[i]["damage"] = DAMAGE_BODY_CRC


@kernel
def name_rows(data: Bytes, base: int, rows: Rows, arrays: TopicArrays) -> None:
    """Find the topics of rows without one."""
    for i in range(rows.size):
        if rows[i]["topic_index"] < 0:
            pos = rows[i]["phys_offset"] - base + rows[i]["topic_pos"]
            rows[i]["topic_index"] = find_topic(data, pos, rows[i]["topic_len"], arrays)


@kernel
def heads(data: Bytes, base: int, rows: Rows, out: Any) -> None:
    """Fill (n, 5) i8: born time, flag, times reconsumed, body CRC, and a hash of the fields that
    brokers copy: flag, sys_flag, born time and host, times reconsumed."""
    for i in range(rows.size):
        pos = rows[i]["phys_offset"] - base
        sys_flag = rows[i]["sys_flag"]
        # an IPv6 address of either host moves all fields after it
        extra = IPV6_EXTRA_BYTES if sys_flag & SYS_BORN_IPV6 else 0
        extra += IPV6_EXTRA_BYTES if sys_flag & SYS_STORE_IPV6 else 0
        out[i, 0] = get_i8(data, pos + BORN_MS_AT)
        out[i, 1] = get_i4(data, pos + FLAG_AT)
        out[i, 2] = get_i4(data, pos + RECONSUME_AT + extra)
        out[i, 3] = get_i4(data, pos + BODY_CRC_AT)
        size = BORN_HOST_BYTES + (IPV6_EXTRA_BYTES if sys_flag & SYS_BORN_IPV6 else 0)
        value = hash_bytes(data, pos + BORN_HOST_AT, size) ^ np.uint64(out[i, 0])
        value = (value * FACTOR) ^ np.uint64(sys_flag) ^ (np.uint64(out[i, 1]) << np.uint64(32))
        value = (value * FACTOR) ^ np.uint64(out[i, 2])
        # mix the high bits into the low ones: a product mixes upwards only
        out[i, 4] = np.int64((value ^ (value >> np.uint64(29))) * FACTOR)


@kernel
def hash_bytes(data: Bytes, pos: int, size: int) -> Any:
    """Hash data[pos:pos+size]; twin: `spark_reconciliation.scan.columns.hash_text`."""
    factor = np.uint64(0x9E3779B97F4A7C15)
    value = np.uint64(size) * factor
    while size > 0:
        # a whole word, without the bytes after the text
        if pos + 8 <= data.size:
            word = load_u8(data, np.int64(pos))
            if size < 8:
                word &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
        else:
            # the end of the data: no word may be read beyond it
            word = np.uint64(0)
            for i in range(min(size, 8)):
                word |= np.uint64(data[pos + i]) << np.uint64(8 * i)
        value = (value ^ word) * factor
        # the product mixes upwards only
        value ^= value >> np.uint64(32)
        pos += 8
        size -= 8
    return value


@kernel
def index_of(names: Words, value: Any) -> int:
    """Return the number of a known name by its hash, -1 if it is unknown.

    `names`: (SLOTS, 2) u8, open addressing: hash and number; a hash of 0 ends a search.
    """
    slot = np.int64(value >> np.uint64(58))
    while names[slot, 0] != np.uint64(0):
        if names[slot, 0] == value:
            return np.int64(names[slot, 1])
        slot = (slot + 1) % SLOTS
    return -1


@kernel
def place_of(seen: Words, count: int, name: Any) -> int:
    """Return the index of an earlier entry of the same name, `count` without one."""
    for i in range(count):
        if seen[2 * i] == name:
            return i
    return count


@kernel
def spans(
    data: Bytes,
    base: int,
    rows: Rows,
    names: Words,
    hidden: int,
    seen: Words,
    out: Any,
    sums: Words,
) -> None:
    """Find the last non-empty values of known properties, as `decode_properties` does.

    Args:
        names: Table of known names, see `index_of`; the first `hidden` of them are a broker's, and
            not part of the hash.
        seen: (2 * SEEN_MAX,) scratch.
        out: (k, n, 2) i4, zeros: start and end from the record's start; 0 and 0: absent.
        sums: (n,), zeros: one hash of all other names and values, independent of their order.
    """
    for i in range(rows.size):
        start = rows[i]["phys_offset"] - base
        pos = start + rows[i]["prop_pos"]
        end = pos + rows[i]["prop_len"]
        count = 0
        while pos < end:
            stop = find_byte(data, pos, end, ENTRY_END)
            name_end = find_byte(data, pos, stop, NAME_END)
            if name_end > pos and name_end + 1 < stop:
                # names are compared by their hashes of 64 bits
                name = hash_bytes(data, pos, name_end - pos)
                position = index_of(names, name)
                if position >= 0:
                    out[position, i, 0], out[position, i, 1] = name_end + 1 - start, stop - start
                # a property of the message itself, which brokers copy unchanged
                if position < 0 or position >= hidden:
                    value = hash_bytes(data, name_end + 1, stop - name_end - 1)
                    # a sum of hashes does not depend on the order of the properties
                    mixed = (name ^ (value >> np.uint64(29)) ^ value) * np.uint64(
                        0x9E3779B97F4A7C15
                    )
                    sums[i] += mixed
                    index = place_of(seen, count, name)
                    if index < count:  # the last of equal names applies
                        sums[i] -= seen[2 * index + 1]
                    # names beyond SEEN_MAX are not compared with later ones
                    if index < SEEN_MAX:
                        seen[2 * index], seen[2 * index + 1] = name, mixed
                        count = max(count, index + 1)
            pos = stop + 1


@kernel
def select_unusual(
    data: Bytes, base: int, rows: Rows, kinds: Any, names: Words, unusual: Any, real: Words
) -> None:
    """Select the rows that may be neither pending messages nor deliveries that name one.

    Args:
        kinds: (n,) KIND_* of the topics.
        names: Hashes of REAL_TOPIC, TIMER_OUT_MS, and names that only unusual pending records have.
        unusual: (n,) u1 out: 1 for selected rows.
        real: (n,) out: hash of REAL_TOPIC of a pending message, else 0.
    """
    for i in range(rows.size):
        pos = rows[i]["phys_offset"] - base + rows[i]["prop_pos"]
        end = pos + rows[i]["prop_len"]
        named = rows[i]["prepared_offset"] < 0
        pending = kinds[i] == KIND_LEVEL or kinds[i] == KIND_TIMER
        unusual[i] = kinds[i] > KIND_TIMER or (pending and named)
        real[i] = 0
        if named and not pending:  # a delivery: its properties are not needed
            continue
        while pos < end:
            stop = find_byte(data, pos, end, ENTRY_END)
            name_end = find_byte(data, pos, stop, NAME_END)
            if name_end > pos and name_end + 1 < stop:
                name = hash_bytes(data, pos, name_end - pos)
                # REAL_TOPIC: in a pending message its target, elsewhere the sign of a copy by
                # Apache; what its timeline in RocksDB delivers has TIMER_OUT_MS instead
                if not pending:
                    if name == names[0] or name == names[1]:
                        unusual[i] = 1
                elif name == names[0]:
                    real[i] = hash_bytes(data, name_end + 1, stop - name_end - 1)
                else:
                    for k in range(2, names.size):
                        if name == names[k]:
                            unusual[i] = 1
            pos = stop + 1


@kernel
def numbers(data: Bytes, starts: Any, value_spans: Any, absent: int, out: Any) -> None:
    """Fill (n,) i8 with the decimal values of (n, 2) spans; `absent` where there is no number.

    `starts`: (n,) i8, positions in `data` from which spans count.
    """
    for i in range(out.size):
        out[i] = absent
        if value_spans[i, 0] < value_spans[i, 1]:
            out[i] = parse_number(
                data, starts[i] + value_spans[i, 0], starts[i] + value_spans[i, 1], absent
            )


@kernel
def hashes(data: Bytes, starts: Any, value_spans: Any, out: Words) -> None:
    """Fill (n,) u8 with the hashes of spans; 0 where one is empty."""
    for i in range(out.size):
        out[i] = 0
        if value_spans[i, 0] < value_spans[i, 1]:
            out[i] = hash_bytes(
                data, starts[i] + value_spans[i, 0], np.int64(value_spans[i, 1] - value_spans[i, 0])
            )


@kernel
def hash_pairs(
    data: Bytes, starts: Any, value_spans: Any, others: Any, scratch: Bytes, out: Words
) -> None:
    """Fill (n,) u8 with the hashes of "found+others", or of the only value that is not empty.

    `scratch`: room for the longest text. The hash is 0 if both are empty.
    """
    for i in range(out.size):
        first, second = value_spans[i, 1] - value_spans[i, 0], others[i, 1] - others[i, 0]
        copy(scratch, 0, data, starts[i] + value_spans[i, 0], first)
        size = np.int64(first)
        if first > 0 and second > 0:
            # topic+key, as a marker writes it (TimerMessageStore.buildDeleteKey)
            scratch[size] = PLUS
            size += 1
        copy(scratch, size, data, starts[i] + others[i, 0], second)
        size += second
        out[i] = hash_bytes(scratch, 0, size) if size > 0 else np.uint64(0)


@kernel
def gather(data: Bytes, starts: Any, value_spans: Any, ends: Any, out: Bytes) -> None:
    """Copy (n, 2) spans back to back; ends: (n + 1,) i4, start of each in `out`."""
    for i in range(value_spans.shape[0]):
        copy(
            out,
            ends[i],
            data,
            starts[i] + value_spans[i, 0],
            np.int64(value_spans[i, 1] - value_spans[i, 0]),
        )


@kernel
def tag_codes(data: Bytes, starts: Any, value_spans: Any, out: Any) -> None:
    """Fill (n,) i8 with the tags codes of (n, 2) spans; 0 where one is empty."""
    for i in range(out.size):
        out[i] = 0
        if value_spans[i, 0] < value_spans[i, 1]:
            out[i] = java_hash(data, starts[i] + value_spans[i, 0], starts[i] + value_spans[i, 1])
