"""Kernels of the near stage compared with naive implementations."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_store import layout
from timer_store.kernels import stage as kernels

# (due_ms, phys_offset, topic_hash, settled)
timer = st.tuples(
    st.integers(0, 6), st.integers(0, 50), st.sampled_from([-7, 0, 1, 2**31 - 1]), st.booleans()
)
timers = st.lists(timer, max_size=30, unique_by=lambda t: t[:2])


def stage_rows(values: list[tuple[int, int, int, bool]]) -> npt.NDArray[np.void]:
    """Return STAGE_ROW rows."""
    held = np.zeros(len(values), layout.STAGE_ROW)
    for row, (due_ms, phys_offset, topic, settled) in zip(held, values, strict=True):
        row["due_ms"], row["phys_offset"], row["topic_hash"] = due_ms, phys_offset, topic
        row["write_ms"] = ~phys_offset if settled else phys_offset
        row["pos"], row["record_size"] = phys_offset * 52, 100 + phys_offset
    return held


def values_of(held: npt.NDArray[np.void]) -> list[tuple[int, int, int, bool]]:
    return [
        (int(r["due_ms"]), int(r["phys_offset"]), int(r["topic_hash"]), bool(r["write_ms"] < 0))
        for r in held
    ]


@given(st.lists(st.integers(-(1 << 40), 1 << 62), max_size=40), st.data())
def test_radix_passes_sort_stably(numbers: list[int], data: st.DataObject) -> None:
    keys = np.array(numbers, np.int64)
    start = np.array(data.draw(st.permutations(range(len(numbers)))), np.int32)
    low = min(numbers, default=0)
    order, counts = start, np.empty(kernels.DIGITS, np.int64)
    for shift in range(0, 64, kernels.DIGIT_BITS):
        out = np.empty_like(order)
        kernels.radix_pass(keys, low, shift, order, out, counts)
        order = out
    assert order.tolist() == sorted(start.tolist(), key=lambda i: numbers[i])


@given(st.lists(st.integers(0, 5)))
def test_ascends(numbers: list[int]) -> None:
    assert kernels.ascends(np.array(numbers, np.int64)) == (numbers == sorted(numbers))


@given(timers, st.data())
def test_copy_staged(values: list[tuple[int, int, int, bool]], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(values))))
    held = stage_rows(values)
    rows = np.zeros(len(values), layout.STAGED)
    for name in layout.STAGE_ROW.names:
        rows[name] = held[name]
    out = np.zeros(len(values), layout.STAGE_ROW)
    kernels.copy_staged(rows, np.array(order, np.int32), out)
    assert out.tolist() == [held[i].tolist() for i in order]


@given(timers, timers)
def test_merge(a: list[tuple[int, int, int, bool]], b: list[tuple[int, int, int, bool]]) -> None:
    both = [value for value in a + b if not value[3]]
    out = np.zeros(len(a) + len(b), layout.STAGE_ROW)
    count = kernels.merge(stage_rows(sorted(a)), stage_rows(sorted(b)), out)
    keys = [value[:2] for value in values_of(out[:count])]
    assert keys == sorted(value[:2] for value in both)
    assert sorted(values_of(out[:count])) == sorted(both)


@given(timers, st.integers(-1, 8))
def test_bound_and_skip_settled(values: list[tuple[int, int, int, bool]], due_ms: int) -> None:
    values = sorted(values)
    held = stage_rows(values)
    expected = sum(value[0] <= due_ms for value in values)
    assert kernels.bound(held, 0, held.size, due_ms) == expected
    first = next((i for i, value in enumerate(values) if not value[3]), len(values))
    assert kernels.skip_settled(held, 0, held.size) == first


def naive_turns(values: list[tuple[int, int, int, bool]]) -> list[tuple[int, int, int, bool]]:
    """Return pending timers of one millisecond, sorted by log offset, with the topics in turn."""
    by_topic = {}
    ranked = []
    for value in values:
        number = by_topic[value[2]] = by_topic.get(value[2], -1) + 1
        ranked.append((number, len(ranked), value))
    return [value for _, _, value in sorted(ranked)]


@given(timers)
def test_interleave(values: list[tuple[int, int, int, bool]]) -> None:
    values = sorted(values)
    n = len(values)
    spots, ranks, starts = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n + 1, np.int32)
    table = np.zeros((128, 2), np.int32)
    out = np.zeros(n, layout.STAGE_ROW)
    held = stage_rows(values)
    kernels.interleave(held, spots, ranks, starts, table, out)
    expected = []
    for _, group in groupby([v for v in values if not v[3]], key=lambda v: v[0]):
        expected += naive_turns(list(group))
    assert [value for value in values_of(out) if not value[3]] == expected
    assert sorted(values_of(out)) == values
    assert not table[:, 1].any()
    mixed = any(len({v[2] for v in group}) > 1 for _, group in groupby(values, key=lambda v: v[0]))
    assert kernels.is_mixed(held) == mixed


def naive_take_batch(
    values: list[tuple[int, int, int, bool]],
    first: int,
    count_max: int,
    bytes_max: int,
    alone: bool,
) -> tuple[int, list[tuple[int, int, int, bool]], int]:
    drawn, total = [], 0
    while first < len(values) and len(drawn) < count_max:
        if not values[first][3]:
            size = 100 + values[first][1]
            if total + size > bytes_max and not (alone and not drawn):
                break
            total += size
            drawn.append(values[first])
        first += 1
    return first, drawn, total


@given(timers, st.integers(0, 5), st.integers(0, 9), st.integers(-10, 900), st.booleans())
def test_take_batch(
    values: list[tuple[int, int, int, bool]],
    first: int,
    count_max: int,
    bytes_max: int,
    alone: bool,
) -> None:
    first = min(first, len(values))
    out = np.zeros(count_max, layout.STAGED)
    limits = (count_max, bytes_max, int(alone))
    at, count, total = kernels.take_batch(stage_rows(values), first, len(values), limits, out)
    wanted_at, expected, wanted_total = naive_take_batch(values, first, count_max, bytes_max, alone)
    assert (at, total) == (wanted_at, wanted_total)
    got = [(int(r["due_ms"]), int(r["phys_offset"]), int(r["topic_hash"])) for r in out[:count]]
    assert got == [value[:3] for value in expected]
    assert (out[:count]["magic"] == layout.MAGIC_DEFAULT).all()
    assert (out[:count]["pos"] == out[:count]["phys_offset"] * 52).all()
    assert (out[:count]["write_ms"] == out[:count]["phys_offset"]).all()


@pytest.mark.parametrize("turns", [False, True])
@given(
    timers, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50)), max_size=9), st.booleans()
)
def test_find(
    turns: bool,
    values: list[tuple[int, int, int, bool]],
    requested: list[tuple[int, int]],
    settle: bool,
) -> None:
    held = stage_rows(sorted(values, key=lambda v: (v[0], v[2] if turns else v[1])))
    waiting = {value[:2] for value in values if not value[3]}
    expected = []
    for key in requested:
        expected.append(key in waiting)
        if settle:
            waiting.discard(key)
    offsets = np.array([key[1] for key in requested], np.int64)
    due_ms = np.array([key[0] for key in requested], np.int64)
    found = np.zeros(len(requested), np.bool_)
    span = (0, held.size, int(turns))
    count = kernels.find(held, span, offsets, due_ms, settle, found)
    assert found.tolist() == expected
    assert count == sum(expected)
    if settle:
        assert {value[:2] for value in values_of(held) if not value[3]} == waiting
