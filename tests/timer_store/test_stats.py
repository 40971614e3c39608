"""Statistics of the delivery of timers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from delayed_delivery.deliverer import NOT_PUT, Outcome
from delayed_delivery.quarantine import Reason, Undeliverable
from message_store.queues.topic_table import TopicTable
from timer_store.stats import (
    CLASSES,
    ORDINARY,
    RETRY,
    SYSTEM,
    Rate,
    TimerStats,
    class_of,
    families,
)


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
def stats(topics: TopicTable) -> TimerStats:
    stats = TimerStats(topics)
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


def test_an_outcome_is_counted_by_class(stats: TimerStats) -> None:
    assert (stats.delivered, stats.lost, stats.refused) == (2, 1, 1)
    assert stats.quarantined == {Reason.HALF_MESSAGE: 1}
    assert [late.count for late in stats.lateness] == [1, 1, 0]
    assert [late.max_ms for late in stats.lateness] == [3, 20, 0]


def test_topics_created_later(stats: TimerStats, topics: TopicTable) -> None:
    topics.add("rmq_sys_new")
    stats.record(np.array([0], np.int64), outcome_of((5, 2)), 5_000)
    assert [late.count for late in stats.lateness] == [1, 1, 1]


def test_an_outcome_without_deliveries_changes_no_lateness(stats: TimerStats) -> None:
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


def test_views_are_plain_data(stats: TimerStats) -> None:
    found = stats.as_dict(6_000)
    assert found["delivered"] == 2
    assert found["delivered_per_second"] == 0.2
    assert found["quarantined"] == {"half_message": 1}
    assert list(found["lateness_ms"]) == list(CLASSES)  # type: ignore[call-overload]
    assert found["lateness_ms"]["ordinary"]["p999"] == found["lateness_ms"]["ordinary"]["max"] == 3
    assert found["lateness_ms"]["system"]["p999"] is None


def test_metrics(stats: TimerStats) -> None:
    text = page_of(stats, 2_000, {"staged": ("Timers loaded for delivery.", 3)})
    for line in (
        "duemq_timer_next_due_timestamp_seconds 2.0",
        "duemq_timer_staged 3.0",
        "duemq_timer_lost_total 1.0",
        "duemq_timer_refused_total 1.0",
        'duemq_timer_quarantined_total{reason="half_message"} 1.0',
        'duemq_timer_lateness_seconds_bucket{le="0.005",topics="ordinary"} 1.0',
        'duemq_timer_lateness_seconds_sum{topics="retry"} 0.02',
    ):
        assert line in text
    assert "\nduemq_timer_next_due_timestamp_seconds " not in page_of(stats, None, {})


def page_of(*figures: TimerStats | int | dict[str, int | tuple[str, int]] | None) -> str:
    class Collected:
        def collect(self) -> Iterator[Any]:
            return families(*figures)

    registry = CollectorRegistry()
    registry.register(Collected())
    return generate_latest(registry).decode()


@pytest.mark.finding("3D11")
def test_each_quarantined_timer_is_counted_and_the_first_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats, outcome = TimerStats(TopicTable()), Outcome(12)
    outcome.quarantined = [Undeliverable(Reason.NO_TARGET, "why", at, 0, at) for at in range(12)]
    stats.record_undelivered(outcome)
    assert stats.quarantined == {Reason.NO_TARGET: 12}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "timer offset 0 (log offset 0) went to quarantine, no_target: why"
    assert lines[10:] == ["2 more messages went to quarantine"]
