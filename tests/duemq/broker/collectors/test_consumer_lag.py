"""Costs of the lags: a scrape visits every queue of every group."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest

from delayed_delivery.steps import at_once
from duemq.broker.collectors import consumer_lag
from duemq.broker.collectors.consumer_lag import READS_PER_STEP, GroupLag


class CountedStore:
    """Store whose messages of queue `n` have the log offsets from 1,000 n + 10 on, in steps of 10.

    Attributes:
        units, records: Numbers of reads.
    """

    def __init__(self) -> None:
        self.units = self.records = 0

    def log_offset_at(self, topic: str, queue_id: int, offset: int) -> int:
        self.units += 1
        return 1_000 * queue_id + 10 * offset if offset else -1  # the first one was removed

    def store_ms(self, log_offset: int) -> int:
        self.records += 1
        return log_offset


@pytest.mark.parametrize(("start", "pulled", "reads"), [(5, 5, 0), (4, 5, 1), (4, 4, 1), (3, 4, 2)])
def test_a_queue_without_lag_is_not_read(start: int, pulled: int, reads: int) -> None:
    store, lag = CountedStore(), GroupLag("g", "t", system=False)
    consumer_lag.add_lag(lag, ("t", 0), start, pulled, 5)
    at_once(lag.set_ages(cast(Any, store), 100))
    assert store.units == reads
    assert (lag.lag_latency, lag.queueing_latency) == (
        100 - 10 * start if start < 5 else 0,
        100 - 10 * pulled if pulled < 5 else 0,
    )


def test_the_record_of_the_first_message_of_all_queues_is_read() -> None:
    store, lag = CountedStore(), GroupLag("g", "t", system=False)
    for queue_id, (start, pulled) in {3: (1, 2), 2: (4, 7), 1: (9, 9), 0: (0, 0)}.items():
        consumer_lag.add_lag(lag, ("t", queue_id), start, pulled, 9)
    at_once(lag.set_ages(cast(Any, store), 10_000))
    assert (lag.lag_latency, lag.queueing_latency) == (10_000 - 2_040, 10_000 - 2_070)
    assert store.records == 2


def test_a_step_reads_few_units() -> None:
    """The units of thousands of queues with a lag take seconds."""
    store, lag = CountedStore(), GroupLag("g", "t", system=False)
    for queue_id in range(100):
        consumer_lag.add_lag(lag, ("t", queue_id), 1, 2, 9)
    reads = [0]
    for _ in lag.set_ages(cast(Any, store), 10_000):
        reads.append(store.units)
    reads.append(store.units)
    assert reads[-1] == 200
    assert max(after - before for before, after in pairwise(reads)) <= READS_PER_STEP
