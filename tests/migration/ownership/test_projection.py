"""Marks and what follows from them: ranges, ownership, the fold, its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import ownership
from delivery.ownership import (
    MARK_TOPIC,
    Mark,
    Marked,
    Ownership,
    Return,
    Route,
    StateRecord,
    Transfer,
)
from message_store import ranges
from migration.ownership import projection
from tests.support.stores import open_store

MARKS: list[Mark] = [
    StateRecord(migration="m", level=3, source="planned", target="routing", who="me", why="ü"),
    Route(migration="m", level=3, on=True, fence=7, timer_fence=2, rules={"T": 5_000}),
    Transfer(migration="m", level=3, first=0, end=9, excluded=((2, 3), (5, 7)), count=6, checksum=1,
             promised={4: 1 << 50}),
    Return(migration="m", level=3, first=4, end=9, pending=((7, 9),), count=2, checksum=3, gone=1,
             gone_sum=4),
    Route(migration="m", level=3, on=False),
]  # fmt: skip
some_ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def as_set(some: list[tuple[int, int]]) -> set[int]:
    return {number for first, end in some for number in range(first, end)}


@given(some_ranges, some_ranges)
def test_ranges_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = ranges.joined(one), ranges.joined(other)
    assert as_set(a) == as_set(one)
    assert as_set(ranges.plus(a, b)) == as_set(a) | as_set(b)
    assert as_set(ranges.minus(a, b)) == as_set(a) - as_set(b)
    assert as_set(ranges.within(a, 5, 20)) == as_set(a) & set(range(5, 20))
    assert ranges.size(a) == len(as_set(a))
    assert ranges.runs(ranges.mask_of(a, 0, 30), 0) == a
    for found in (a, ranges.plus(a, b), ranges.minus(a, b)):
        assert found == ranges.joined(found)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 20)), max_size=9))
def test_a_unit_belongs_to_the_last_mark_that_names_it(steps: list[tuple[bool, int, int]]) -> None:
    owned, naive = Ownership(), dict.fromkeys(range(40), -1)
    for at, (over, first, count) in enumerate(steps):
        end = first + count
        mark: Mark = Return(migration="", level=1, first=first, end=end, pending=())
        if over:
            mark = Transfer(migration="", level=1, first=first, end=end)
        marked = Marked(at, 0, 0, mark)
        owned.fold(marked)
        owned.fold(marked)  # known already
        naive |= dict.fromkeys(range(first, end), at if over else -1)
        if over:
            assert as_set(owned.of_mark(marked)) == {n for n, by in naive.items() if by == at}
    assert as_set(owned.of(1)) == {number for number, by in naive.items() if by >= 0}
    assert [owned.owns(1, number) for number in range(40)] == [naive[n] >= 0 for n in range(40)]


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert ownership.decode(ownership.encode(mark)) == mark


def test_the_fold_survives_its_file_and_lives_without_it(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for mark in MARKS[:3]:
            ownership.append(store, mark, 5)
        first = projection.restore(store)
        level = first.levels[3]
        assert (level.state, level.routed, level.handed, level.rules) == (
            "routing",
            True,
            6,
            {"T": 5_000},
        )
        projection.write(store, first)
        assert projection.restore(store) == first
        for mark in MARKS[3:]:
            ownership.append(store, mark, 6)
        later = projection.restore(store)
        assert (later.levels[3].routed, later.levels[3].returned, later.levels[3].gone) == (
            False,
            2,
            1,
        )
        store.config_path(projection.FOLD_FILE).unlink()
        assert projection.restore(store) == later
        projection.write(store, projection.Projection(at=99, log_offset=store.max_offset + 1))
        assert projection.restore(store) == later  # it claims more than the log has


def test_a_damaged_mark_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path) as store:
        marked = [ownership.append(store, mark, 5) for mark in MARKS]
        store.log.files[0].write(marked[1].phys_offset + 120, b"\0\0\0")
        assert [found.at for found in ownership.read(store)] == [0, 2, 3, 4]
        assert [found.mark for found in ownership.read(store, 3)] == MARKS[3:]
        assert f"{MARK_TOPIC}: 1 records from queue offset 0 on are no marks" in caplog.text
        assert "queue offset 1: commit log offset 212: the body does not match" in caplog.text
