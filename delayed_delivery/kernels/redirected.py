"""Compiled helpers that turn redirected records back into messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, crc32, get_i4, get_i8, get_u4, get_u8
from message_store.kernels.kernel import kernel
from message_store.kernels.names import has_value, is_topic
from message_store.kernels.properties import parse_number
from message_store.kernels.topics import find_topic
from message_store.layout import RECORD_HEAD, SYS_BORN_IPV6, SYS_STORE_IPV6
from message_store.queues.topic_table import QUEUES_MAX, TopicArrays


def _name(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8).copy()


TAGS, CRC32 = _name(b"TAGS"), _name(b"__CRC32#")
REAL_TOPIC, REAL_QID = _name(b"REAL_TOPIC"), _name(b"REAL_QID")
DUE_MS = _name(b"DUEMQ_DUE_MS")
ENQUEUE_MS, DEQUEUE_MS = _name(b"TIMER_ENQUEUE_MS"), _name(b"TIMER_DEQUEUE_MS")
D, R, T, UNDERSCORE = b"DRT_"  # first bytes of these names
CRC32_ENTRY_BYTES = 20
QID_ILLEGAL = -(1 << 40)
CRC_MASK = 0x7FFFFFFF  # Apache stores the CRC of a body without its sign bit
assert RECORD_HEAD.fields is not None
BODY_CRC_AT, FLAG_AT, BORN_MS_AT, BORN_HOST_AT = (
    int(RECORD_HEAD.fields[name][1]) for name in ("body_crc", "flag", "born_ms", "born_ip")
)
IPV4_BYTES, IPV6_BYTES, PORT_BYTES, TIME_BYTES = 4, 16, 4, 8
NAME_GROWTH_MAX = 300  # maximum bytes by which the real topic makes a record longer


@kernel
def read_hosts(data: Bytes, pos: int, sys_flag: int, row: Any) -> int:
    """Set both hosts of `row` from the born host at `pos` on; return the position after them."""
    row["born_ip_hi"] = row["store_ip_hi"] = np.uint64(0)
    if sys_flag & SYS_BORN_IPV6:
        row["born_ip_hi"], row["born_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += IPV6_BYTES
    else:
        row["born_ip_lo"] = np.uint64(get_u4(data, pos))
        pos += IPV4_BYTES
    row["born_port"] = get_i4(data, pos)
    pos += PORT_BYTES + TIME_BYTES  # the store time is between the hosts
    if sys_flag & SYS_STORE_IPV6:
        row["store_ip_hi"], row["store_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += IPV6_BYTES
    else:
        row["store_ip_lo"] = np.uint64(get_u4(data, pos))
        pos += IPV4_BYTES
    row["store_port"] = get_i4(data, pos)
    return pos + PORT_BYTES


@kernel
def is_body_sound(data: Bytes, pos: int, frame: Any) -> bool:
    """Return whether the body of the record at data[pos] matches its CRC; `frame`: SCANNED."""
    body_len = np.int64(frame["body_len"])
    crc = crc32(data, pos + frame["body_pos"], body_len) & CRC_MASK
    # an empty body is not checked, as in Apache's broker
    return body_len == 0 or crc == get_i4(data, pos + BODY_CRC_AT)


@kernel
def set_message(data: Bytes, pos: int, frame: Any, phys_offset: int, row: Any) -> None:
    """Set the columns that a message copies from its source record at data[pos].

    These are all columns but topic, body and properties. The record is the origin of the message.
    """
    row["real_topic_index"], row["real_queue_id"] = -1, 0
    row["flag"], row["sys_flag"] = get_i4(data, pos + FLAG_AT), frame["sys_flag"]
    row["born_ms"] = get_i8(data, pos + BORN_MS_AT)
    # an IPv6 host moves the fields after it
    after = read_hosts(data, pos + BORN_HOST_AT, frame["sys_flag"], row)
    row["reconsume_times"] = get_i4(data, after)
    # names the source record (docs/decisions/0002)
    row["prepared_offset"] = -(phys_offset + 1)
    set_plain(row)


@kernel
def set_plain(row: Any) -> None:
    """Clear the columns that only messages from clients use."""
    row["delay_level"] = row["timer_kind"] = row["timer_value"] = row["prop_flags"] = 0
    row["uniq_pos"] = row["uniq_len"] = row["status"] = 0
    row["due_delay_ms"] = row["phys_offset"] = -1
    row["out_ms"] = row["due_ms"] = row["enqueue_ms"] = row["dequeue_ms"] = -1


@kernel
def take_target(data: Bytes, pos: int, end: int, text: Any) -> None:
    """Set the target in `text` from the property entry in data[pos:end], which begins with R.

    Args:
        text: Gets topic_pos and topic_len of REAL_TOPIC, queue_id of REAL_QID (-1: invalid).
    """
    if has_value(data, pos, end, REAL_TOPIC):
        text["topic_pos"] = pos + REAL_TOPIC.size + 1
        text["topic_len"] = end - pos - REAL_TOPIC.size - 1
    elif has_value(data, pos, end, REAL_QID):
        queue = parse_number(data, pos + REAL_QID.size + 1, end, QID_ILLEGAL)
        # a number that no queue can have is as good as none
        text["queue_id"] = queue if 0 <= queue < QUEUES_MAX else -1


@kernel
def find_target(data: Bytes, pos: int, size: int, arrays: TopicArrays, guess: int) -> int:
    """Return the index of the topic named in data[pos:pos+size], -1 if it is unknown.

    Args:
        guess: Topic index to compare first, or -1; messages of one producer follow each other.
    """
    if is_topic(data, pos, size, arrays, guess):
        return guess
    return find_topic(data, pos, size, arrays) if size > 0 else -1


@kernel
def has_queues(arrays: TopicArrays, topic_index: int) -> bool:
    """Return whether a topic has queues; a topic without queues was deleted."""
    topic = arrays.topics[topic_index]
    return topic["write_queues"] != 0 or topic["read_queues"] != 0
