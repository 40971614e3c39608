"""Lookup of many keys: hashes, candidates from the index, records with the key.

hash_keys    compute hashes of keys, as in index files
find_many    find candidates for many hashes in one index file
match_keys   select candidates that are records of the topic and have the key itself
frames_at    read the columns of the records at log offsets
owners_at    find topic and unique key of the records at log offsets
owned_at     compare topic and unique key of the records at log offsets with given ones
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.index import (
    KEYS_NAME,
    UNIQ_NAME,
    Words,
    find_key,
    positive_hash,
)
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, find_byte, has_name
from message_store.kernels.properties import equals, find_value, java_hash_on
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic
from message_store.layout import KEY_END
from message_store.queues.topic_table import TopicArrays

Rows = npt.NDArray[Any]
NO_HIT, HIT_UNIQUE, HIT_KEY = 0, 1, 2
UNIQ_BYTES, KEYS_BYTES = UNIQ_NAME.size, KEYS_NAME.size
REAL_TOPIC = np.frombuffer(b"REAL_TOPIC", np.uint8).copy()


class QueryKeys(NamedTuple):
    """Keys of one topic, as arguments of kernels."""

    topic: Bytes
    keys: Bytes  # end to end
    ends: npt.NDArray[np.int64]  # (n,): end of each key


@kernel
def hash_keys(topic_hash: int, keys: Bytes, ends: Any, out: Any) -> None:
    """Set out[i] to the hash of key i; `topic_hash` is the Java hash of `topic#`."""
    start = np.int64(0)
    for i in range(ends.size):
        out[i] = positive_hash(java_hash_on(topic_hash, keys, start, ends[i]))
        start = ends[i]


@kernel
def find_many(
    words: Words, slot_count: int, hashes: Any, first: int, limit: int, key_at: Any, offsets: Any
) -> Any:
    """Look hashes[first:] up in one index file; return (next key, candidates).

    Args:
        limit: Maximum candidates of one key.
        key_at, offsets: (m,) i8 out, m >= limit: index of the key, log offset.
    """
    n, i = np.int64(0), np.int64(first)
    # all times: here only the key counts
    span = (np.int64(0), np.int64(1) << np.int64(62))
    # A key is looked up only if all its candidates fit.
    while i < hashes.size and n + limit <= offsets.size:
        count = find_key(words, slot_count, hashes[i], span, offsets[n : n + limit])
        key_at[n : n + count] = i
        n += count
        i += 1
    return i, n


@kernel
def same(data: Bytes, pos: int, size: int, other: Bytes, start: int, end: int) -> bool:
    """Return whether data[pos:pos+size] is other[start:end]."""
    if size != end - start:
        return False
    for i in range(size):
        if data[pos + i] != other[start + i]:
            return False
    return True


@kernel
def hit_of(data: Bytes, pos: int, end: int, keys: Bytes, start: int, stop: int) -> int:
    """Return HIT_* for the key keys[start:stop]: whether, and as which key, a text has it."""
    hit = NO_HIT
    while pos < end:
        until = entry_end(data, pos, end)
        if has_name(data, pos, until, UNIQ_NAME):
            position = pos + UNIQ_BYTES + 1
            if same(data, position, until - position, keys, start, stop):
                # no other entry can be a better match
                return HIT_UNIQUE
        elif has_name(data, pos, until, KEYS_NAME):
            position = pos + KEYS_BYTES + 1
            while position < until:
                # KEYS is a list of words
                word_end = find_byte(data, position, until, KEY_END)
                if same(data, position, word_end - position, keys, start, stop):
                    hit = HIT_KEY
                position = word_end + 1
        pos = until + 1
    return hit


@kernel
def match_keys(
    data: Bytes, span: Any, key_at: Any, offsets: Any, query: QueryKeys, frames: Rows, hits: Any
) -> None:
    """Set hits[i] for candidates of one log file.

    Args:
        data: Bytes of the file.
        span: (log offset of data[0], bytes of data that are written).
        key_at, offsets: (n,) i8: candidates.
        frames: (1,) layout.SCANNED, scratch.
        hits: (n,) u1 out, HIT_*.
    """
    frame = frames[0]
    for i in range(offsets.size):
        hits[i] = NO_HIT
        # A damaged index may have any offset: no byte outside the written part is read.
        pos = np.int64(offsets[i] - span[0])
        if pos < 0 or pos >= span[1]:
            continue
        if read_frame(data, pos, span[1], offsets[i], frame) < 0:
            continue
        # Different keys can have one hash, and so can keys of different topics.
        if not equals(data, pos + frame["topic_pos"], frame["topic_len"], query.topic):
            continue
        position, start = pos + frame["prop_pos"], np.int64(0)
        if key_at[i] > 0:
            # a key begins where the one before it ends
            start = query.ends[key_at[i] - 1]
        stop = query.ends[key_at[i]]
        hits[i] = hit_of(data, position, position + frame["prop_len"], query.keys, start, stop)


@kernel
def frames_at(data: Bytes, span: Any, offsets: Any, arrays: TopicArrays, frames: Rows) -> None:
    """Read the record at each log offset; record_size is 0 where no record is.

    Args:
        data, span: See `match_keys`.
        offsets: (n,) i8, in this file.
        frames: (n,) layout.SCANNED out; tags_hash and delay_level are not set.
    """
    for i in range(offsets.size):
        pos, frame = np.int64(offsets[i] - span[0]), frames[i]
        frame["record_size"], frame["topic_index"] = 0, -1
        if pos < 0 or pos >= span[1]:
            continue
        if read_frame(data, pos, span[1], offsets[i], frame) < 0:
            frame["record_size"] = 0
            continue
        start = pos + frame["topic_pos"]
        frame["topic_index"] = find_topic(data, start, frame["topic_len"], arrays)


@kernel
def owners_at(
    data: Bytes,
    span: Any,
    offsets: Any,
    arrays: TopicArrays,
    frames: Rows,
    topic_indexes: Any,
    keys: Any,
) -> None:
    """Find the topic that each record is for, and its unique key.

    Args:
        data, span, offsets: See `frames_at`.
        frames: (1,) layout.SCANNED, scratch.
        topic_indexes: (n,) i8 out: index of REAL_TOPIC, or else of the record's topic; -1 without a
            record, or if the topic is not known.
        keys: (n, 2) i8 out: start and end of UNIQ_KEY in `data`; (0, 0) without one.
    """
    frame = frames[0]
    for i in range(offsets.size):
        topic_indexes[i], keys[i, 0], keys[i, 1] = -1, 0, 0
        pos = np.int64(offsets[i] - span[0])
        if pos < 0 or pos >= span[1]:
            continue
        if read_frame(data, pos, span[1], offsets[i], frame) < 0:
            continue
        text, size = pos + frame["prop_pos"], frame["prop_len"]
        topic = find_value(data, text, size, REAL_TOPIC)
        if topic[0] < topic[1]:
            topic_indexes[i] = find_topic(data, topic[0], topic[1] - topic[0], arrays)
        else:
            start = pos + frame["topic_pos"]
            topic_indexes[i] = find_topic(data, start, frame["topic_len"], arrays)
        unique = find_value(data, text, size, UNIQ_NAME)
        keys[i, 0], keys[i, 1] = unique[0], unique[1]


@kernel
def owned_at(
    data: Bytes,
    span: Any,
    order: Any,
    offsets: Any,
    first: int,
    query: QueryKeys,
    frames: Rows,
    is_owned: Any,
) -> None:
    """Set is_owned[i], for i in `order`, if the record at offsets[i] has its key and its topic.

    Args:
        data, span: See `match_keys`.
        order: (m,) i8: indexes of offsets in this file; others are left out.
        offsets: (n,) i8.
        first: Index in `query` of the unique key of offsets[0]; the others follow.
        query: Unique keys; the topic that the records are for, empty for any.
        frames: (1,) layout.SCANNED, scratch.
        is_owned: (n,) b1 out.
    """
    frame = frames[0]
    for i in order:
        is_owned[i] = False
        pos = np.int64(offsets[i] - span[0])
        if pos < 0 or pos >= span[1]:
            continue
        if read_frame(data, pos, span[1], offsets[i], frame) < 0:
            continue
        text, size = pos + frame["prop_pos"], frame["prop_len"]
        # a key begins where the one before it ends
        start = query.ends[first + i - 1] if first + i > 0 else np.int64(0)
        key = find_value(data, text, size, UNIQ_NAME)
        if not same(data, key[0], key[1] - key[0], query.keys, start, query.ends[first + i]):
            continue
        if query.topic.size > 0:
            topic = find_value(data, text, size, REAL_TOPIC)
            if topic[0] >= topic[1]:
                # without a real topic, the message is for the topic of its record
                topic = (pos + frame["topic_pos"], pos + frame["topic_pos"] + frame["topic_len"])
            if not same(data, topic[0], topic[1] - topic[0], query.topic, 0, query.topic.size):
                continue
        is_owned[i] = True
