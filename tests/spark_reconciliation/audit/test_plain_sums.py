"""Sums of normal messages, compared with loops, and their agreement with the whole audit."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_reconciliation.audit.plain_sums import (
    PAIR,
    WORDS,
    Buckets,
    add_up,
    by_bucket,
    pack,
    touch,
)
from spark_reconciliation.audit.tally import (
    KNOWN,
    LEVEL,
    PASSED,
    SENT,
    STORE_BITS,
    TOUCHED,
    UNUSUAL,
)
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.tables import ARROW, TABLES

KINDS: Final = dict(TABLES["messages"])
LATE_MS: Final = 50
NOW_MS: Final = 1_700_000_000_000
HELD: Final = {
    "store_id": 0,
    "phys_offset": 100,
    "role": Role.TIMER,
    "store_ms": NOW_MS - 1_000,
    "prepared_offset": 0,
    "body_crc": 77,
    "body_len": 5,
    "damage": None,
    "properties_hash": -3,
    "head_hash": 11,
    "target": -9,
    "due_ms": NOW_MS,
    "out_ms": NOW_MS - 1,
    "unit_ms": None,
    "passed": 1,
    "other_time": False,
    "queued": None,
}
SENT_ROW: Final = HELD | {
    "phys_offset": 900,
    "role": Role.DELIVERY,
    "prepared_offset": -101,
    "store_ms": NOW_MS + 7,
    "due_ms": None,
    "out_ms": None,
    "passed": None,
}
Row = dict[str, Any]


def packed(*rows: Row) -> Any:
    return pack(lambda name: pa.array([row[name] for row in rows], ARROW[KINDS[name]]))


def sums(*batches: pa.RecordBatch, as_of_ms: tuple[int, ...] = ()) -> list[Row]:
    made = add_up(batches, late_ms=LATE_MS, as_of_ms=as_of_ms)
    return [row for batch in made for row in batch.to_pylist()]


def test_a_consistent_pair_is_counted() -> None:
    other = HELD | {"phys_offset": 300}, SENT_ROW | {"phys_offset": 950, "prepared_offset": -301}
    (row,) = sums(by_bucket(packed(HELD, *other, SENT_ROW), 1))
    assert (row["tally"] & PAIR, row["content"], row["rest"]) == (PAIR, 0, 0)
    assert (row["key"], row["time_ms"], row["weight"]) == (300, 7, 2), "the last key"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"body_crc": 78}, "content"),
        ({"body_len": 6}, "content"),
        ({"target": -8}, "content"),
        ({"properties_hash": 3}, "rest"),
        ({"head_hash": 12}, "rest"),
        ({"damage": "body-crc"}, "tally"),
        ({"store_ms": NOW_MS + LATE_MS + 1}, "time_ms"),
        ({"store_ms": NOW_MS - 1}, "time_ms"),
    ],
)
def test_inconsistent_pairs_are_reported_individually(change: Row, wrong: str) -> None:
    """Also if several have the same fault."""
    pair = HELD | {"phys_offset": 300}, SENT_ROW | {"phys_offset": 950, "prepared_offset": -301}
    other = HELD | {"phys_offset": 500}, SENT_ROW | {"phys_offset": 960, "prepared_offset": -501}
    changed = SENT_ROW | change, other[1] | change
    found = sums(by_bucket(packed(HELD, *pair, other[0], *changed), 1))
    rows = {row["key"]: row for row in found}
    assert set(rows) == {100, 300, 500}
    assert rows[100][wrong] == rows[500][wrong] != rows[300][wrong]
    assert [row["weight"] for row in found] == [1, 1, 1]


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ([HELD], [100]),
        ([SENT_ROW], [100]),
        ([HELD, SENT_ROW, SENT_ROW | {"phys_offset": 990}], [100]),
        ([HELD | {"due_ms": None}, SENT_ROW], [100]),
        ([HELD | {"role": Role.LEVEL}, SENT_ROW], [100]),  # its queue has no due time
        ([HELD, SENT_ROW | {"store_id": 1}], [100, (1 << STORE_BITS) + 100]),
        ([HELD, SENT_ROW | {"prepared_offset": ~((1 << STORE_BITS) + 100)}], [100, 900]),
        ([HELD, SENT_ROW | {"prepared_offset": -(1 << 63)}], [100, 900]),
    ],
)
def test_single_messages_are_reported_individually(rows: list[Row], keys: list[int]) -> None:
    found = sums(by_bucket(packed(*rows), 1))
    assert [row["key"] for row in found] == keys
    assert all(row["weight"] == 1 for row in found)


NOT_PASSED: Final = HELD | {"passed": 0}


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        ({}, True),
        ({"passed": None}, True),
        ({"role": Role.LEVEL, "unit_ms": NOW_MS}, True),
        ({"due_ms": NOW_MS - LATE_MS}, True),
        ({"due_ms": NOW_MS - LATE_MS - 1}, False),  # overdue
        ({"passed": 1}, False),  # lost
        ({"damage": "body-crc"}, False),
        ({"due_ms": None}, False),
        ({"other_time": True}, False),
        ({"queued": False}, False),
    ],
)
def test_pending_messages_are_counted_unless_a_rule_may_hold(change: Row, counted: bool) -> None:
    others = [NOT_PASSED | {"phys_offset": offset} for offset in (300, 500)]
    elsewhere = NOT_PASSED | {"store_id": 1}
    rows = sums(
        by_bucket(packed(NOT_PASSED | change, *others, elsewhere), 1),
        as_of_ms=(NOW_MS, NOW_MS + 99),
    )
    weights = [row["weight"] for row in rows]
    assert sorted(weights) == ([1, 3] if counted else [1, 1, 2]), "the other store is overdue"
    assert all(row["tally"] & 0xFF == 1 for row in rows)


def test_flags() -> None:
    level = HELD | {"role": Role.LEVEL, "unit_ms": NOW_MS, "passed": 0}
    unknown = HELD | {"due_ms": None, "passed": None}
    tallies = packed(level, unknown)[:, 1]
    assert tallies[0] == 1 + (1 << LEVEL) + (1 << KNOWN)
    assert tallies[1] == 1 + (1 << UNUSUAL)
    assert packed(HELD)[0, 1] == 1 + (1 << KNOWN) + (1 << PASSED)


def test_messages_with_rare_records_are_omitted() -> None:
    keys = pa.RecordBatch.from_arrays([pa.array([100], pa.int64())], ["key"])
    (touched,) = touch([keys], count=1)
    other = HELD | {"phys_offset": 300}
    found = sums(by_bucket(packed(HELD, SENT_ROW, other), 1), touched)
    assert [row["key"] for row in found] == [300]
    assert sums(touched) == []


numbers = st.integers(-(1 << 62), 1 << 62)


@given(
    st.lists(st.tuples(st.integers(0, 6), *([numbers] * 2), st.integers(-99, 99)), max_size=60),
    st.integers(1, 9),
    st.integers(1, 20),
)
def test_buckets_equal_a_loop(rows: list[tuple[int, int, int, int]], count: int, cut: int) -> None:
    whole = np.array([(k, 1 << SENT, c, r, t) for k, c, r, t in rows], np.int64).reshape(-1, WORDS)
    buckets, batches = Buckets(count), list[pa.RecordBatch]()
    for first in range(0, len(whole), cut):
        batches += buckets.take(whole[first : first + cut])
    batches += buckets.rest()
    found: dict[int, tuple[int, ...]] = {}
    for number in range(count):
        mine = [batch.filter(pa.compute.equal(batch["bucket"], number)) for batch in batches]
        for row in sums(*mine):
            assert row["key"] not in found, "one bucket has all of a key"
            found[row["key"]] = tuple(row[name] for name in ("tally", "content", "rest", "time_ms"))
    expected: dict[int, tuple[int, ...]] = {}
    for key, content, rest, time_ms in rows:
        had = expected.get(key, (0, 0, 0, 0))
        added = (had[0] + (1 << SENT), had[1] ^ content, had[2] ^ rest, had[3] + time_ms)
        expected[key] = added
    assert found == expected


def test_many_messages_are_distributed_evenly() -> None:
    whole = np.zeros((64_000, WORDS), np.int64)
    whole[:, 0] = np.arange(64_000) * 256
    sizes = [len(value.as_buffer()) for value in by_bucket(whole, 64)["packed"]]
    assert sum(sizes) == whole.nbytes
    assert max(sizes) < 2 * min(sizes)
    assert whole[0, 1] & (1 << TOUCHED) == 0
    assert Counter(size % 40 for size in sizes) == {0: 64}
