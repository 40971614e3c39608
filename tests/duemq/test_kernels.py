"""The broker's kernels against their plain twins."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq import kernels
from message_store import layout

BLANK = 0x7FFF_FFFF
units = st.tuples(st.integers(0, 200), st.sampled_from([10, 30, 70, BLANK]))
slots = st.tuples(st.integers(-1, 9), st.sampled_from([0, 0, 0, 13]))


def leading_units(
    found: list[tuple[int, int]], log_min: int, count_max: int, bytes_max: int
) -> int:
    """The twin of `kernels.leading_units`."""
    total = 0
    for index, (offset, size) in enumerate(found[:count_max]):
        if offset < log_min or size == BLANK:
            return -1
        total += size
        if index and total > bytes_max:
            return index
    return min(len(found), count_max)


@given(st.lists(units, min_size=1, max_size=9), st.integers(0, 60), st.integers(1, 9),
       st.integers(1, 300))  # fmt: skip
def test_leading_units(
    found: list[tuple[int, int]], log_min: int, count_max: int, bytes_max: int
) -> None:
    block = np.array([(offset, 0, size, 0) for offset, size in found], layout.UNIT)
    count = kernels.leading_units(block, log_min, BLANK, count_max, bytes_max)
    assert count == leading_units(found, log_min, count_max, bytes_max)


@given(st.lists(slots, max_size=20), st.sets(st.integers(0, 7)))
def test_watched_slots(rows: list[tuple[int, int]], waited_for: set[int]) -> None:
    batch: Any = np.zeros(max(len(rows), 1), layout.PUT)
    for row, (slot, status) in zip(batch, rows, strict=False):
        row["queue_slot"], row["status"] = slot, status
    watched = np.array([slot in waited_for for slot in range(8)], np.uint8)
    out = np.zeros(len(rows), np.int32)
    count = kernels.watched_slots(batch, len(rows), watched, out)
    grown = [slot for slot, status in rows if status == 0 and slot in waited_for]
    assert out[:count].tolist() == list(dict.fromkeys(grown))
    assert {n for n in range(8) if watched[n] == kernels.LISTED} == set(grown)
    assert {n for n in range(8) if watched[n] == 1} == waited_for - set(grown)


def size_bucket(size: int) -> int:
    return sum(size > bound for bound in kernels.SIZE_BOUNDS.tolist())


stored_rows = st.fixed_dictionaries(
    {
        "status": st.sampled_from([0, 0, 0, 13]),
        "topic_index": st.integers(0, 2),
        "real_topic_index": st.integers(-1, 2),
        "record_size": st.sampled_from([91, 1_024, 1_025, 5_000_000]),
        "prop_flags": st.sampled_from([0, layout.PROP_TRAN_MSG, layout.PROP_SHARDED]),
        "sys_flag": st.sampled_from([0, layout.SYS_COMMIT, layout.SYS_COMPRESSED]),
        "out_ms": st.sampled_from([-1, 0, 61_000, 10**9]),
        "born_ms": st.sampled_from([0, 1_000]),
    }
)


def type_of(row: dict[str, int], delivered: bool) -> int:
    if row["prop_flags"] == layout.PROP_TRAN_MSG or row["sys_flag"] == layout.SYS_COMMIT:
        return kernels.TRANSACTION
    if delivered or row["real_topic_index"] >= 0:
        return kernels.DELAY
    return kernels.FIFO if row["prop_flags"] == layout.PROP_SHARDED else kernels.NORMAL


@given(st.lists(stored_rows, max_size=8), st.booleans())
def test_count_puts(rows: list[dict[str, int]], delivered: bool) -> None:
    batch: Any = np.zeros(max(len(rows), 1), layout.PUT)
    for at, row in enumerate(rows):
        for name, value in row.items():
            batch[at][name] = value
    shape = (3, kernels.TYPES, 3 + kernels.SIZE_BOUNDS.size)
    puts, traffic = np.zeros((3, 2), np.int64), np.zeros(shape, np.int64)
    delays = np.zeros((3, 2 + kernels.DELAY_BOUNDS_S.size), np.int64)
    totals = kernels.count_puts(batch, len(rows), delivered, puts, traffic, delays)
    stored = [row for row in rows if row["status"] == 0]
    assert tuple(totals) == (len(stored), sum(row["record_size"] for row in stored))
    wanted, wanted_delays = np.zeros(shape, np.int64), np.zeros_like(delays)
    for row in stored:
        counted = wanted[row["topic_index"], type_of(row, delivered)]
        counted[0] += 1
        counted[1] += row["record_size"]
        counted[2 + size_bucket(row["record_size"])] += 1
        if not delivered and row["out_ms"] >= 0 and row["real_topic_index"] >= 0:
            delay_s = max((row["out_ms"] - row["born_ms"]) // 1_000, 0)
            bucket = sum(delay_s > bound for bound in kernels.DELAY_BOUNDS_S.tolist())
            wanted_delays[row["real_topic_index"], 0] += delay_s
            wanted_delays[row["real_topic_index"], 1 + bucket] += 1
    assert traffic.tolist() == wanted.tolist()
    assert delays.tolist() == wanted_delays.tolist()
    assert puts.tolist() == wanted.sum(axis=1)[:, :2].tolist()
