"""Views and metrics of the delivery of timers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from delayed_delivery.outcome import CLASSES, DeliveryStats, Outcome
from delayed_delivery.quarantine import Reason, Undeliverable
from message_store.queues.topic_table import TopicTable
from timer_store.collector import families
from timer_store.views import stats_view


@pytest.fixture
def stats() -> DeliveryStats:
    topics, outcome = TopicTable(), Outcome(2)
    for index, name in enumerate(("T", "%RETRY%g")):
        outcome.record((1_003, 1_020)[index], topics.add(name))
    outcome.quarantined = [Undeliverable(Reason.HALF_MESSAGE, "", 0, 0, 0)]
    outcome.lost, outcome.refusal = 1, "full"
    stats = DeliveryStats(topics)
    stats.record(np.array([1_000, 1_000], np.int64), outcome, 5_000)
    return stats


def test_views_are_plain_data(stats: DeliveryStats) -> None:
    found = stats_view(stats, 6_000)
    assert found["delivered"] == 2
    assert found["delivered_per_second"] == 0.2
    assert found["quarantined"] == {"half_message": 1}
    assert list(found["lateness_ms"]) == list(CLASSES)  # type: ignore[call-overload]
    assert found["lateness_ms"]["ordinary"]["p999"] == found["lateness_ms"]["ordinary"]["max"] == 3
    assert found["lateness_ms"]["system"]["p999"] is None


def test_metrics(stats: DeliveryStats) -> None:
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


def page_of(*figures: DeliveryStats | int | dict[str, int | tuple[str, int]] | None) -> str:
    class Collected:
        def collect(self) -> Iterator[Any]:
            return families(*figures)

    registry = CollectorRegistry()
    registry.register(Collected())
    return generate_latest(registry).decode()
