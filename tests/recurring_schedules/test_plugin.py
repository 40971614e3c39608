"""The plugin in a broker: one schedule, a kill of its store, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from duemq.send.schedule_refusal import REMARK
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from recurring_schedules.plugin import NO_TIMERS
from tests.support.running_broker import BrokerClient, bodies_of, running, small

LARGE_FILES = {"mappedFileSizeCommitLog": "4194304"}
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


def test_a_message_creates_a_schedule_in_a_broker(tmp_path: Path) -> None:
    asyncio.run(_create_by_message(tmp_path))


async def _create_by_message(tmp_path: Path) -> None:
    """The body is larger than the buffer of a turn; the sends after it are intact."""
    request = {"DUEMQ_SCHEDULE_NAME": "s", "DUEMQ_SCHEDULE_EVERY_MS": "1000", "UNIQ_KEY": "u"}
    body = b"x" * 500_000
    async with running(small(tmp_path, timerWheelEnable="true", **LARGE_FILES)) as (_, client):
        await client.send("T", b"first", UNIQ_KEY="1")
        assert (await client.send("T", body, **request)).code == ResponseCode.SUCCESS
        assert bodies_of(await client.pull("T", 1)) == [body]
        other = await client.send("T", b"other", **request)
        assert other.code == ResponseCode.MESSAGE_ILLEGAL
        assert "schedule s exists with another definition" in (other.remark or "")
        bodies = [b"%d" % number for number in range(9)]
        for sent in bodies:
            await client.send("U", sent, UNIQ_KEY=sent.decode())
        assert bodies_of(await client.pull("U", 0)) == bodies


@pytest.mark.parametrize("disabled", ["", "recurring_schedules"])
def test_without_schedules_such_a_message_is_refused(tmp_path: Path, disabled: str) -> None:
    asyncio.run(_refuse_message(tmp_path, disabled))


async def _refuse_message(tmp_path: Path, disabled: str) -> None:
    request = {"DUEMQ_SCHEDULE_NAME": "s", "DUEMQ_SCHEDULE_EVERY_MS": "1000", "UNIQ_KEY": "u"}
    keys = {"timerWheelEnable": "true" if disabled else "false", "brokerPluginDisabled": disabled}
    async with running(small(tmp_path, **keys), clock=FakeClock()) as (_, client):
        response = await client.send("T", b"hello", **request)
        assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (response.remark or "").endswith(REMARK if disabled else NO_TIMERS)
        forged = await client.send("T", b"hello", DUEMQ_SCHEDULE="s", UNIQ_KEY="v")
        assert forged.code == (
            ResponseCode.SERVICE_NOT_AVAILABLE if disabled else ResponseCode.MESSAGE_ILLEGAL
        )


def test_without_timers_a_schedule_is_refused(tmp_path: Path) -> None:
    asyncio.run(_refuse(tmp_path))


async def _refuse(tmp_path: Path) -> None:
    properties = small(tmp_path, timerWheelEnable="false")
    async with running(properties, clock=FakeClock()) as (_, client):
        await client.send("T", b"first")
        assert await create(client) == (ResponseCode.SERVICE_NOT_AVAILABLE, NO_TIMERS)
