"""Compile every kernel of a broker by using one: sends of all kinds, deliveries, pulls, a restart.

Numba keeps one machine code per combination of argument types. A real broker on loopback, with
the installed plugins, gives the very types that later ones will use.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from delivery.plugin import Request
from duemq.broker import Broker
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq.send import layout
from message_store.clock import SystemClock
from message_store.layout import BATCH_ENTRY_HEAD, packer
from message_store.log.properties import encode_properties

TOPIC = "Warm"
CALL_TIMEOUT_S = 600.0  # the first call of a kernel compiles it
DELIVERY_WAIT_S = 600.0
BATCH_COUNT = 2
SMALL = {
    "listenPort": "0",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerName": "warm",
    "metricsExporterType": "DISABLE",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "64",
    "maxIndexNum": "256",
    "messageDelayLevel": "1s 1h",
}


async def use_a_broker() -> None:
    """Run a broker in a temporary directory through everything that has a kernel, twice."""
    with tempfile.TemporaryDirectory(prefix="duemq-warm-") as directory:
        for flush in ("SYNC_FLUSH", "ASYNC_FLUSH"):
            for deliver in ("false", "true"):
                properties = SMALL | {
                    "storePathRootDir": directory,
                    "flushDiskType": flush,
                    "enableScheduleAsyncDeliver": deliver,
                }
                async with (
                    Broker(properties) as broker,
                    RemotingClient(broker.address) as client,
                ):
                    await _use(client)


async def _use(client: RemotingClient) -> None:
    begin = Request(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
    answer = await client.call(begin, timeout_s=CALL_TIMEOUT_S)
    offset = int((answer.fields or {}).get("offset", 0))
    soon: tuple[dict[str, str], ...] = ({}, {"DELAY": "1"}, {"KEYS": "é", "TAGS": "a"})
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        for properties in (*soon, {"DELAY": "2"}):
            await client.call(_send(code, properties), timeout_s=CALL_TIMEOUT_S)
    await client.call(_batch(), timeout_s=CALL_TIMEOUT_S)
    unknown = _send(RequestCode.SEND_MESSAGE_V2, {}, topic="Illegal Name")
    await client.call(unknown, timeout_s=CALL_TIMEOUT_S)
    await _until_readable(client, offset, offset + 2 * len(soon) + BATCH_COUNT)


async def _until_readable(client: RemotingClient, offset: int, end: int) -> None:
    """Pull until the messages of level 1 have come, too."""
    async with asyncio.timeout(DELIVERY_WAIT_S):
        while offset < end:
            answer = await client.call(_pull(offset), timeout_s=CALL_TIMEOUT_S)
            offset = int((answer.fields or {}).get("nextBeginOffset", offset))


def _send(code: int, properties: dict[str, str], *, topic: str = TOPIC) -> Request:
    text = encode_properties({"UNIQ_KEY": "W", "WAIT": "true", **properties}).decode()
    values = ("g", topic, "TBW102", "1", "0", "0", _now(), "0", text, "0", "false", "0", "false")
    names = layout.SEND_FIELDS if code == RequestCode.SEND_MESSAGE else layout.SEND_LETTERS
    return Request(code, dict(zip(names, values, strict=False)), b"x" * 100, version=479)


def _batch() -> Request:
    request = _send(RequestCode.SEND_BATCH_MESSAGE, {})
    entry = BATCH_ENTRY_HEAD
    assert entry.names is not None
    body, properties = b"x" * 10, encode_properties({"UNIQ_KEY": "B"})
    size = packer(entry).size + len(body) + 2 + len(properties)
    values: dict[str, Any] = dict.fromkeys(entry.names, 0) | {
        "total_size": size,
        "body_len": len(body),
    }
    one = packer(entry).pack(*values.values()) + body
    request.body = (one + len(properties).to_bytes(2, "big") + properties) * BATCH_COUNT
    return request


def _pull(offset: int) -> Request:
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
    return Request(RequestCode.PULL_MESSAGE, fields, version=479)


def _now() -> str:
    return str(SystemClock().now_ms())
