"""Complete broker on the loopback interface, and requests over raw sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.broker import Broker
from duemq.broker.plugins import InstalledPlugin
from duemq.net import codec
from duemq.net.client import RemotingClient
from duemq_common.request import Request, Response
from message_store.log.record import Record
from message_store.verify import StoreFinding, verify_store
from tests.support import stores
from tests.support.raw_connection import RawPeer
from tests.support.send_path import send_request

LEVELS = InstalledPlugin(
    "schedule_service",
    EntryPoint("schedule_service", "schedule_service.plugin:create_plugin", ENTRY_POINT_GROUP),
)
BODY_BYTES_MAX = 20_000
PROPERTIES = {
    "listenPort": "0",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "vipChannelEnable": "false",
    "metricsExporterType": "DISABLE",
    "maxMessageSize": str(BODY_BYTES_MAX),
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
TOPICS = ("T", "Other")


def properties_of(root: Path, **changes: str) -> dict[str, str]:
    """Return the configuration of a small broker."""
    return PROPERTIES | {"storePathRootDir": str(root)} | changes


@asynccontextmanager
async def loopback(root: Path, *, clock: Any = None, **changes: str) -> AsyncIterator[Broker]:
    """Run a broker with some topics."""
    async with Broker(properties_of(root, **changes), clock=clock, plugins=[LEVELS]) as broker:
        for topic in TOPICS:
            await broker.parts.topics.ensure(topic, queues=4)
        yield broker


async def compile_kernels(broker: Broker) -> None:
    """Send requests that call kernels, with a long timeout for their compilation."""
    async with RemotingClient(broker.address) as client:
        for code in (10, 310):
            for text in ("UNIQ_KEY\x01W\x02", "DELAY\x011\x02", None):
                request = send_request(code=code, topic="Other", queueId="3", properties=text)
                await client.call(request, timeout_s=600)


async def call(peer: RawPeer, request: Request) -> Response:
    """Send a request and return its response."""
    peer.send(request)
    response = await peer.read_response()
    assert response.opaque == request.opaque
    return response.response


async def send(peer: RawPeer, body: bytes, **changes: Any) -> Response:
    """Send a message."""
    return await call(peer, send_request(body=body, **changes))


def pull_request(topic: str, queue_id: int, offset: int, **changes: str) -> Request:
    """Return a pull without long polling."""
    fields = {
        "consumerGroup": "readers",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    return Request(11, fields | changes, opaque=7)


def records_of(broker: Broker, topic: str, queue_id: int) -> list[Record]:
    """Return all records of a queue, read from the store."""
    return stores.records_of(broker.store, topic, queue_id)


def bodies_of(broker: Broker, topic: str = "T", queue_id: int = 1) -> list[bytes]:
    """Return the bodies of a queue in order."""
    return [record.body for record in records_of(broker, topic, queue_id)]


def faults_of(root: Path) -> list[StoreFinding]:
    """Return the faults of a closed store."""
    report = verify_store(root)
    return [finding for finding in report.findings if finding.severity != "note"]


def frame(request: Request, *, serialize_type: int = 0) -> bytes:
    """Return the frame of a request."""
    return codec.encode_request(request, serialize_type=serialize_type)
