"""Compiled loops of index files: add keys to slots and items, and follow chains of items.

As in Apache's IndexFile, the slot is `abs(hash) mod slots`, and items are chained newest first. All
fields are at multiples of four, so a file is an array of 32-bit words: a concurrent reader sees
each word either before or after a write.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.names import find_byte
from message_store.kernels.properties import equals, java_hash_on
from message_store.kernels.scan import STOP_FULL, read_frame
from message_store.layout import ENTRY_END, KEY_END, NAME_END, SYS_ROLLBACK, SYS_TRANSACTION_MASK

Rows = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
KEYS_NAME = np.frombuffer(b"KEYS", np.uint8).copy()
UNIQ_NAME = np.frombuffer(b"UNIQ_KEY", np.uint8).copy()
HEADER_WORDS = 10
ITEM_WORDS = 5
# Word numbers in the header, and in an item.
AT_BEGIN_MS, AT_END_MS, AT_BEGIN_PHYS, AT_END_PHYS, AT_USED, AT_COUNT = 0, 2, 4, 6, 8, 9
ITEM_HASH, ITEM_PHYS, ITEM_SECONDS, ITEM_PREVIOUS = 0, 1, 3, 4
INT_MIN, INT_MAX = -2_147_483_648, 2_147_483_647
SECOND_MS = 1_000
KEYS_PER_RECORD_MAX = 16_384  # a property text has at most 32,767 bytes
HASH = ord("#")  # between topic and key


@kernel
def positive_hash(value: int) -> int:
    """Return Java's Math.abs, 0 for the one number whose absolute value overflows."""
    return 0 if value == INT_MIN else abs(value)


@kernel
def add_key(out: Rows, n: int, row: Any, topic_hash: int, data: Bytes, start: int, end: int) -> int:
    """Append the key data[start:end] of a record; return the new count."""
    out[n]["key_hash"] = positive_hash(java_hash_on(topic_hash, data, start, end))
    out[n]["phys_offset"] = row["phys_offset"]
    out[n]["store_ms"] = row["store_ms"]
    return n + 1


@kernel
def record_keys(data: Bytes, pos: int, row: Any, out: Rows, n: int) -> int:
    """Append the keys of the record at `pos` to `out`; return the new count."""
    # as in IndexService.buildIndex, a rollback has no keys
    if (row["sys_flag"] & SYS_TRANSACTION_MASK) == SYS_ROLLBACK:
        return n
    topic = pos + np.int64(row["topic_pos"])
    # the hash of `topic#key` is continued from that of `topic#`
    topic_hash = java_hash_on(0, data, topic, topic + row["topic_len"])
    topic_hash = np.int64(np.int32(np.uint32(topic_hash) * np.uint32(31) + np.uint32(HASH)))
    start = pos + np.int64(row["prop_pos"])
    end = start + np.int64(row["prop_len"])
    # the last of equal names applies, so the whole text is read before a key is added
    uniq, uniq_end, keys, keys_end = 0, 0, 0, 0
    while start < end:
        entry_end = find_byte(data, start, end, ENTRY_END)
        name_end = find_byte(data, start, entry_end, NAME_END)
        if name_end + 1 < entry_end:
            if equals(data, start, name_end - start, UNIQ_NAME):
                uniq, uniq_end = name_end + 1, entry_end
            elif equals(data, start, name_end - start, KEYS_NAME):
                keys, keys_end = name_end + 1, entry_end
        start = entry_end + 1
    if uniq < uniq_end:
        n = add_key(out, n, row, topic_hash, data, uniq, uniq_end)
    # KEYS is a list; each word is a key of its own
    while keys < keys_end:
        stop = find_byte(data, keys, keys_end, KEY_END)
        if stop > keys:
            n = add_key(out, n, row, topic_hash, data, keys, stop)
        keys = stop + 1
    return n


@kernel
def collect_keys(
    data: Bytes, pos: int, end: int, log_offset: int, scratch: Rows, out: Rows
) -> tuple[int, int, int]:
    """Read the keys of the records in data[pos:end]; return (count, next pos, STOP_*).

    `scratch` is one SCANNED row; `out` needs room for KEYS_PER_RECORD_MAX more keys at any time.
    """
    n = 0
    row = scratch[0]
    # A record is read only if all its possible keys fit, so none is indexed in part.
    while pos < end and n + KEYS_PER_RECORD_MAX <= out.size:
        size = read_frame(data, pos, end, log_offset, row)
        if size < 0:
            return n, pos, -1 - size
        n = record_keys(data, pos, row, out, n)
        pos += size
        log_offset += size
    return n, pos, STOP_FULL


@kernel
def swap(word: Any) -> Any:
    """Return a 32-bit word with its bytes reversed: to the disk's byte order and back."""
    w = np.uint32(word)
    high = (w << np.uint32(24)) | ((w << np.uint32(8)) & np.uint32(0xFF0000))
    return np.uint32(high | ((w >> np.uint32(8)) & np.uint32(0xFF00)) | (w >> np.uint32(24)))


