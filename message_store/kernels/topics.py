"""Compiled lookup of topic names.

`message_store.queues.topic_table` has the table and the readable twin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.queues.topic_table import TopicArrays

FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


class TopicNames(NamedTuple):
    """Arrays of a topic table for a lookup by name."""

    topics: npt.NDArray[Any]  # (n,) TOPIC
    names: Bytes  # (n,) u1: the names, end to end
    table: npt.NDArray[np.int32]  # (2^k,) i4: hash table of indexes into `topics`; -1 is free


@kernel
def hash_name(data: Bytes, pos: int, size: int) -> int:
    """Return FNV-1a, 64 bits, of data[pos:pos+size]."""
    value = FNV_START
    for i in range(size):
        value = (value ^ np.uint64(data[pos + i])) * FNV_PRIME
    return value


@kernel
def find_topic(data: Bytes, pos: int, size: int, arrays: TopicNames | TopicArrays) -> int:
    """Return the index of the topic named data[pos:pos+size], or -1."""
    value = hash_name(data, pos, size)
    # open addressing: the name is in the row of its hash, or in the used rows after it
    mask = np.uint64(arrays.table.size - 1)
    spot = value & mask
    while True:
        index = np.int64(arrays.table[np.int64(spot)])
        # a free row ends the sequence of rows that the name can be in: it is absent
        if index < 0:
            return -1
        topic = arrays.topics[index]
        # the hash of 64 bits differs for nearly all other names, so bytes are compared once
        if topic["name_hash"] == value and topic["name_len"] == size:
            start = topic["name_pos"]
            same = True
            for i in range(size):
                if arrays.names[start + i] != data[pos + i]:
                    same = False
                    break
            if same:
                return index
        spot = (spot + np.uint64(1)) & mask
