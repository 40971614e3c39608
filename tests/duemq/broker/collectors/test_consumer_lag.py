"""Costs of the lags: a scrape visits every queue of every group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from duemq.broker.collectors import consumer_lag
from duemq.broker.collectors.consumer_lag import GroupLag
from duemq.broker.components import BrokerComponents
from duemq.pop.pop_offsets import GroupQueue
from message_store.store import MessageStore


@pytest.mark.parametrize(("start", "pulled", "reads"), [(5, 5, 0), (4, 5, 1), (3, 4, 2)])
def test_a_queue_without_lag_is_not_read(
    monkeypatch: pytest.MonkeyPatch, start: int, pulled: int, reads: int
) -> None:
    read = list[int]()

    def store_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
        read.append(offset)
        return 7

    monkeypatch.setattr(consumer_lag, "store_ms_at", store_ms)
    parts = cast(BrokerComponents, SimpleNamespace(store=None))
    lag = GroupLag("g", "t", system=False)
    consumer_lag.add_lag(parts, lag, GroupQueue("g", "t", 0), start, pulled, 5, now_ms=100)
    assert len(read) == reads
    assert (lag.lag_latency > 0, lag.queueing_latency > 0) == (start < 5, pulled < 5)
