"""Kernels for names of property entries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from message_store.kernels.names import has_name, has_value

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
