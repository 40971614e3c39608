"""The plugin in a broker: one schedule, a kill of its store, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.clock import FakeClock
from recurring_schedules.plugin import NO_TIMERS
from tests.support.running_broker import BrokerClient, bodies_of, running, small

DEFINITION = {"name": "report", "topic": "T", "every_ms": 1_000, "body": "aGVsbG8="}


async def create(client: BrokerClient, **changes: object) -> tuple[int, str]:
    definition = DEFINITION | changes
    fields = {"action": "create", "name": "report", "topic": definition["topic"]}
    body = json.dumps(definition).encode()
    response = await client.call(RequestCode.CHANGE_SCHEDULE, fields, body)
    return response.code, response.remark or ""


def test_an_occurrence_is_delivered_by_a_broker(tmp_path: Path) -> None:
    asyncio.run(_deliver(tmp_path))


async def _deliver(tmp_path: Path) -> None:
    async with running(small(tmp_path, timerWheelEnable="true")) as (_, client):
        await client.send("T", b"first")
        assert await create(client) == (ResponseCode.SUCCESS, "")
        assert bodies_of(await client.pull("T", 1)) == [b"hello"]


def test_without_timers_a_schedule_is_refused(tmp_path: Path) -> None:
    asyncio.run(_refuse(tmp_path))


async def _refuse(tmp_path: Path) -> None:
    properties = small(tmp_path, timerWheelEnable="false")
    async with running(properties, clock=FakeClock()) as (_, client):
        await client.send("T", b"first")
        assert await create(client) == (ResponseCode.SERVICE_NOT_AVAILABLE, NO_TIMERS)
