"""SIGKILL at random times while schedules run: each planned time is delivered exactly once.

--kills N    a fifth of it is the number of kills, at least 4
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode
from message_store.config import StoreConfig
from tests.crash.killed_broker import LOG_FILE_BYTES, KilledBroker
from tests.support.running_broker import BrokerClient, connected
from tests.support.schedule_checks import check_each_once, read_occurrences
from tests.support.wait_until import until

log = logging.getLogger(__name__)
TOPIC, QUEUES = "Schedules", 4
EVERY_MS = {"a": 1_000, "b": 1_300, "c": 2_000}
UP_MS = 2_500
"""Maximum time from a start to the kill."""


async def change(client: BrokerClient, action: str, name: str, body: bytes = b"") -> None:
    fields = {"action": action, "name": name, "topic": TOPIC}
    response = await client.call(RequestCode.CHANGE_SCHEDULE, fields, body)
    assert response.code == 0, response.remark


async def create_all(address: str) -> None:
    async with connected(address) as client:
        await client.send(TOPIC, b"first")
        for name, every_ms in EVERY_MS.items():
            definition = {"name": name, "topic": TOPIC, "every_ms": every_ms}
            await change(client, "create", name, json.dumps(definition).encode())


async def pause_all(address: str) -> None:
    async with connected(address) as client:
        for name in EVERY_MS:
            await change(client, "pause", name)


def run_for(span_ms: int) -> None:
    clock = SystemClock()
    end_ms = clock.now_ms() + span_ms
    until(lambda: clock.now_ms() >= end_ms, seconds=60, what="a kill")


def store_config(root: Path) -> StoreConfig:
    return StoreConfig(
        root_text=str(root),
        commitlog_file_bytes=LOG_FILE_BYTES,
        queue_file_bytes=200_000,
        index_slots_max=10_000,
        index_entries_max=40_000,
    )


@pytest.mark.crash
def test_kills_while_schedules_run(tmp_path: Path, kills: int, seed: int) -> None:
    broker = KilledBroker(tmp_path, seed)
    broker.start()
    asyncio.run(create_all(broker.address))
    count = max(kills // 5, 4)
    for _ in range(count):
        run_for(broker.random.randint(0, UP_MS))
        broker.kill()
        broker.start()
    asyncio.run(pause_all(broker.address))
    broker.kill()
    where = f"seed {seed}, log {tmp_path}/broker.log"
    records = read_occurrences(store_config(broker.root), TOPIC, QUEUES)
    check_each_once(records, EVERY_MS, where)
    log.info("%d kills, %d occurrences of schedules", count, len(records))
