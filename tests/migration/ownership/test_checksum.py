"""Checksum of a set of messages, which is stored in records of the log."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.ownership_projection import CHECKSUM_MASK
from duemq_migration.ownership.checksum import checksum
from timer_store.layout import DUE_MS_MAX

WORD = (1 << 64) - 1
messages = st.lists(
    st.tuples(st.integers(0, (1 << 63) - 1), st.integers(-5, 1 << 50)), unique=True, max_size=20
)


def naive(offset: int, due_ms: int) -> int:
    due_ms = min(max(due_ms, 1), DUE_MS_MAX)
    mixed = (offset * 0x9E3779B97F4A7C15 & WORD) ^ (due_ms * 0xC2B2AE3D27D4EB4F & WORD)
    mixed ^= mixed >> 29
    mixed = mixed * 0xBF58476D1CE4E5B9 & WORD
    return mixed ^ mixed >> 32


def sum_of(pairs: list[tuple[int, int]]) -> int:
    return checksum(*np.array(pairs, np.int64).reshape(-1, 2).T)


@given(messages, messages)
def test_it_is_a_sum_of_hashes(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    assert sum_of(first) == sum(naive(*pair) for pair in first) & CHECKSUM_MASK
    assert sum_of(first + second) == (sum_of(first) + sum_of(second)) & CHECKSUM_MASK
    assert sum_of(first[::-1]) == sum_of(first)


def test_records_of_former_versions_have_the_same_checksum() -> None:
    pairs = [(0, 1_700_000_000_000), (1_234, 5), (1 << 40, -3)]
    assert sum_of(pairs) == 4_030_916_153_448_402_518
