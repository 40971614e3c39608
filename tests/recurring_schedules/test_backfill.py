"""Planned times of a backfill: their range, their number, and how many a step finds."""

from __future__ import annotations

import pytest

from delayed_delivery.steps import at_once
from recurring_schedules.backfill import BYTES_MAX, times_between
from recurring_schedules.definition import Definition, InvalidDefinition

EVERY_S = Definition(name="s", topic="T", every_ms=1_000)


@pytest.mark.parametrize(
    ("from_ms", "until_ms", "times"),
    [(1_000, 3_000, [1_000, 2_000]), (1_001, 2_001, [2_000]), (1_001, 2_000, []), (5, 5, [])],
)
def test_times_of_a_range(from_ms: int, until_ms: int, times: list[int]) -> None:
    assert at_once(times_between(EVERY_S, from_ms, until_ms)) == times


def test_start_and_end_of_the_schedule_do_not_count() -> None:
    ended = Definition(name="s", topic="T", every_ms=1_000, start_ms=9_000, end_ms=10_000)
    assert at_once(times_between(ended, 1_000, 3_000)) == [1_000, 2_000]


@pytest.mark.parametrize(("body_bytes", "count"), [(0, 10_000), (BYTES_MAX // 10, 9)])
def test_more_messages_than_a_backfill_sends_are_refused(body_bytes: int, count: int) -> None:
    definition = Definition(name="s", topic="T", every_ms=1_000, body=bytes(body_bytes))
    assert len(at_once(times_between(definition, 1_000, (count + 1) * 1_000))) == count
    with pytest.raises(InvalidDefinition, match=f"more than {count} occurrences"):
        at_once(times_between(definition, 1_000, (count + 2) * 1_000))


def test_a_step_finds_one_time() -> None:
    assert len(list(times_between(EVERY_S, 1_000, 8_000))) == 7