@kernel
def get_word(words: Words, position: int) -> int:
    """Return the signed 32-bit number in a word."""
    return np.int64(np.int32(swap(words[np.uint64(position)])))


@kernel
def put_word(words: Words, position: int, value: int) -> None:
    """Write a 32-bit number to a word."""
    words[np.uint64(position)] = swap(value)


@kernel
def get_two_words(words: Words, position: int) -> int:
    """Return the signed 64-bit number in two words."""
    low = np.uint64(swap(words[np.uint64(position + 1)]))
    return np.int64((np.uint64(swap(words[np.uint64(position)])) << np.uint64(32)) | low)


@kernel
def put_two_words(words: Words, position: int, value: int) -> None:
    """Write a 64-bit number to two words."""
    words[np.uint64(position)] = swap(np.uint64(value) >> np.uint64(32))
    words[np.uint64(position + 1)] = swap(np.uint64(value) & np.uint64(0xFFFFFFFF))


@kernel
def put_keys(words: Words, slot_count: int, item_count_max: int, keys: Rows) -> int:
    """Add keys to an index file until it is full; return the number of added keys.

    The process may be killed between any two writes. An item is complete before it is counted, and
    counted before its slot names it, so no chain ever breaks; the header names a record last, so
    that a partly indexed record is indexed again.
    """
    # item 0 is never used: a slot with 0 is empty (IndexFile)
    count = max(get_word(words, AT_COUNT), 1)
    # slots with at least one item (IndexHeader.incHashSlotCount)
    used_slots = get_word(words, AT_USED)
    begin_ms = get_two_words(words, AT_BEGIN_MS)
    # the items follow the slots
    items = HEADER_WORDS + slot_count
    n = 0
    while n < keys.size and count < item_count_max:
        key = keys[n]
        slot = HEADER_WORDS + np.int64(key["key_hash"]) % slot_count
        previous = get_word(words, slot)
        if previous <= 0 or previous >= count:  # an empty slot, or one written before a crash
            previous = 0
        # IndexFile keeps the seconds since the first key of the file
        time_diff = (key["store_ms"] - begin_ms) // SECOND_MS if begin_ms > 0 else 0
        position = items + count * ITEM_WORDS
        # 1. the item, which nothing names yet
        put_word(words, position + ITEM_HASH, key["key_hash"])
        put_two_words(words, position + ITEM_PHYS, key["phys_offset"])
        put_word(words, position + ITEM_SECONDS, min(max(time_diff, 0), INT_MAX))
        put_word(words, position + ITEM_PREVIOUS, previous)
        # the first key sets the begin of the file
        if count <= 1:
            put_two_words(words, AT_BEGIN_PHYS, key["phys_offset"])
            put_two_words(words, AT_BEGIN_MS, key["store_ms"])
            begin_ms = key["store_ms"]
        used_slots += 1 if previous == 0 else 0
        count += 1
        n += 1
        # 2. the counters, 3. the slot: from here on a reader finds the item
        put_word(words, AT_USED, used_slots)
        put_word(words, AT_COUNT, count)
        put_word(words, slot, count - 1)
        # 4. the end of the file, only after the last key of a record
        last = n == keys.size or count == item_count_max
        if last or keys[n]["phys_offset"] != key["phys_offset"]:
            put_two_words(words, AT_END_MS, key["store_ms"])
            put_two_words(words, AT_END_PHYS, key["phys_offset"])
    return n


@kernel
def find_key(words: Words, slot_count: int, key_hash: int, span: Any, out: Any) -> int:
    """Follow the chain of a hash; fill `out` with log offsets, newest first; return their number.

    Args:
        span: (begin_ms, end_ms). Times in the file are whole seconds, so an item up to 999 ms
            before the span matches, too.
    """
    count = get_word(words, AT_COUNT)
    begin_ms = get_two_words(words, AT_BEGIN_MS)
    items = HEADER_WORDS + slot_count
    index = get_word(words, HEADER_WORDS + np.int64(key_hash) % slot_count)
    n = 0
    while 0 < index < count and n < out.size:
        position = items + index * ITEM_WORDS
        if position + ITEM_WORDS > words.size:  # damage
            break
        # the seconds of item 1 count from the previous file, so its time is that of the file
        time_ms = begin_ms
        if index > 1:
            time_ms += get_word(words, position + ITEM_SECONDS) * SECOND_MS
        # Several hashes share a slot. The time in the item is rounded down to seconds.
        if (
            get_word(words, position + ITEM_HASH) == key_hash
            and span[0] - SECOND_MS < time_ms <= span[1]
        ):
            out[n] = get_two_words(words, position + ITEM_PHYS)
            n += 1
        previous = get_word(words, position + ITEM_PREVIOUS)
        if previous >= index:  # damage: a chain leads to older items only
            break
        index = previous
    return n
