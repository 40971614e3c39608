"""Text functions: the Java hash of long texts, and its cost; sizes and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.text import BLOCK_UNITS, PART_BYTES, binary_size, duration, java_hash
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


@pytest.mark.parametrize("more", [-BLOCK_UNITS, -1, 0, 1, BLOCK_UNITS])
def test_the_hash_of_a_text_of_several_parts(more: int) -> None:
    text = "a\ud800\uffffz" * (2 * PART_BYTES // 4) + "tail"
    text = text[: 2 * PART_BYTES // 2 + more]
    assert java_hash(text) == naive_hash(text)


@pytest.mark.finding("3S7")
def test_the_hash_of_a_long_text_is_cheap() -> None:
    assert cost_ms(lambda: java_hash("x" * (1 << 20)), enough_ms=20) <= 20


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (50 << 30, "50.0 GiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert binary_size(size) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999.4, "999 ms"),
        (1_000, "1 s"),
        (59_900, "59 s"),
        (200_000, "3 min 20 s"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_durations_have_two_units(ms: float, text: str) -> None:
    assert duration(ms) == text
