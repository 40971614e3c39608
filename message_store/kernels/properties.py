"""Compiled reader of property texts; `message_store.log.properties` is its Python twin."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8
from message_store.kernels.names import find_byte, is_named
from message_store.layout import DELAY_ILLEGAL, ENTRY_END, NAME_END

TAGS_NAME = np.frombuffer(b"TAGS", np.uint8).copy()
DELAY_NAME = np.frombuffer(b"DELAY", np.uint8).copy()
MOVED_NAME = np.frombuffer(b"DELAy", np.uint8).copy()
NUMBER_DIGITS_MAX = 18  # such a number fits into 64 bits
POWERS_31 = np.array([31**n % 2**32 for n in range(9)], np.uint32)
PLUS, MINUS, ZERO = 43, 45, 48


@kernel
def equals(data: Bytes, pos: int, size: int, name: Bytes) -> bool:
    """Return whether data[pos:pos+size] is `name`."""
    return size == name.size and is_named(data, pos, name)


@kernel
def java_hash(data: Bytes, pos: int, end: int) -> int:
    """Return String.hashCode of UTF-8 text (well-formed; see `duemq_common.text.java_hash`)."""
    return java_hash_on(0, data, pos, end)


@kernel
def eight_units(word: Any) -> Any:
    """Return the part of eight ASCII characters in a Java hash; the lowest byte is the first."""
    total = np.uint32(0)
    for i in range(8):
        total += np.uint32((word >> np.uint64(8 * i)) & np.uint64(255)) * POWERS_31[7 - i]
    return total


@kernel
def java_hash_on(start: int, data: Bytes, pos: int, end: int) -> int:
    """Return String.hashCode of a text whose beginning has the hash `start`."""
    # decode UTF-8 to UTF-16 units, which Java hashes: h = h * 31 + unit
    h = np.uint32(start)
    # eight bytes of ASCII a step: their products do not depend on each other
    while pos + 8 <= end:
        word = load_u8(data, np.int64(pos))
        if word & np.uint64(0x8080808080808080) != np.uint64(0):
            break
        h = h * POWERS_31[8] + eight_units(word)
        pos += 8
    while pos < end:
        byte = np.uint32(data[pos])
        # one byte: ASCII
        if byte < 0x80:
            h = h * np.uint32(31) + byte
            pos += 1
        # two bytes: U+0080 to U+07FF
        elif byte < 0xE0 and pos + 1 < end:
            unit = ((byte & np.uint32(0x1F)) << np.uint32(6)) | (data[pos + 1] & np.uint32(0x3F))
            h = h * np.uint32(31) + unit
            pos += 2
        # three bytes: U+0800 to U+FFFF, one unit
        elif byte < 0xF0 and pos + 2 < end:
            unit = (
                ((byte & np.uint32(0x0F)) << np.uint32(12))
                | ((data[pos + 1] & np.uint32(0x3F)) << np.uint32(6))
                | (data[pos + 2] & np.uint32(0x3F))
            )
            h = h * np.uint32(31) + unit
            pos += 3
        # four bytes: above U+FFFF, two units (a surrogate pair)
        elif pos + 3 < end:
            point = (
                ((byte & np.uint32(0x07)) << np.uint32(18))
                | ((data[pos + 1] & np.uint32(0x3F)) << np.uint32(12))
                | ((data[pos + 2] & np.uint32(0x3F)) << np.uint32(6))
                | (data[pos + 3] & np.uint32(0x3F))
            ) - np.uint32(0x10000)
            high = np.uint32(0xD800) + (point >> np.uint32(10))
            h = h * np.uint32(31) + high
            h = h * np.uint32(31) + np.uint32(0xDC00) + (point & np.uint32(0x3FF))
            pos += 4
        # a truncated character: Java decodes it as U+FFFD
        else:
            h = h * np.uint32(31) + np.uint32(0xFFFD)
            pos += 1
    return np.int64(np.int32(h))


@kernel
def are_digits(word: Any) -> bool:
    """Return whether all eight bytes are decimal digits."""
    # A digit is 0x30 to 0x39: its high half is 3, and remains 3 after 6 is added to the byte.
    tops, six = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x0606060606060606)
    both = (word & tops) | (((word + six) & tops) >> np.uint64(4))
    return both == np.uint64(0x3333333333333333)


@kernel
def eight_digits(word: Any) -> int:
    """Return the number of eight decimal digits; the lowest byte is the first digit."""
    # combine neighbours: digits to pairs, pairs to fours, fours to the number
    word &= np.uint64(0x0F0F0F0F0F0F0F0F)
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    word = (word * np.uint64(10_000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return np.int64(word)


@kernel
def parse_number(data: Bytes, pos: int, end: int, illegal: int) -> int:
    """Return the decimal number in data[pos:end], or `illegal` (empty, too long, not digits)."""
    negative = False
    if pos < end and (data[pos] == MINUS or data[pos] == PLUS):
        negative = data[pos] == MINUS
        pos += 1
    # Long.parseLong would accept 19 digits up to its maximum; no property needs them
    if pos >= end or end - pos > NUMBER_DIGITS_MAX:
        return illegal
    value = np.int64(0)
    # times have 13 digits: one step of eight, then five single ones
    while end - pos >= 8:
        word = load_u8(data, np.int64(pos))
        if not are_digits(word):
            return illegal
        value = value * 100_000_000 + eight_digits(word)
        pos += 8
    while pos < end:
        digit = np.int64(data[pos]) - ZERO
        if digit < 0 or digit > 9:
            return illegal
        value = value * 10 + digit
        pos += 1
    return -value if negative else value


@kernel
def parse_level(data: Bytes, pos: int, end: int) -> int:
    """Return a DELAY value as a 32-bit number, or DELAY_ILLEGAL."""
    value = parse_number(data, pos, end, DELAY_ILLEGAL)
    # Integer.parseInt fails beyond 32 bits
    if value > 2_147_483_647 or value < -2_147_483_647:
        return DELAY_ILLEGAL
    return value


@kernel
def find_value(data: Bytes, pos: int, size: int, name: Bytes) -> Any:
    """Return (start, end) of the last non-empty value of `name`; (0, 0) if there is none."""
    end = pos + size
    start, stop = 0, 0
    while pos < end:
        entry_end = find_byte(data, pos, end, ENTRY_END)
        name_end = find_byte(data, pos, entry_end, NAME_END)
        # a later entry of the same name replaces an earlier one, as in a Java map
        if name_end + 1 < entry_end and equals(data, pos, name_end - pos, name):
            start, stop = name_end + 1, entry_end
        pos = entry_end + 1
    return start, stop


@kernel
def find_tags_and_level(data: Bytes, pos: int, size: int) -> Any:
    """Return (Java hash of TAGS or 0, DELAY as a number or 0 or DELAY_ILLEGAL).

    Without DELAY, DELAy is read instead: the name in records that were transferred to another
    service.
    """
    end = pos + size
    tags_hash, level, moved = np.int64(0), np.int64(0), np.int64(0)
    while pos < end:
        entry_end = find_byte(data, pos, end, ENTRY_END)
        name_end = find_byte(data, pos, entry_end, NAME_END)
        if name_end + 1 < entry_end:
            if equals(data, pos, name_end - pos, TAGS_NAME):
                tags_hash = java_hash(data, name_end + 1, entry_end)
            elif equals(data, pos, name_end - pos, DELAY_NAME):
                level = parse_level(data, name_end + 1, entry_end)
            elif equals(data, pos, name_end - pos, MOVED_NAME):
                moved = parse_level(data, name_end + 1, entry_end)
        pos = entry_end + 1
    # DELAY wins over DELAy, in any order of the two
    return tags_hash, level if level != 0 else moved
