"""Counts of pending timers compared with a list, settled timers with a set."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.queues.topic_table import TopicTable
from timer_store.progress import PendingCounts, SettledTimers

FILE_BYTES = 100
TIMER = st.tuples(st.integers(-1, 200), st.integers(0, 5_000))


def columns(timers: list[tuple[int, int]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    topics = np.array([topic for topic, _ in timers], np.int32)
    return topics, np.array([offset for _, offset in timers], np.int64)


def table() -> TopicTable:
    topics = TopicTable()
    for number in range(201):
        topics.add(f"T{number}")
    return topics


@given(st.lists(st.lists(TIMER, max_size=20), max_size=8), st.integers(0, 3))
def test_counts_equal_the_list(batches: list[list[tuple[int, int]]], settled: int) -> None:
    counts, there = PendingCounts(table(), FILE_BYTES), []
    for number, timers in enumerate(batches):
        counts.change(*columns(timers), 1)
        there += timers
        if number < settled:
            gone, there = there[::2], there[1::2]
            counts.change(*columns(gone), -1)
    names = Counter(f"T{topic}" if topic >= 0 else "" for topic, _ in there)
    files = Counter(offset // FILE_BYTES * FILE_BYTES for _, offset in there)
    assert counts.by_topic() == names
    assert counts.by_file() == files
    assert counts.total == len(there)
    assert counts.first_file == min(files, default=None)
    assert all(counts.of_topic(index) == names[f"T{index}"] for index in range(201))
    again = PendingCounts(table(), FILE_BYTES)
    again.restore(counts.by_topic(), counts.by_file())
    assert (again.by_topic(), again.by_file(), again.total) == (names, files, len(there))


SETTLING = st.tuples(
    st.sampled_from(["add", "return", "capture", "written", "read", "clear"]),
    st.lists(st.integers(0, 40), max_size=8, unique=True),
)


@given(st.lists(SETTLING, max_size=30))
def test_settled_timers_equal_a_set(steps: list[tuple[str, list[int]]]) -> None:
    settled = SettledTimers()
    own, captured, returned = dict[int, int](), dict[int, int](), list[set[int]]()
    batches = 0
    for step, (action, offsets) in enumerate(steps):
        array = np.array(offsets, np.int64)
        if action == "add":
            settled.add(array, array + step)
            own |= {offset: offset + step for offset in offsets}
        elif action == "return":
            settled.add_returned(array, array + step)
            returned += [set(offsets)] if offsets else []
        elif action == "capture":
            captured, own, batches = captured | own, {}, len(returned)
            positions = np.concatenate([np.empty(0, np.int64), *settled.capture()])
            assert set(positions.tolist()) >= set(captured.values())
            assert len(settled) == len(captured)
        elif action == "written":
            settled.remove_written(batches)
            captured, returned, batches = {}, returned[batches:], 0
        elif action == "clear":
            settled.clear()
            own, captured, returned, batches = {}, {}, [], 0
        expected = set(own) | set(captured) | set().union(*returned)
        if action == "read":
            assert set(settled.offsets.tolist()) == expected
            assert (np.diff(settled.offsets) >= 0).all()
        everything = np.arange(41)
        assert set(np.flatnonzero(settled.has(everything)).tolist()) == expected


def test_a_captured_state_does_not_change() -> None:
    settled = SettledTimers()
    settled.add(np.arange(100), np.arange(100) + 1_000)
    captured = settled.capture()
    settled.add(np.arange(100, 200), np.arange(100, 200))
    assert np.concatenate(captured).tolist() == list(range(1_000, 1_100))
    again = settled.capture()  # the first checkpoint failed
    assert np.concatenate(again).tolist() == [*range(1_000, 1_100), *range(100, 200)]
    settled.add(np.arange(200, 300), np.arange(200, 300))
    settled.remove_written()
    assert settled.offsets.tolist() == list(range(200, 300))
    assert not settled.has(np.arange(200)).any()


def test_slices_of_a_bulk_decision_sort_no_more_than_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bulk decision settles hundreds of thousands between two checkpoints."""
    settled, sizes = SettledTimers(), list[int]()
    sort = np.sort

    def counted(values: npt.NDArray[np.int64], kind: str | None = None) -> npt.NDArray[np.int64]:
        sizes.append(0 if kind == "stable" else values.size)  # a stable sort merges sorted runs
        return sort(values, kind=kind)

    monkeypatch.setattr(np, "sort", counted)
    for first in range(0, 10_000, 100):
        settled.add(np.arange(first, first + 100), np.arange(100))
        assert settled.offsets.size == first + 100
    assert settled.has(np.arange(10_100)).tolist() == [True] * 10_000 + [False] * 100
    settled.capture()
    assert settled.offsets.size == 10_000
    assert max(sizes) == 100


@pytest.mark.parametrize("read", [False, True])
def test_settled_timers_of_former_checkpoints_take_no_memory(read: bool) -> None:
    """No slot may be loaded for days, while timers are cancelled."""
    settled = SettledTimers()

    def checkpoints(count: int) -> None:
        for _ in range(count):
            settled.add(np.arange(8), np.arange(8))
            settled.capture()
            if read:
                assert settled.offsets.size == 8
            settled.remove_written()

    tracemalloc.start()
    checkpoints(10)
    before, _ = tracemalloc.get_traced_memory()
    checkpoints(1_000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000
