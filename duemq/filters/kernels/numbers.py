"""Parser of common numbers in text. `duemq.filters.java_values` parses every form of Java."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from duemq.filters.layout import ERROR, TRUE, UNDECIDED
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel

PLUS, MINUS, DOT, ZERO, BLANK, LOWER = 43, 45, 46, 48, 32, 32
LETTER_E = 101
WHOLE_DIGITS_MAX = 19  # such a number fits into an u8
MANTISSA_MAX = 1 << 53
POWER_MAX = 22  # 10 ** 22 is exact
EXPONENT_DIGITS_MAX = 4
BYTES_MAX = 1_024  # longer texts are UNDECIDED, to bound the kernel's time
POWERS = np.array([10.0**i for i in range(POWER_MAX + 1)])


@kernel
def is_ascii(data: Bytes, pos: int, end: int) -> bool:
    """Return whether all bytes are below 128."""
    for i in range(pos, end):
        if data[i] >= 128:
            return False
    return True


@kernel
def parse_whole(data: Bytes, pos: int, end: int, maximum: int) -> Any:
    """Return (TRUE, UNDECIDED or ERROR, number) of an Integer or Long."""
    if end - pos > BYTES_MAX or not is_ascii(data, pos, end):  # Java accepts digits of any script
        return UNDECIDED, np.int64(0)
    negative = data[pos] == MINUS
    if negative or data[pos] == PLUS:
        pos += 1
    if pos == end:
        return ERROR, np.int64(0)
    # leading zeros do not count as digits
    while pos < end - 1 and data[pos] == ZERO:
        pos += 1
    if end - pos > WHOLE_DIGITS_MAX:
        return ERROR, np.int64(0)  # too large, or not a number
    value = np.uint64(0)
    for i in range(pos, end):
        digit = np.int64(data[i]) - ZERO
        if digit < 0 or digit > 9:
            return ERROR, np.int64(0)
        value = value * np.uint64(10) + np.uint64(digit)
    # the least number has one more than the largest
    if value > np.uint64(maximum) + np.uint64(negative):
        return ERROR, np.int64(0)
    number = np.int64(value)  # 2 ** 63 wraps to the smallest Long, which negation keeps
    return TRUE, -number if negative else number


@kernel
def parse_digits(data: Bytes, pos: int, end: int) -> Any:
    """Return (value of at most 19 leading digits, position after all leading digits)."""
    value, first = np.uint64(0), pos
    while pos < end and ZERO <= data[pos] <= ZERO + 9:
        # more digits would overflow; the caller refuses them by their count
        if pos - first < WHOLE_DIGITS_MAX:
            value = value * np.uint64(10) + np.uint64(data[pos] - ZERO)
        pos += 1
    return value, pos


@kernel
def parse_exponent(data: Bytes, pos: int, end: int) -> int:
    """Return the exponent in data[pos:end]; 0 if it is empty, 1,000,000 if it is invalid."""
    invalid = np.int64(1_000_000)
    if pos == end:
        return np.int64(0)
    if data[pos] | LOWER != LETTER_E:
        return invalid
    pos += 1
    negative = pos < end and data[pos] == MINUS
    if pos < end and (negative or data[pos] == PLUS):
        pos += 1
    value, stop = parse_digits(data, pos, end)
    if stop != end or stop == pos or stop - pos > EXPONENT_DIGITS_MAX:
        return invalid
    return -np.int64(value) if negative else np.int64(value)


@kernel
def parse_double(data: Bytes, pos: int, end: int) -> Any:
    """Return (TRUE, number) if one exact operation yields the number, else (UNDECIDED, 0.0)."""
    if end - pos > BYTES_MAX:
        return UNDECIDED, 0.0
    # Double.parseDouble trims blanks and control characters
    while pos < end and data[pos] <= BLANK:
        pos += 1
    while end > pos and data[end - 1] <= BLANK:
        end -= 1
    negative = pos < end and data[pos] == MINUS
    if pos < end and (negative or data[pos] == PLUS):
        pos += 1
    # The mantissa has the digits before and after the dot, as one whole number.
    mantissa, stop = parse_digits(data, pos, end)
    digits, scale = stop - pos, np.int64(0)
    if stop < end and data[stop] == DOT:
        fraction, after = parse_digits(data, stop + 1, end)
        scale = np.int64(after - stop - 1)
        digits += scale
        if digits <= WHOLE_DIGITS_MAX:
            # shift the whole part by the digits after the dot
            for _ in range(scale):
                mantissa *= np.uint64(10)
            mantissa += fraction
        stop = after
    power = parse_exponent(data, stop, end) - scale
    # Clinger's fast path: exact operands and one operation round correctly
    certain = 0 < digits <= WHOLE_DIGITS_MAX and mantissa <= np.uint64(MANTISSA_MAX)
    if not certain or power > POWER_MAX or power < -POWER_MAX:
        return UNDECIDED, 0.0
    value = np.float64(mantissa)
    value = value * POWERS[power] if power >= 0 else value / POWERS[-power]
    return TRUE, -value if negative else value


@kernel
def compare_doubles(left: float, right: float) -> int:
    """Return -1, 0 or 1 as Double.compareTo, for numbers other than NaN."""
    if left < right:
        return -1
    if left > right:
        return 1
    # Double.compareTo orders -0.0 before 0.0
    if left == 0.0:
        left_sign, right_sign = math.copysign(1.0, left), math.copysign(1.0, right)
        return -1 if left_sign < right_sign else 1 if left_sign > right_sign else 0
    return 0
