"""Requests of Apache's tools about timers: 60, 61 and 28 to a real broker."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.broker import Broker
from duemq.broker.plugins import InstalledPlugin
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from tests.support.running_broker import BrokerClient, running, small

HOUR_S = 3_600
GET_TIMER_CHECK_POINT, GET_TIMER_METRICS = 60, 61
TIMERS = InstalledPlugin(
    "timer_store", EntryPoint("timer_store", "timer_store.plugin:create_plugin", ENTRY_POINT_GROUP)
)


def on_a_broker(
    root: Path, call: Callable[[Broker, BrokerClient], Awaitable[Any]], **more: str
) -> Any:
    """Run a broker with three pending timers for T and one for U; return the result of `call`."""

    async def run() -> Any:
        async with running(small(root, **more), plugins=[TIMERS]) as (broker, client):
            for topic in ("T", "T", "U", "T"):
                sent = await client.send(topic, b"x", TIMER_DELAY_SEC=str(HOUR_S), UNIQ_KEY="A")
                assert sent.code == ResponseCode.SUCCESS, sent.remark
            return await call(broker, client)

    return asyncio.run(run())


def body_of(response: Response) -> bytes:
    assert response.code == ResponseCode.SUCCESS, response.remark
    assert isinstance(response.body, (bytes, memoryview))
    return bytes(response.body)


async def write_checkpoint(broker: Broker) -> None:
    plugin: Any = broker.plugins.plugins["timer_store"]
    assert await plugin.parts.keeper.persist(last=True)


def test_checkpoint_and_metrics(tmp_path: Path) -> None:
    async def call(broker: Broker, client: BrokerClient) -> tuple[bytes, bytes]:
        await write_checkpoint(broker)
        check = await client.call(GET_TIMER_CHECK_POINT)
        metrics = await client.call(GET_TIMER_METRICS)
        return body_of(check), body_of(metrics)

    check, metrics = on_a_broker(tmp_path, call)
    _, log_pos, queue_offset, master_offset, _, _, counter = struct.unpack(">7q", check)
    assert (log_pos, queue_offset, master_offset) == (4 * 52, 4, 4)
    assert counter >= 1
    reported = json.loads(metrics)
    assert {topic: item["count"] for topic, item in reported["timingCount"].items()} == {
        "T": 3,
        "U": 1,
    }
    assert reported["dataVersion"]["counter"] == 4
    assert metrics == (tmp_path / "store" / "config" / "timermetrics").read_bytes()


def test_metrics_are_exact_between_checkpoints(tmp_path: Path) -> None:
    async def send_requests(broker: Broker, client: BrokerClient) -> list[Any]:
        found = []
        for topic in ("T", "V"):
            await client.send(topic, b"x", TIMER_DELAY_SEC=str(HOUR_S))
            found.append(json.loads(body_of(await client.call(GET_TIMER_METRICS))))
        return found

    first, second = on_a_broker(tmp_path, send_requests, timerFlushIntervalMs="3600000")
    assert {t: item["count"] for t, item in first["timingCount"].items()} == {"T": 4, "U": 1}
    assert {t: item["count"] for t, item in second["timingCount"].items()} == {
        "T": 4,
        "U": 1,
        "V": 1,
    }
    assert (first["dataVersion"]["counter"], second["dataVersion"]["counter"]) == (5, 6)


def test_broker_status_shows_the_timer_keys(tmp_path: Path) -> None:
    async def call(broker: Broker, client: BrokerClient) -> dict[str, str]:
        response = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        table: dict[str, str] = json.loads(body_of(response))["table"]
        return table

    table = on_a_broker(tmp_path, call)
    assert (table["timerReadBehind"], table["timerOffsetBehind"]) == ("0", "0")
    assert table["timerCongestNum"] == "4"
    assert float(table["timerEnqueueTps"]) >= 0.0
    assert float(table["timerDequeueTps"]) == 0.0


@pytest.mark.parametrize(
    ("view", "fields", "code"),
    [
        ("timer_store.summary", {}, ResponseCode.SUCCESS),
        ("timer_store.list", {"topic": "T", "limit": "2"}, ResponseCode.SUCCESS),
        ("timer_store.forecast", {"width_ms": "3600000"}, ResponseCode.SUCCESS),
        ("timer_store.list", {"limit": "many"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_views_are_requested_over_the_wire(
    tmp_path: Path, view: str, fields: dict[str, str], code: int
) -> None:
    async def call(broker: Broker, client: BrokerClient) -> Response:
        return await client.call(RequestCode.GET_VIEW, {"view": view, **fields})

    response = on_a_broker(tmp_path, call)
    assert response.code == code
    if fields.get("topic"):
        page = json.loads(body_of(response))
        assert [timer["topic"] for timer in page["timers"]] == ["T", "T"]


def test_a_broker_without_timers_refuses_views_and_metrics(tmp_path: Path) -> None:
    async def call() -> list[int]:
        properties = small(tmp_path, timerWheelEnable="false")
        async with running(properties, plugins=[TIMERS]) as (_, client):
            responses = [
                client.call(RequestCode.GET_VIEW, {"view": "timer_store.summary"}),
                client.call(GET_TIMER_METRICS),
            ]
            return [(await response).code for response in responses]

    shown, metrics = asyncio.run(call())
    assert shown == metrics == ResponseCode.SYSTEM_ERROR
