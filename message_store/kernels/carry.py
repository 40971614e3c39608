"""Small pieces for kernels that turn held records (levels, timers) back into messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_u4, get_u8
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8, trailing_zeros
from message_store.layout import SYS_BORN_IPV6, SYS_STORE_IPV6
from message_store.topics import TopicArrays

TAGS = np.frombuffer(b"TAGS", np.uint8).copy()
REAL_TOPIC = np.frombuffer(b"REAL_TOPIC", np.uint8).copy()
REAL_QID = np.frombuffer(b"REAL_QID", np.uint8).copy()
CRC32 = np.frombuffer(b"__CRC32#", np.uint8).copy()
CRC32_ENTRY_BYTES = 20
QID_ILLEGAL = -(1 << 40)
NAME_GROWTH_MAX = 300  # bytes that a record may grow by when it gets its own topic back


@kernel
def is_named(data: Bytes, pos: int, name: Bytes) -> bool:
    """Return whether data[pos:] begins with `name`; eight bytes a step."""
    at = 0
    while at + 8 <= name.size:
        if load_u8(data, np.int64(pos + at)) != load_u8(name, np.int64(at)):
            return False
        at += 8
    while at < name.size:
        if data[pos + at] != name[at]:
            return False
        at += 1
    return True


@kernel
def is_topic(data: Bytes, pos: int, size: int, arrays: TopicArrays, index: int) -> bool:
    """Return whether data[pos:pos+size] is the name of topic `index` (-1: of none)."""
    if index < 0 or arrays.topics[index]["name_len"] != size:
        return False
    start = np.int64(arrays.topics[index]["name_pos"])
    at = 0
    while at + 8 <= size:
        if load_u8(data, np.int64(pos + at)) != load_u8(arrays.names, start + at):
            return False
        at += 8
    while at < size:
        if data[pos + at] != arrays.names[start + at]:
            return False
        at += 1
    return True


@kernel
def entry_end(data: Bytes, pos: int, end: int) -> int:
    """Return where the byte 2 lies in data[pos:end], `end` if nowhere; eight bytes a step."""
    ones, highs = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    twos = np.uint64(0x0202020202020202)
    while pos + 8 <= end:
        x = load_u8(data, np.int64(pos)) ^ twos
        hits = (x - ones) & ~x & highs
        if hits != np.uint64(0):
            return pos + (trailing_zeros(hits) >> 3)  # the lowest byte is the first
        pos += 8
    while pos < end and data[pos] != 2:
        pos += 1
    return pos


@kernel
def read_hosts(data: Bytes, pos: int, sys_flag: int, row: Any) -> int:
    """Set hosts and times of `row`; `pos` is that of the born host. Return the next position."""
    row["born_ip_hi"] = row["store_ip_hi"] = np.uint64(0)
    if sys_flag & SYS_BORN_IPV6:
        row["born_ip_hi"], row["born_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += 12
    else:
        row["born_ip_lo"] = np.uint64(get_u4(data, pos))
    row["born_port"] = get_i4(data, pos + 4)
    pos += 16
    if sys_flag & SYS_STORE_IPV6:
        row["store_ip_hi"], row["store_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += 12
    else:
        row["store_ip_lo"] = np.uint64(get_u4(data, pos))
    row["store_port"] = get_i4(data, pos + 4)
    return pos + 8


@kernel
def set_plain(row: Any) -> None:
    """Clear the columns that only matter for messages from clients."""
    row["delay_level"] = row["timer_kind"] = row["timer_value"] = row["prop_flags"] = 0
    row["uniq_pos"] = row["uniq_len"] = row["status"] = 0
    row["due_delay_ms"] = row["phys_offset"] = -1
    row["out_ms"] = row["due_ms"] = row["enqueue_ms"] = row["dequeue_ms"] = -1
