"""Workload of a broker on loopback with installed plugins: sends, deliveries, pulls, pops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import generate_latest

from duemq.broker.broker import Broker
from duemq.net.client import RemotingClient
from duemq.send import layout
from duemq.send.grants import key_states
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from message_store.kernels.preparation import Preparation
from message_store.kernels.registry import KernelEntry
from message_store.log.layout import BATCH_ENTRY_HEAD
from message_store.log.properties import encode_properties
from tests.support.pop_client import Popped, popped

TOPIC = "Kernels"
CALL_TIMEOUT_S = 600.0  # the first call of a kernel compiles it
DELIVERY_WAIT_S = 600.0
BATCH_COUNT = 2
HELD_S = 0.1
SMALL = {
    "listenPort": "0",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerName": "kernels",
    "metricsPromExporterPort": "0",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "64",
    "maxIndexNum": "256",
    "messageDelayLevel": "1s 1h",
}


def send_messages(root: Path) -> None:
    """Send messages of all kinds to a new broker and pull them."""
    for number, flush in enumerate(("SYNC_FLUSH", "ASYNC_FLUSH")):
        never = Preparation(("ingest",), _never)
        asyncio.run(_serve(root / str(number), flush, "false", deliver=False, kernels=never))


async def _never(kernels: Sequence[KernelEntry], niceness: int) -> None:
    await asyncio.Event().wait()


def ingest_messages(root: Path) -> None:
    """Send messages to a broker that decodes sends with the ingest kernel."""
    key_states("secret")  # of an account
    asyncio.run(_serve(root, "ASYNC_FLUSH", "false", deliver=False, pop=True))


def run_broker(root: Path) -> None:
    """Restart brokers on existing stores; send, deliver and pull."""
    key_states("secret")
    for flush, in_turn in (("SYNC_FLUSH", "false"), ("ASYNC_FLUSH", "true")):
        asyncio.run(_serve(root, flush, in_turn, deliver=True, pop=True))
    asyncio.run(_serve(root / "no timers", "ASYNC_FLUSH", "false", deliver=False, timers=False))


async def _serve(
    root: Path,
    flush: str,
    in_turn: str,
    *,
    deliver: bool,
    pop: bool = False,
    timers: bool = True,
    kernels: Preparation | None = None,
) -> None:
    properties = SMALL | {
        "storePathRootDir": str(root),
        "flushDiskType": flush,
        "enableScheduleAsyncDeliver": in_turn,
        "timerWheelEnable": str(timers).lower(),
    }
    async with (
        Broker(properties, kernels=kernels) as broker,
        RemotingClient(broker.address) as client,
    ):
        await asyncio.to_thread(generate_latest, broker.metrics)
        await client.call(
            Request(RequestCode.GET_BROKER_RUNTIME_INFO, {}), timeout_s=CALL_TIMEOUT_S
        )
        begin = Request(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
        response = await client.call(begin, timeout_s=CALL_TIMEOUT_S)
        offset = int((response.fields or {}).get("offset", 0))
        end = offset + await _send_all(client, deliver=deliver)
        await _until_readable(client, offset, end)
        if pop:
            await _pop(client)
        if deliver:
            sql = {"subscription": "UNIQ_KEY = 'B'", "expressionType": "SQL92"}
            await client.call(pull_request(offset, **sql), timeout_s=CALL_TIMEOUT_S)
        async with asyncio.TaskGroup() as tasks:  # a pull that a send ends
            tasks.create_task(client.call(pull_request(end), timeout_s=CALL_TIMEOUT_S))
            await asyncio.sleep(HELD_S)
            send = send_request(RequestCode.SEND_MESSAGE_V2, {})
            await client.call(send, timeout_s=CALL_TIMEOUT_S)


async def _send_all(client: RemotingClient, *, deliver: bool) -> int:
    """Send messages of all kinds; return the number of those that become readable soon."""
    at_once: tuple[dict[str, str], ...] = ({}, {"KEYS": "é", "TAGS": "a"})
    later: tuple[dict[str, str], ...] = ({"DELAY": "1"}, {"TIMER_DELAY_MS": "300"})
    far = ({"DELAY": "2"}, {"TIMER_DELAY_SEC": "3600"})
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        for properties in (*at_once, *far, *(later if deliver else ())):
            await client.call(send_request(code, properties), timeout_s=CALL_TIMEOUT_S)
    await client.call(_batch(), timeout_s=CALL_TIMEOUT_S)
    unknown = send_request(RequestCode.SEND_MESSAGE_V2, {}, topic="Illegal Name")
    await client.call(unknown, timeout_s=CALL_TIMEOUT_S)
    return 2 * (len(at_once) + (len(later) if deliver else 0)) + BATCH_COUNT


async def _until_readable(client: RemotingClient, offset: int, end: int) -> None:
    """Pull until all messages are readable."""
    async with asyncio.timeout(DELIVERY_WAIT_S):
        while offset < end:
            response = await client.call(pull_request(offset), timeout_s=CALL_TIMEOUT_S)
            offset = int((response.fields or {}).get("nextBeginOffset", offset))


async def _pop(client: RemotingClient) -> None:
    """Pop messages, some of them again from their retry topic, and acknowledge each."""
    await client.call(_pop_request(0), timeout_s=CALL_TIMEOUT_S)
    is_again = False
    async with asyncio.timeout(DELIVERY_WAIT_S):
        while not is_again:
            response = await client.call(_pop_request(60_000), timeout_s=CALL_TIMEOUT_S)
            for message in (
                popped(response, TOPIC, SMALL["brokerName"]) if response.code == 0 else ()
            ):
                is_again |= message.record.reconsume_times > 0
                await _acknowledge(client, message)


def _pop_request(invisible_ms: int) -> Request:
    fields = {
        "consumerGroup": "g",
        "topic": TOPIC,
        "queueId": "-1",
        "maxMsgNums": "4",
        "invisibleTime": str(invisible_ms),
        "pollTime": "1000",
        "bornTime": _now(),
        "initMode": "0",
    }
    return Request(RequestCode.POP_MESSAGE, fields)


async def _acknowledge(client: RemotingClient, message: Popped) -> None:
    named = {
        "consumerGroup": "g",
        "topic": message.real_topic,
        "queueId": str(message.queue_id),
        "offset": str(message.offset),
        "extraInfo": message.handle,
    }
    acknowledgement = Request(RequestCode.ACK_MESSAGE, named)
    await client.call(acknowledgement, timeout_s=CALL_TIMEOUT_S)


def send_request(code: int, properties: dict[str, str], *, topic: str = TOPIC) -> Request:
    text = encode_properties({"UNIQ_KEY": "S", "WAIT": "true", **properties}).decode()
    values = ("g", topic, "TBW102", "1", "0", "0", _now(), "0", text, "0", "false", "0", "false")
    names = layout.SEND_FIELDS if code == RequestCode.SEND_MESSAGE else layout.SEND_LETTERS
    return Request(code, dict(zip(names, values, strict=False)), b"x" * 100, version=479)


def _batch() -> Request:
    request = send_request(RequestCode.SEND_BATCH_MESSAGE, {})
    body, properties = b"x" * 10, encode_properties({"UNIQ_KEY": "B"})
    size = BATCH_ENTRY_HEAD.size + len(body) + 2 + len(properties)
    one = BATCH_ENTRY_HEAD.pack(size, 0, 0, 0, len(body)) + body
    request.body = (one + len(properties).to_bytes(2, "big") + properties) * BATCH_COUNT
    return request


def pull_request(offset: int, **filtered: str) -> Request:
    fields = {
        "consumerGroup": "g",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "1000",
        "subscription": "*",
        "subVersion": "0",
    }
    return Request(RequestCode.PULL_MESSAGE, fields | filtered, version=479)


def _now() -> str:
    return str(SystemClock().now_ms())
