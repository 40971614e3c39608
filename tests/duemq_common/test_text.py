"""Text functions: the Java hash of long texts, and its cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.text import BLOCK_UNITS, java_hash
from tests.support.processor_time import cost_ms


def naive_hash(text: str) -> int:
    units, value = text.encode("utf-16-be", "surrogatepass"), 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@given(st.text(max_size=40), st.integers(0, 3 * BLOCK_UNITS))
def test_the_hash_of_a_text_of_any_length(text: str, count: int) -> None:
    long = "\uffff\ud800" * count + text
    assert java_hash(long) == naive_hash(long)
    assert java_hash("hello") == 99_162_322


@pytest.mark.finding("3S7")
def test_the_hash_of_a_long_text_is_cheap() -> None:
    assert cost_ms(lambda: java_hash("x" * (1 << 20)), enough_ms=20) <= 20
