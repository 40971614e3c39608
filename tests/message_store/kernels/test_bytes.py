"""Kernels for numbers, digits, copies and CRC-32 compared with Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.kernels import bytes as kernels

GUARD = 0xEE


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def room(size: int) -> np.ndarray:
    return np.full(size, GUARD, np.uint8)


@pytest.mark.parametrize(
    ("put", "get", "size"),
    [
        (kernels.put_i2, kernels.get_i2, 2),
        (kernels.put_i4, kernels.get_i4, 4),
        (kernels.put_i8, kernels.get_i8, 8),
    ],
)
@given(data=st.data())
def test_big_endian_numbers(
    put: Callable[..., Any], get: Callable[..., Any], size: int, data: st.DataObject
) -> None:
    half = 1 << (8 * size - 1)
    value = data.draw(st.integers(-half, half - 1))
    pos = data.draw(st.integers(0, 9))
    out = room(pos + size + 3)
    put(out, pos, value)
    expected = value.to_bytes(size, "big", signed=True)
    assert out.tobytes() == bytes([GUARD]) * pos + expected + bytes([GUARD]) * 3
    assert get(out, pos) == value


@given(st.binary(min_size=8, max_size=8))
def test_unsigned_numbers(data: bytes) -> None:
    assert kernels.get_u4(array(data), 0) == int.from_bytes(data[:4], "big")
    assert int(kernels.get_u8(array(data), 0)) == int.from_bytes(data, "big")


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(-3, 40), st.integers(0, 5))
def test_copy(data: bytes, pos: int, size: int, out_pos: int) -> None:
    size = min(size, len(data) - pos)
    out = room(50)
    kernels.copy(out, out_pos, array(data + b"\0"), pos, size)
    expected = bytearray(room(50).tobytes())
    if size > 0:
        expected[out_pos : out_pos + size] = data[pos : pos + size]
    assert out.tobytes() == bytes(expected)


@pytest.mark.parametrize(
    "value",
    [0, 9, 10, -1, -9, -10, 10**18, -(10**18), 10**18 - 1, 2**63 - 1, -(2**63 - 1), -(2**63)],
)
def test_digits_at_limits(value: int) -> None:
    check_digits(value)


@given(st.integers(-(2**63), 2**63 - 1))
def test_digits(value: int) -> None:
    check_digits(value)


def check_digits(value: int) -> None:
    expected = str(value).encode()
    out = room(30)
    assert kernels.digits_len(value) == len(expected)
    assert kernels.put_digits(out, 2, value) == 2 + len(expected)
    assert out.tobytes()[2:].rstrip(bytes([GUARD])) == expected
