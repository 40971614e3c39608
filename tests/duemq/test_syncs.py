"""Nothing syncs a file on the event loop's thread while a broker serves."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery import ownership
from delayed_delivery.ownership import StateRecord
from duemq.broker.broker import Broker
from duemq_common.codes import RequestCode
from tests.support.running_broker import BrokerClient, running, small


def note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note from where the main thread syncs a file or a directory."""
    seen: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def sync(fd: int, real: Any = real) -> None:
            if threading.current_thread() is threading.main_thread():
                seen.append("".join(traceback.format_stack(limit=6)))
            real(fd)

        monkeypatch.setattr(os, name, sync)
    return seen


async def administrate(broker: Broker, client: BrokerClient) -> None:
    """Send each request that changes a table, and have every job run."""
    topic = {
        "topic": "New",
        "defaultTopic": "TBW102",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    assert (await client.send("New", b"message")).code == 0
    group = json.dumps({"groupName": "g"}).encode()
    response = await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    assert response.code == 0
    for delay in ({"DELAY": "5"}, {"TIMER_DELAY_SEC": "3600"}):
        assert (await client.send("New", b"pending", **delay)).code == 0
    ownership.append(
        broker.store,
        StateRecord(migration="m", level=3, source="planned", target="planned"),
        broker.clock.now_ms(),
    )
    migration: Any = broker.plugins.plugins["migration"]
    migration.parts.service.migrations.catch_up()
    assert await broker.store.wait_durable(broker.store.max_offset)
    offset = {"consumerGroup": "g", "topic": "New", "queueId": 0, "commitOffset": 1}
    assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code == 0
    for job in broker.scheduler.get_jobs():
        await job.func()
    assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "New"})).code == 0
    assert (await client.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0


@pytest.mark.finding("A17")
def test_requests_and_jobs_sync_in_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[str]:
        async with running(small(tmp_path)) as (broker, client):
            with monkeypatch.context() as patch:
                seen = note_syncs(patch)
                await administrate(broker, client)
                return list(seen)

    seen = asyncio.run(main())
    assert not seen, seen[0]
