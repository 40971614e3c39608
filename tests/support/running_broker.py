"""Broker on loopback, and requests to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.client import Client
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode
from duemq_common.request import Response
from message_store.log.properties import encode_properties
from message_store.log.record import decode_record

TIMEOUT_S = 120.0  # a kernel may have to be compiled
SMALL = {
    "brokerName": "test",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "metricsExporterType": "DISABLE",
    "busyPollMicros": "0",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "64",
    "maxIndexNum": "256",
    "defaultTopicQueueNums": "1",
}


def small(root: Path, **more: str) -> dict[str, str]:
    """Return the properties of a small broker whose store is below `root`."""
    return SMALL | {"storePathRootDir": str(root / "store")} | more


class BrokerClient:
    """Requests to one broker, as its own clients and those of other libraries send them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(
        self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> Response:
        """Send a request and return the response, whatever its code."""
        text = {name: str(value) for name, value in (fields or {}).items()}
        return await self._client.call(self._client.broker, code, text, body)

    async def send(self, topic: str, body: bytes, **properties: str) -> Response:
        """Send one message to queue 0."""
        fields = {
            "producerGroup": "p",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 1,
            "queueId": 0,
            "sysFlag": 0,
            "bornTimestamp": 1,
            "flag": 0,
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": 0,
            "unitMode": "false",
        }
        return await self.call(RequestCode.SEND_MESSAGE, fields, body)

    async def pull(self, topic: str, offset: int, *, group: str = "g") -> Response:
        """Pull from queue 0; wait up to 30 s for a message."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 6,
            "commitOffset": 0,
            "suspendTimeoutMillis": 30_000,
            "subscription": "*",
            "subVersion": 0,
        }
        return await self.call(RequestCode.PULL_MESSAGE, fields)


def bodies_of(response: Response) -> list[bytes]:
    """Return the bodies of the messages in the response to a pull, in order."""
    bodies, data = [], memoryview(bytes(response.body))
    while data:
        record = decode_record(data, 0)
        bodies.append(record.body)
        data = data[record.total_size :]
    return bodies


@asynccontextmanager
async def connected(
    address: str, credentials: Credentials | None = None
) -> AsyncIterator[BrokerClient]:
    """Yield a client of the server at `address`; `credentials` signs its requests."""
    async with Client(broker=address, credentials=credentials, timeout_s=TIMEOUT_S) as client:
        yield BrokerClient(client)


@asynccontextmanager
async def running(
    properties: Mapping[str, str], *, clock: Clock | None = None, **more: Any
) -> AsyncIterator[tuple[Broker, BrokerClient]]:
    """Run a broker; yield it with a client."""
    async with (
        Broker(properties, clock=clock, **more) as broker,
        connected(broker.address) as remote,
    ):
        yield broker, remote


async def registered(broker: Broker) -> None:
    """Wait for the first registration of a broker."""
    for link in broker.registrar.links.values():
        await link.tried.wait()
        assert link.registered, link.failure
