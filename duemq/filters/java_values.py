"""Java's conversions and comparisons of Integer, Long, Double and Boolean, for filters."""

from __future__ import annotations

import math
import re
from typing import Final

INTEGER_MAX: Final = 0x7FFF_FFFF
LONG_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
DIGITS_MAX: Final = 64  # after leading zeros; a longer number is out of every range
BLANKS: Final = "".join(map(chr, range(0x21)))  # String.trim

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)


def parse_whole(text: str, maximum: int) -> int:
    """Parse an integer as Integer.valueOf or Long.valueOf does.

    As in Java, digits of any script are valid if they are in the Basic Multilingual Plane.

    Args:
        maximum: INTEGER_MAX or LONG_MAX.

    Raises:
        ValueError: Java throws NumberFormatException.
    """
    if _WHOLE.fullmatch(text) is None or max(text) > "\uffff":
        raise ValueError(f'For input string: "{text}"')
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > DIGITS_MAX:
        raise ValueError(f'For input string: "{text}"')
    value = int(digits or "0")
    if text[0] == "-":
        value = -value
    if not -maximum - 1 <= value <= maximum:
        raise ValueError(f'For input string: "{text}"')
    return value


def parse_double(text: str) -> float:
    """Parse a number as Double.valueOf does.

    Raises:
        ValueError: Java throws NumberFormatException.
    """
    trimmed = text.strip(BLANKS)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed if trimmed[-1] in "Nny" else trimmed.rstrip("fFdD"))
    if _HEXADECIMAL.fullmatch(trimmed):
        mantissa, mark, exponent = trimmed.lower().partition("p")
        try:
            return float.fromhex(mantissa + mark + exponent.rstrip("fd"))
        except OverflowError:
            return -math.inf if trimmed[0] == "-" else math.inf
    raise ValueError(f'For input string: "{text}"' if trimmed else "empty String")


def parse_boolean(text: str) -> bool:
    """Parse a truth value as Boolean.valueOf does."""
    return text.lower() == "true"


def compare_numbers(left: int, right: int) -> int:
    """Return -1, 0 or 1, as Long.compareTo."""
    return (left > right) - (left < right)


def compare_doubles(left: float, right: float) -> int:
    """Return -1, 0 or 1, as Double.compareTo: NaN is the largest number, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return (
            int(math.copysign(1.0, right) < 0) - int(math.copysign(1.0, left) < 0)
            if not left
            else 0
        )
    return math.isnan(left) - math.isnan(right)
