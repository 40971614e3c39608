"""Names and property entries in record bytes, eight bytes a step; for other kernels to call."""

from __future__ import annotations

import numpy as np

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8, trailing_zeros
from message_store.layout import ENTRY_END, NAME_END
from message_store.queues.topic_table import TopicArrays


@kernel
def is_named(data: Bytes, pos: int, name: Bytes) -> bool:
    """Return whether data[pos:] begins with `name`; eight bytes a step."""
    start = 0
    while start + 8 <= name.size:
        if load_u8(data, np.int64(pos + start)) != load_u8(name, np.int64(start)):
            return False
        start += 8
    # the last bytes, fewer than a word
    while start < name.size:
        if data[pos + start] != name[start]:
            return False
        start += 1
    return True


@kernel
def is_topic(data: Bytes, pos: int, size: int, arrays: TopicArrays, index: int) -> bool:
    """Return whether data[pos:pos+size] is the name of topic `index` (-1: of none)."""
    if index < 0 or arrays.topics[index]["name_len"] != size:
        return False
    start = np.int64(arrays.topics[index]["name_pos"])
    position = 0
    while position + 8 <= size:
        if load_u8(data, np.int64(pos + position)) != load_u8(arrays.names, start + position):
            return False
        position += 8
    # the last bytes, fewer than a word
    while position < size:
        if data[pos + position] != arrays.names[start + position]:
            return False
        position += 1
    return True


@kernel
def find_byte(data: Bytes, pos: int, end: int, byte: int) -> int:
    """Return the position of a byte in data[pos:end], `end` without one; 8 bytes a step."""
    # (x - ones) & ~x & highs has the high bit of the first byte that is zero in x
    ones, highs = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    repeated = ones * np.uint64(byte)
    while pos + 8 <= end:
        # where the byte is, x is zero
        x = load_u8(data, np.int64(pos)) ^ repeated
        hits = (x - ones) & ~x & highs
        if hits != np.uint64(0):
            return pos + (trailing_zeros(hits) >> 3)  # the lowest byte is the first
        pos += 8
    # the last bytes, fewer than a word
    while pos < end and data[pos] != byte:
        pos += 1
    return pos


@kernel
def entry_end(data: Bytes, pos: int, end: int) -> int:
    """Return the position of ENTRY_END in data[pos:end], `end` without one."""
    return find_byte(data, pos, end, ENTRY_END)


@kernel
def has_name(data: Bytes, pos: int, end: int, name: Bytes) -> bool:
    """Return whether the property entry in data[pos:end] has this name; its value may be empty."""
    # the cheap check first: most entries have another length or end their name elsewhere
    if end - pos < name.size + 1 or data[pos + name.size] != NAME_END:
        return False
    return is_named(data, pos, name)


@kernel
def has_value(data: Bytes, pos: int, end: int, name: Bytes) -> bool:
    """Return whether the property entry in data[pos:end] has this name and a value."""
    if end - pos < name.size + 2 or data[pos + name.size] != NAME_END:
        return False
    return is_named(data, pos, name)
