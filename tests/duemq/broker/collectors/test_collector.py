"""Broker metrics: each is the value of its component."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.broker.collectors.collector import broker_collector
from duemq_common.clock import FakeClock
from tests.support.running_broker import running, small


def test_each_metric_is_the_value_of_its_component(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (broker, client):
            await client.send("T", b"body")
            store, parts = broker.store, broker.parts
            assert parts.pop is not None
            assert parts.transactions is not None
            monkeypatch.setattr(type(store), "durable_offset", 2)
            monkeypatch.setattr(store.retention, "removed_files", 3)
            parts.memory.refused_count, parts.memory.shed_count = 4, 5
            parts.pop.reviver.quarantine.counts.update(a=6)
            parts.transactions.quarantine.counts.update(a=7)
            values = {
                sample.name.removeprefix("duemq_"): sample.value
                for family in broker_collector(broker).collect()
                for sample in family.samples
            }
            used = values.pop("disk_used_ratio"), values.pop("connection_memory_bytes")
            assert (0 < used[0] < 1, used[1]) == (True, parts.memory.used_bytes)
            assert values == {
                "up": 1,
                "store_writable": 1,
                "commitlog_min_offset": 0,
                "commitlog_max_offset": store.max_offset,
                "commitlog_durable_offset": 2,
                "held_pulls": 0,
                "connections": 1,
                "tls_connections": 0,
                "tls_reload_failed": 0,
                "connection_memory_limit_bytes": parts.memory.limit_bytes,
                "pop_quarantined_total": 6,
                "transaction_quarantined_total": 7,
                "tls_reloads_total": 0,
                "connections_refused_total": 4,
                "connections_shed_total": 5,
                "log_files_removed_total": 3,
                "access_refused_total": 0,
                "access_reload_failures_total": 0,
            }

    asyncio.run(main())
