"""Kernels that parse property texts, compared with naive implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.text import java_hash
from message_store.kernels import properties as kernels
from message_store.layout import DELAY_ILLEGAL
from message_store.log.properties import decode_properties
from tests.message_store.kernels import naive

ILLEGAL = -(1 << 62)
names = st.sampled_from(["TAGS", "DELAY", "KEYS", "UNIQ_KEY", "TAG", "TAGSX", "é"])
values = st.text(
    alphabet=st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8
)
numbers = st.integers(-(10**20), 10**20).map(str) | st.sampled_from(
    ["", "+", "-", "+5", "-0", "007", "3 ", "1e3", "２", "99999999999999999999", "2147483648"]
)
texts = st.lists(st.tuples(names, values | numbers), max_size=6).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
)
endings = st.sampled_from(["", "\x02", "\x02\x02", "\x02KEYS", "\x02KEYS\x01", "\x02\x01x"])


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def padded(text: bytes, before: int = 3) -> np.ndarray:
    """Return the text between bytes that must not be read."""
    return array(b"x" * before + text + b"TAGS\x01no\x02")


@given(st.text(max_size=40))
def test_java_hash_of_any_text(text: str) -> None:
    if any("\ud800" <= c <= "\udfff" for c in text):
        return
    data = text.encode()
    assert kernels.java_hash(padded(data), 3, 3 + len(data)) == java_hash(text)


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_java_hash_continues_from_a_hash(first: str, second: str) -> None:
    data = second.encode()
    made = kernels.java_hash_on(java_hash(first), padded(data), 3, 3 + len(data))
    assert made == java_hash(first + second)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TagA", 2_598_919),
        ("refund", -934_813_832),
        ("order-created", -392_709_271),
        ("\u5ef6\u8fdf", 790_441),
        ("", 0),
        ("\U0001f600", 1_772_899),
    ],
)
def test_known_hashes(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert kernels.java_hash(padded(text.encode()), 3, 3 + len(text.encode())) == value


@given(st.binary(max_size=12))
def test_java_hash_reads_only_the_range(data: bytes) -> None:
    made = kernels.java_hash(array(data + b"\0"), 0, len(data))
    assert kernels.java_hash(array(data + b"\xff"), 0, len(data)) == made


@given(numbers | values)
def test_parse_number(text: str) -> None:
    data = text.encode()
    made = kernels.parse_number(padded(data), 3, 3 + len(data), ILLEGAL)
    assert made == naive.parse_number(text, ILLEGAL)


@given(numbers | values)
def test_parse_level(text: str) -> None:
    data = text.encode()
    assert kernels.parse_level(padded(data), 3, 3 + len(data)) == naive.parse_level(text)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("3", 3),
        ("+3", 3),
        ("-3", -3),
        ("", DELAY_ILLEGAL),
        ("x", DELAY_ILLEGAL),
        ("2147483647", 2_147_483_647),
        ("2147483648", DELAY_ILLEGAL),
        ("03", 3),
    ],
)
def test_known_levels(text: str, level: int) -> None:
    assert kernels.parse_level(padded(text.encode()), 3, 3 + len(text)) == level


@given(texts, endings, names)
def test_find_value(text: str, ending: str, name: str) -> None:
    data = (text + ending).encode()
    block = padded(data)
    start, end = kernels.find_value(block, 3, len(data), array(name.encode()))
    assert block[start:end].tobytes() == naive.find_value(data, name.encode())
    assert block[start:end].tobytes().decode() == decode_properties(data).get(name, "")


@given(texts, endings)
def test_find_tags_and_level(text: str, ending: str) -> None:
    data = (text + ending).encode()
    made = kernels.find_tags_and_level(padded(data), 3, len(data))
    assert made == naive.tags_and_level(data)


@given(st.binary(max_size=60))
def test_parsing_any_bytes_reads_only_the_range(data: bytes) -> None:
    text = np.frombuffer(data + b"\x02TAGS\x01a\x02", np.uint8)
    other = np.frombuffer(data + b"\x02TAGS\x01b\x02", np.uint8)
    size = len(data)
    assert kernels.find_tags_and_level(text, 0, size) == kernels.find_tags_and_level(other, 0, size)
