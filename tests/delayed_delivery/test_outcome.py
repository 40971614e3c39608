"""Outcome of deliveries: counters, rate, and lateness by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.outcome import (
    BOUNDS_MS,
    NOT_PUT,
    ORDINARY,
    RETRY,
    SYSTEM,
    DeliveryStats,
    Lateness,
    Outcome,
    Rate,
    class_of,
)
from delayed_delivery.quarantine import Reason, Undeliverable
from message_store.queues.topic_table import TopicTable


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(-5, 10**7)), max_size=50))
def test_buckets_against_a_loop(pairs: list[tuple[int, int]]) -> None:
    lateness = Lateness()
    due = np.array([due for due, _ in pairs], np.int64)
    late = np.array([late for _, late in pairs], np.int64)
    lateness.record(due, due + late)
    expected = [0] * (BOUNDS_MS.size + 1)
    for _, ms in pairs:
        at = next((n for n, bound in enumerate(BOUNDS_MS) if max(ms, 0) <= bound), BOUNDS_MS.size)
        expected[at] += 1
    assert lateness.buckets.tolist() == expected
    assert lateness.sum_ms == sum(max(ms, 0) for _, ms in pairs)
    assert lateness.max_ms == max([max(ms, 0) for _, ms in pairs], default=0)
    assert lateness.count == len(pairs)
    bounds = lateness.seconds_buckets()
    assert bounds[0] == ("0.0", expected[0])
    assert bounds[-1] == ("+Inf", len(pairs))


@pytest.mark.parametrize(
    ("late", "share", "expected"),
    [
        ([], 0.5, None),
        ([0], 0.99, 0),
        ([-4], 0.99, 0),
        ([3], 0.5, 3),
        ([11, 11, 11, 90], 0.5, 12),
        ([1, 1, 1, 90], 0.5, 1),
        ([1, 1, 1, 90], 0.99, 90),
        ([10**8], 0.5, 10**8),
    ],
)
def test_quantiles_are_upper_bounds_and_at_most_the_latest(
    late: list[int], share: float, expected: int | None
) -> None:
    lateness = Lateness()
    lateness.record(np.zeros(len(late), np.int64), np.array(late, np.int64))
    assert lateness.quantile_ms(share) == expected


def test_without_deliveries_there_are_no_quantiles() -> None:
    found = Lateness().as_dict()
    assert (found["p50"], found["p99"], found["max"]) == (None, None, None)
    assert len(found["buckets"]) == BOUNDS_MS.size + 1


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("T", ORDINARY),
        ("%RETRY%g", RETRY),
        ("%DLQ%g", RETRY),
        ("rmq_sys_x", SYSTEM),
        ("", ORDINARY),
    ],
)
def test_class_of(topic: str, expected: int) -> None:
    assert class_of(topic) == expected


def outcome_of(
    *timers: tuple[int, int],
    quarantined: tuple[Any, ...] | list[Reason] = (),
    lost: int = 0,
    refusal: str = "",
) -> Outcome:
    """Return an outcome of (store_ms, topic_index)."""
    outcome = Outcome(len(timers))
    outcome.quarantined = [Undeliverable(reason, "", 0, 0, 0) for reason in quarantined]
    outcome.lost, outcome.refusal = lost, refusal
    for store_ms, topic_index in timers:
        outcome.record(store_ms, topic_index)
    return outcome


@pytest.fixture
def topics() -> TopicTable:
    topics = TopicTable()
    for name in ("T", "%RETRY%g"):
        topics.add(name)
    return topics


@pytest.fixture
def stats(topics: TopicTable) -> DeliveryStats:
    stats = DeliveryStats(topics)
    outcome = outcome_of(
        (1_003, 0),
        (1_020, 1),
        (NOT_PUT, 0),
        (NOT_PUT, -1),
        quarantined=[Reason.HALF_MESSAGE],
        lost=1,
        refusal="full",
    )
    stats.record(np.array([1_000, 1_000, 900, 900, 7, 7], np.int64), outcome, 5_000)
    return stats


def test_an_outcome_is_counted_by_class(stats: DeliveryStats) -> None:
    assert (stats.delivered, stats.lost, stats.refused) == (2, 1, 1)
    assert stats.quarantined == {Reason.HALF_MESSAGE: 1}
    assert [late.count for late in stats.lateness] == [1, 1, 0]
    assert [late.max_ms for late in stats.lateness] == [3, 20, 0]


def test_topics_created_later(stats: DeliveryStats, topics: TopicTable) -> None:
    topics.add("rmq_sys_new")
    stats.record(np.array([0], np.int64), outcome_of((5, 2)), 5_000)
    assert [late.count for late in stats.lateness] == [1, 1, 1]


def test_an_outcome_without_deliveries_changes_no_lateness(stats: DeliveryStats) -> None:
    stats.record(np.array([0], np.int64), outcome_of((NOT_PUT, 0), lost=1), 5_000)
    stats.record(np.empty(0, np.int64), outcome_of(), 5_000)
    assert (stats.delivered, stats.lost) == (2, 2)
    assert sum(late.count for late in stats.lateness) == 2


@pytest.mark.parametrize(
    ("notes", "now_ms", "expected"),
    [
        ([], 10_000, 0),
        ([(50, 9_999)], 10_000, 5),
        ([(50, 10_000)], 10_000, 0),  # the current second does not count
        ([(50, 9_100), (50, 9_900), (100, 5_000)], 10_000, 20),  # after a clock step back
        ([(500, 1_000)], 20_000, 0),
        ([(10, second * 1_000) for second in range(100)], 100_000, 10),
    ],
)
def test_rate(notes: list[tuple[int, int]], now_ms: int, expected: int) -> None:
    rate = Rate()
    for count, at_ms in notes:
        rate.add(count, at_ms)
    assert rate.per_second(now_ms) == expected


@pytest.mark.finding("3D11")
def test_each_quarantined_timer_is_counted_and_the_first_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats, outcome = DeliveryStats(TopicTable()), Outcome(12)
    outcome.quarantined = [Undeliverable(Reason.NO_TARGET, "why", at, 0, at) for at in range(12)]
    stats.record_undelivered(outcome)
    assert stats.quarantined == {Reason.NO_TARGET: 12}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "timer offset 0 (log offset 0) went to quarantine, no_target: why"
    assert lines[10:] == ["2 more messages went to quarantine"]


def test_without_topics_one_histogram_counts_all() -> None:
    stats = DeliveryStats()
    stats.record(np.array([5, 5], np.int64), outcome_of((5, 0), (8, 1)), 5_000)
    assert (stats.delivered, [late.count for late in stats.lateness]) == (2, [2])
    assert stats.lateness[0].as_dict()["max"] == 3


def test_without_timing_only_deliveries_are_counted() -> None:
    stats = DeliveryStats()
    outcome = outcome_of((1, 0), (1, 0), (1, 0))
    stats.record(np.zeros(3, np.int64), outcome, 5_000, timed=False)
    assert (stats.delivered, stats.lateness[0].count) == (3, 0)
    assert stats.lateness[0].as_dict()["max"] is None
