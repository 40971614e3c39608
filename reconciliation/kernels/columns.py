"""Compiled loops that turn log bytes into columns.

follow      from record to record without decoding: where a chain of them leads
spans       where the values of known properties lie, and one hash of all the others
numbers     decimal values of one property
gather      values of one property, back to back, as Arrow keeps text
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes, copy, get_i4, get_i8
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8
from message_store.kernels.properties import find_byte, parse_number
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic
from message_store.layout import SYS_BORN_IPV6, SYS_STORE_IPV6
from message_store.topics import TopicArrays

Rows = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
SEEN_MAX = 64  # properties of one record among which equal names are looked for


@kernel
def follow(data: Bytes, pos: int, until: int, base: int, row: Any) -> Any:
    """Go from record to record until one starts at or behind `until`.

    Args:
        data: data[0] is log offset `base`.
    Returns:
        (where it stopped, 0), or -1 - STOP_* of `read_frame` in place of the 0.
    """
    while pos < until:
        size = read_frame(data, pos, data.size, base + pos, row)
        if size < 0:
            return pos, size
        pos += size
    return pos, 0


@kernel
def name_rows(data: Bytes, base: int, rows: Rows, arrays: TopicArrays) -> None:
    """Find the topics of those rows that have none yet."""
    for i in range(rows.size):
        if rows[i]["topic_index"] < 0:
            pos = rows[i]["phys_offset"] - base + rows[i]["topic_pos"]
            rows[i]["topic_index"] = find_topic(data, pos, rows[i]["topic_len"], arrays)


@kernel
def heads(data: Bytes, base: int, rows: Rows, out: Any) -> None:
    """Fill (n, 4) i8: born time, flag, times reconsumed, body CRC."""
    for i in range(rows.size):
        pos = rows[i]["phys_offset"] - base
        sys_flag = rows[i]["sys_flag"]
        extra = 12 if sys_flag & SYS_BORN_IPV6 else 0
        extra += 12 if sys_flag & SYS_STORE_IPV6 else 0
        out[i, 0] = get_i8(data, pos + 40)
        out[i, 1] = get_i4(data, pos + 16)
        out[i, 2] = get_i4(data, pos + 72 + extra)
        out[i, 3] = get_i4(data, pos + 8)


@kernel
def hash_bytes(data: Bytes, pos: int, size: int) -> Any:
    """Return a hash of data[pos:pos+size]. `reconciliation.columns.hash_text` is its twin."""
    factor = np.uint64(0x9E3779B97F4A7C15)
    value = np.uint64(size) * factor
    while size > 0:
        if pos + 8 <= data.size:
            word = load_u8(data, np.int64(pos))
            if size < 8:
                word &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
        else:
            word = np.uint64(0)
            for i in range(min(size, 8)):
                word |= np.uint64(data[pos + i]) << np.uint64(8 * i)
        value = (value ^ word) * factor
        value ^= value >> np.uint64(32)
        pos += 8
        size -= 8
    return value


@kernel
def index_of(names: Words, value: Any) -> int:
    """Return where a name's hash stands, -1 if nowhere."""
    for i in range(names.size):
        if names[i] == value:
            return i
    return -1


@kernel
def place_of(seen: Words, count: int, name: Any) -> int:
    """Return where an earlier entry of the same name stands, `count` if there is none."""
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
    """Find the last non-empty values of known properties, as `decode_properties` reads them.

    Args:
        names: (k,) hashes of the known names; the first `hidden` of them are a broker's, and not
            part of the hash.
        seen: (2 * SEEN_MAX,) scratch.
        out: (n, k, 2) i8, zeros: start and end in data; 0 and 0: absent.
        sums: (n,), zeros: one hash of all other names and values, whatever their order.
    """
    for i in range(rows.size):
        pos = rows[i]["phys_offset"] - base + rows[i]["prop_pos"]
        end = pos + rows[i]["prop_len"]
        count = 0
        while pos < end:
            stop = find_byte(data, pos, end, 2)
            name_end = find_byte(data, pos, stop, 1)
            if name_end > pos and name_end + 1 < stop:
                name = hash_bytes(data, pos, name_end - pos)
                at = index_of(names, name)
                if at >= 0:
                    out[i, at, 0], out[i, at, 1] = name_end + 1, stop
                if at < 0 or at >= hidden:
                    value = hash_bytes(data, name_end + 1, stop - name_end - 1)
                    mixed = (name ^ (value >> np.uint64(29)) ^ value) * np.uint64(
                        0x9E3779B97F4A7C15
                    )
                    sums[i] += mixed
                    place = place_of(seen, count, name)
                    if place < count:  # the last of equal names counts
                        sums[i] -= seen[2 * place + 1]
                    if place < SEEN_MAX:
                        seen[2 * place], seen[2 * place + 1] = name, mixed
                        count = max(count, place + 1)
            pos = stop + 1


@kernel
def numbers(data: Bytes, found: Any, absent: int, out: Any) -> None:
    """Fill (n,) i8 with the decimal values of (n, 2) spans; `absent` where there is no number."""
    for i in range(out.size):
        out[i] = absent
        if found[i, 0] < found[i, 1]:
            out[i] = parse_number(data, found[i, 0], found[i, 1], absent)


@kernel
def gather(data: Bytes, found: Any, ends: Any, out: Bytes) -> None:
    """Copy (n, 2) spans back to back; ends: (n + 1,) i4 says where each begins in `out`."""
    for i in range(found.shape[0]):
        copy(out, ends[i], data, found[i, 0], found[i, 1] - found[i, 0])
