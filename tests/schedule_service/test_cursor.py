"""Segments of a queue: delivered units and next units."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedule_service.cursor import (
    NEVER_MS,
    SEGMENTS_MAX,
    Cut,
    LevelCursor,
    cursor_of,
    find_cuts,
)


def test_cuts_are_where_due_times_decrease() -> None:
    due = np.array([5, 6, 6, 2, 3, 1], np.int64)
    assert find_cuts(due, 100, 4) == [Cut(103, 2), Cut(105, 1)]
    assert find_cuts(due, 100, 9) == [Cut(100, 5), Cut(103, 2), Cut(105, 1)]
    assert find_cuts(due[:0], 100, 9) == []


def test_units_are_added_and_delivered() -> None:
    cursor = LevelCursor(1)
    assert (cursor.pending, cursor.next_due_ms, cursor.first_undelivered) == (0, NEVER_MS, 0)
    cursor.extend(0, 100, 3)
    cursor.extend(3, 110, 5)
    assert (cursor.pending, cursor.next_due_ms) == (5, 100)
    segment = cursor.next_segment()
    cursor.submit(segment, 2, 105)
    assert (cursor.pending, cursor.next_due_ms, cursor.first_undelivered) == (5, 105, 0)
    cursor.advance(segment, 1)
    assert (cursor.pending, cursor.first_undelivered) == (4, 1)
    cursor.advance(segment, 2)
    cursor.submit(segment, 3, 7)
    assert cursor.next_due_ms == NEVER_MS
    cursor.extend(5, 200, 6)
    assert cursor.next_due_ms == 200


def test_an_earlier_due_time_gets_its_own_segment_and_is_delivered_first() -> None:
    cursor = LevelCursor(1)
    cursor.extend(0, 3_600, 40)
    cursor.extend(40, 12, 60, [Cut(40, 12)])
    cursor.extend(60, 5, 61, [Cut(60, 5)])
    assert cursor.next_due_ms == 5
    for end in (61, 60):
        segment = cursor.next_segment()
        cursor.submit(segment, segment.pending, NEVER_MS)
        cursor.advance(segment, end)
    assert (cursor.first_undelivered, cursor.delivered_ahead()) == (0, [(40, 61)])
    assert (cursor.pending, cursor.next_due_ms) == (40, 3_600)
    cursor.extend(61, 9_000, 62)
    assert cursor.delivered_ahead() == [(40, 61)]
    first = cursor.next_segment()
    cursor.submit(first, 40, NEVER_MS)
    cursor.advance(first, 40)
    assert (cursor.first_undelivered, cursor.delivered_ahead()) == (61, [])


def test_a_cut_before_an_empty_segment_is_ignored() -> None:
    cursor = LevelCursor(1, start=7)
    cursor.extend(7, 3, 9, [Cut(7, 3)])
    assert len(cursor.segments) == 1
    assert cursor.next_due_ms == 3


def test_the_number_of_segments_is_limited() -> None:
    cursor = LevelCursor(1)
    cursor.extend(0, 10_000, 1)
    for n in range(1, SEGMENTS_MAX + 36):
        cursor.extend(n, 10_000 - n, n + 1, [Cut(n, 10_000 - n)])
    assert len(cursor.segments) == SEGMENTS_MAX
    assert cursor.merged == 36
    assert cursor.pending == SEGMENTS_MAX + 36


@pytest.mark.parametrize(
    ("queue_min", "lost", "pending", "first"),
    [
        (0, 0, 61, 0),
        (5, 5, 56, 5),
        (40, 40, 21, 40),
        (45, 45, 16, 45),
        (61, 61, 0, 61),
        (99, 61, 0, 99),
    ],
)
def test_retention_removes_the_head(queue_min: int, lost: int, pending: int, first: int) -> None:
    cursor = LevelCursor(1)
    cursor.extend(0, 3_600, 40)
    cursor.extend(40, 12, 61, [Cut(40, 12)])
    assert cursor.forget_before(queue_min) == lost
    assert (cursor.pending, cursor.first_undelivered) == (pending, first)


@pytest.mark.parametrize(
    ("waiting", "ahead", "pending"),
    [
        ([], [], 0),
        ([(3, 80)], [], 77),
        ([(3, 40)], [(40, 80)], 37),
        ([(3, 40), (60, 80)], [(40, 60)], 57),
        ([(3, 40), (40, 80)], [], 77),
    ],
)
def test_a_cursor_is_rebuilt_from_pending_messages(
    waiting: list[tuple[int, int]], ahead: list[tuple[int, int]], pending: int
) -> None:
    cursor = cursor_of(1, waiting, 80)
    assert (cursor.delivered_ahead(), cursor.pending, cursor.end) == (ahead, pending, 80)
    assert cursor.first_undelivered == (waiting[0][0] if waiting else 80)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=60))
def test_against_a_list(steps: list[tuple[int, int]]) -> None:
    """Units with any due time are added; at each step all due units are delivered."""
    cursor, due, done = LevelCursor(1), list[Any](), set()
    for due_ms, now_ms in steps:
        offset = len(due)
        cuts = [Cut(offset, due_ms)] if due and due_ms < due[-1] else []
        cursor.extend(offset, due_ms, offset + 1, cuts)
        due.append(due_ms)
        while cursor.next_due_ms <= now_ms:
            segment = cursor.next_segment()
            late = [n for n in range(segment.submitted, segment.end) if due[n] > now_ms]
            count = min([segment.end, *late]) - segment.submitted
            done |= set(range(segment.submitted, segment.submitted + count))
            behind = segment.submitted + count
            cursor.submit(segment, count, due[behind] if behind < segment.end else NEVER_MS)
            cursor.advance(segment, behind)
        waiting = [n for n in range(len(due)) if n not in done]
        assert all(due[n] > now_ms for n in waiting)
        assert cursor.pending == len(waiting)
        assert cursor.first_undelivered == (waiting[0] if waiting else len(due))
        ahead = {n for low, high in cursor.delivered_ahead() for n in range(low, high)}
        assert ahead == {n for n in done if waiting and n > waiting[0]}


@given(
    ranges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5),
    settled=st.sets(st.integers(0, 40), max_size=9),
)
def test_many_units_are_pending_as_each_alone(
    ranges: list[tuple[int, int]], settled: set[int]
) -> None:
    end, undelivered = 0, []
    for gap, size in ranges:
        undelivered += [(end + gap, end + gap + size)] if size else []
        end += gap + size
    cursor = cursor_of(1, undelivered, end)
    pending = {unit for first, stop in undelivered for unit in range(first, stop)}
    cursor.settle_all(np.array(sorted(settled & pending), np.int64))
    pending -= settled
    units = np.arange(-1, 50)
    assert cursor.are_pending(units).tolist() == [unit in pending for unit in units.tolist()]
    assert [cursor.is_pending(unit) for unit in units.tolist()] == [
        unit in pending for unit in units.tolist()
    ]
    assert cursor.pending == len(pending)
    ranges_of_settled = cursor.settled_ranges()
    assert {u for first, stop in ranges_of_settled for u in range(first, stop)} == cursor.settled
    assert all(left[1] < right[0] for left, right in pairwise(ranges_of_settled))
