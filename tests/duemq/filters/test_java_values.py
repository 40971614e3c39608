"""Numbers as Java reads and compares them."""

from __future__ import annotations

import math

import pytest

from duemq.filters.java_values import (
    INTEGER_MAX,
    LONG_MAX,
    compare_doubles,
    parse_boolean,
    parse_double,
    parse_whole,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("+5", 5),
        ("-2147483648", -2147483648),
        ("000000000005", 5),
        ("٣٣", 33),
        ("0" * 5_000 + "7", 7),
    ],
)
def test_whole_number(text: str, value: int) -> None:
    assert parse_whole(text, INTEGER_MAX) == value


@pytest.mark.parametrize(
    "text", ["", "-", "5.0", " 5", "5 ", "5\n", "1_0", "--5", "2147483648", "𝟓", "9" * 5_000, "5L"]
)
def test_no_integer(text: str) -> None:
    with pytest.raises(ValueError, match="For input string"):
        parse_whole(text, INTEGER_MAX)


def test_a_long_has_64_bits() -> None:
    assert parse_whole("-9223372036854775808", LONG_MAX) == -(1 << 63)
    with pytest.raises(ValueError, match="9223372036854775808"):
        parse_whole("9223372036854775808", LONG_MAX)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0),
        (" 5.\t", 5.0),
        (".5e1D", 5.0),
        ("5f", 5.0),
        ("-1e400", -math.inf),
        ("0x1.8p1", 3.0),
        ("-0X.8P+1d", -1.0),
        ("0x1p99999", math.inf),
        ("-Infinity", -math.inf),
        ("\x005", 5.0),
    ],
)
def test_double(text: str, value: float) -> None:
    assert parse_double(text) == value


@pytest.mark.parametrize(
    "text", ["", "inf", "nan", "1_0", "5L", ".", "0x1", "0x.p1", "٣", "5 5", "NaNd"]
)
def test_no_double(text: str) -> None:
    with pytest.raises(ValueError, match=r"String|For input"):
        parse_double(text)


def test_order_of_doubles() -> None:
    order = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, parse_double("+NaN")]
    for i, left in enumerate(order):
        for j, right in enumerate(order):
            assert compare_doubles(left, right) == (i > j) - (i < j)


def test_booleans() -> None:
    assert [parse_boolean(text) for text in ("true", "TRUE", "True", " true", "1")] == [
        True,
        True,
        True,
        False,
        False,
    ]
