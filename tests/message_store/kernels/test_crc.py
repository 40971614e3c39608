"""The CRC-32 kernels compared with zlib."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.kernels import bytes as byte_kernels
from message_store.kernels import crc as kernels

WAYS = [
    kernels.crc32_by_tables,
    pytest.param(
        kernels.crc32_by_folds,
        marks=pytest.mark.skipif(not kernels.can_fold(), reason="no PCLMULQDQ here"),
    ),
]


@pytest.mark.parametrize("crc32", WAYS)
@given(st.binary(max_size=400), st.integers(0, 40))
def test_crc32(crc32: Callable[..., Any], data: bytes, pos: int) -> None:
    pos = min(pos, len(data))
    found = crc32(np.frombuffer(data + b"tail", np.uint8).copy(), pos, len(data) - pos)
    assert found == zlib.crc32(data[pos:])


@pytest.mark.parametrize("crc32", WAYS)
def test_crc32_at_step_boundaries(crc32: Callable[..., Any]) -> None:
    data = np.random.default_rng(5).integers(0, 256, 70_000).astype(np.uint8)
    for size in [*range(0, 150), 255, 256, 257, 4_095, 4_096, 4_097, 65_537]:
        assert crc32(data, 3, size) == zlib.crc32(data[3 : 3 + size].tobytes()), size


def test_kernels_use_the_fastest_implementation() -> None:
    fastest = kernels.crc32_by_folds if kernels.can_fold() else kernels.crc32_by_tables
    assert byte_kernels.crc32 is fastest


@pytest.mark.parametrize(
    ("name", "features", "expected"),
    [
        ("generic", "", False),
        ("generic", "+sse2,+pclmul", True),
        ("", "+sse2", False),
        ("znver1", None, False),
    ],
)
def test_another_target_than_this_processor(
    monkeypatch: pytest.MonkeyPatch, name: str, features: str | None, expected: bool
) -> None:
    monkeypatch.setattr(kernels.config, "CPU_NAME", name)  # type: ignore[attr-defined]
    monkeypatch.setattr(kernels.config, "CPU_FEATURES", features)  # type: ignore[attr-defined]
    assert kernels.can_fold() is expected
