"""Compaction in a running broker: requested by request 9014, pinned and unpinned by name."""

from __future__ import annotations

import asyncio
import json
import os
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.plugins import InstalledPlugin
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from tests.support.running_broker import BrokerClient, running, small
from timer_store.compaction.compactor import PAUSE_MS, PIN_OWNER

PLUGINS = [
    InstalledPlugin(name, EntryPoint(name, f"{name}.plugin:create_plugin", ENTRY_POINT_GROUP))
    for name in ("schedule_service", "timer_store")
]
TURNS_MAX = 1_000


async def view(client: BrokerClient) -> dict[str, Any]:
    response = await client.call(RequestCode.GET_VIEW, {"view": "timer_store.summary"})
    found: dict[str, Any] = json.loads(bytes(response.body))["compaction"]
    return found


def test_a_broker_compacts_when_it_is_asked_to(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock, plugins=PLUGINS) as (broker, client):
            await client.send("T", b"later", UNIQ_KEY="U", TIMER_DELAY_SEC="3600")
            for _ in range(10):
                await client.send("T", b"x" * 20_000)
            retention = broker.store.retention
            assert retention.first_pinned() == 0
            assert retention.first_pinned(but=[PIN_OWNER]) is None
            for file in broker.store.log.files[:-1]:
                os.utime(file.path, (0, 0))
            response = await client.call(RequestCode.COMPACT_TIMERS, body=b"{}")
            plan = json.loads(bytes(response.body))
            assert (plan["started"], plan["messages"]) == (True, 1)
            for _ in range(TURNS_MAX):
                if not (await view(client))["running"]:
                    break
                clock.advance(PAUSE_MS)
            reported = await view(client)
            assert (reported["copied"], reported["blocked_by"]) == (1, "")
            assert reported["freed_bytes"] >= plan["until"]
            clock.advance(3_600_000)
            response = await client.pull("T", 10)
            assert b"later" in bytes(response.body)

    asyncio.run(main())
