"""Places of values in property texts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.filters.kernels.values import find_in_words, find_values
from message_store.log.properties import decode_properties

NAMES = (b"a", b"ab", b"c")
PIECES = (b"a", b"b", b"c", b"\x01", b"\x02", b"\xff")


@given(st.lists(st.sampled_from(PIECES)))
def test_values_are_those_of_the_decoded_text(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    data, places = np.frombuffer(b"##" + text + b"a\x01", np.uint8), np.ones((3, 2), np.int64)
    names = np.frombuffer(b"".join(NAMES), np.uint8)
    find_values(data, 2, 2 + len(text), names, np.array([0, 1, 3, 4], np.int64), places)
    found = {
        name.decode(): data[start:end].tobytes().decode("utf-8", "replace")
        for name, (start, end) in zip(NAMES, places.tolist(), strict=True)
        if start != end
    }
    decoded = decode_properties(text)
    assert found == {name: decoded[name] for name in ("a", "ab", "c") if name in decoded}


@given(st.binary(max_size=40), st.integers(0, 3), st.sampled_from((0, 1, 2, 255)))
def test_a_byte_is_found_in_words_and_after_them(data: bytes, pos: int, byte: int) -> None:
    pos = min(pos, len(data))
    padded = np.frombuffer(data + bytes([byte]) * 9, np.uint8)
    found = data.find(byte, pos)
    assert find_in_words(padded, pos, len(data), byte) == (len(data) if found < 0 else found)
