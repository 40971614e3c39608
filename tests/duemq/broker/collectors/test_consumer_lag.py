"""Costs of the lags: a scrape visits every queue of every group."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.broker.collectors import consumer_lag
from duemq.broker.collectors.consumer_lag import GroupLag
from duemq.pop.pop_offsets import GroupQueue


@pytest.mark.parametrize(("start", "pulled", "reads"), [(5, 5, 0), (4, 5, 1), (3, 4, 2)])
def test_a_queue_without_lag_is_not_read(
    monkeypatch: pytest.MonkeyPatch, start: int, pulled: int, reads: int
) -> None:
    read = list[int]()

    def age_ms(parts: Any, queue: GroupQueue, offset: int, now_ms: int) -> int:
        read.append(offset)
        return 7

    monkeypatch.setattr(consumer_lag, "_age_ms", age_ms)
    lag = GroupLag("g", "t", system=False)
    parts: Any = None
    consumer_lag._add(parts, lag, GroupQueue("g", "t", 0), start, pulled, 5, now_ms=100)
    assert len(read) == reads
    assert (lag.lag_latency > 0, lag.queueing_latency > 0) == (start < 5, pulled < 5)
