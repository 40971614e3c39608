"""Kernels for names of property entries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store.kernels.names import find_byte, has_name, has_value

NAME = b"NAME_OF_ENTRY"
entries = st.one_of(
    st.binary(max_size=20),
    st.builds(lambda cut, value: NAME[:cut] + b"\x01" + value, st.integers(0, 13), st.binary()),
)


@given(entries, st.integers(0, 3))
def test_entries_with_a_name_and_with_a_value(entry: bytes, start: int) -> None:
    data = np.frombuffer(b"x" * start + entry + b"\x02" + NAME + b"\x01v", np.uint8)
    name, end = np.frombuffer(NAME, np.uint8), start + len(entry)
    assert has_name(data, start, end, name) == entry.startswith(NAME + b"\x01")
    assert has_value(data, start, end, name) == (
        entry.startswith(NAME + b"\x01") and len(entry) > len(NAME) + 1
    )


@given(
    # bytes that differ by one, or in the highest bit, from those that are searched for
    st.lists(st.sampled_from([0, 1, 2, 3, 127, 128, 129, 130, 254, 255]), max_size=40),
    st.integers(0, 40),
    st.sampled_from([0, 1, 2, 128, 255]),
)
def test_the_first_byte_is_found_in_the_range(values: list[int], pos: int, byte: int) -> None:
    data, pos = bytes(values), min(pos, len(values))
    position = data.find(bytes([byte]), pos)
    padded = np.frombuffer(data + bytes([byte]) * 9, np.uint8)
    assert find_byte(padded, pos, len(data), byte) == (position if position >= 0 else len(data))
