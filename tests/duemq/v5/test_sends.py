"""Queue of a message group: same choice as Apache's proxy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.v5.sends import consistent_hash
from duemq_common.text import java_hash

GUAVA = (0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83)
HASHES = st.integers(-(1 << 31), (1 << 31) - 1)


def test_consistent_hash_equals_guavas() -> None:
    """Hashing.consistentHash(0 to 19, 100) of Guava 32."""
    assert tuple(consistent_hash(value, 100) for value in range(len(GUAVA))) == GUAVA


@pytest.mark.parametrize(
    ("group", "buckets"),
    [
        ("a", {1: 0, 3: 0, 8: 0, 1_000: 346}),
        ("message-group", {1: 0, 3: 0, 8: 7, 1_000: 73}),
        ("order-4711", {1: 0, 3: 0, 8: 3, 1_000: 400}),
        ("äö", {1: 0, 3: 0, 8: 7, 1_000: 421}),
        ("polygenelubricants", {1: 0, 3: 2, 8: 2, 1_000: 185}),  # hash: the minimum 32-bit integer
    ],
)
def test_queue_of_a_message_group_equals_apaches(group: str, buckets: dict[int, int]) -> None:
    found = {count: consistent_hash(java_hash(group), count) for count in buckets}
    assert found == buckets


@given(HASHES, st.integers(1, 200))
def test_an_added_bucket_receives_values_and_moves_no_others(value: int, count: int) -> None:
    before, after = consistent_hash(value, count), consistent_hash(value, count + 1)
    assert 0 <= before < count
    assert after in (before, count)
