"""Numbers that the kernels decide, against `java_values`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.filters import java_values
from duemq.filters.java_values import INTEGER_MAX, LONG_MAX
from duemq.filters.kernels.numbers import compare_doubles, parse_double, parse_whole
from duemq.filters.layout import ERROR, TRUE, UNDECIDED

TEXTS = st.one_of(
    st.text(st.sampled_from("0123456789+-.eE x٣"), min_size=1, max_size=30),
    st.integers().map(str),
    st.floats().map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
)


def data_of(text: str) -> tuple[np.ndarray, int, int]:
    data = np.frombuffer(b"7" + text.encode() + b"7", np.uint8)
    return data, 1, data.size - 1


@given(TEXTS, st.sampled_from((INTEGER_MAX, LONG_MAX)))
def test_whole_numbers(text: str, maximum: int) -> None:
    state, value = parse_whole(*data_of(text), maximum)
    try:
        expected = java_values.parse_whole(text, maximum)
    except ValueError:
        assert state in (ERROR, UNDECIDED)
        return
    assert (state, value) == (TRUE, expected) or state == UNDECIDED
    assert state == TRUE or not text.isascii()


@given(TEXTS)
def test_doubles(text: str) -> None:
    state, value = parse_double(*data_of(text))
    if state == UNDECIDED:
        return
    expected = java_values.parse_double(text)
    assert (value, math.copysign(1, value)) == (expected, math.copysign(1, expected))


@pytest.mark.parametrize("text", ["5", "-0", "19.99", " 1e22 ", "123456789012345.6", "+.5E-3"])
def test_usual_doubles_are_decided(text: str) -> None:
    assert parse_double(*data_of(text))[0] == TRUE


@pytest.mark.parametrize("text", ["1e23", "0x1p1", "5d", "NaN", "9007199254740993", ".", "5e", "x"])
def test_what_may_be_rounded_or_is_rare_is_undecided(text: str) -> None:
    assert parse_double(*data_of(text))[0] == UNDECIDED


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_order(left: float, right: float) -> None:
    assert compare_doubles(left, right) == java_values.compare_doubles(left, right)
