"""Pops and acknowledgements written as batches of frames, and the resulting log appends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from duemq.broker.broker import Broker
from duemq.net import codec
from duemq.pop.names import revive_topic
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch
from tests.support.pop_client import PopClient, Popped
from tests.support.raw_connection import RawPeer
from tests.support.running_broker import BrokerClient

Sign = Callable[[Request], Request]


def as_they_are(request: Request) -> Request:
    """Return a request unsigned."""
    return request


@dataclass
class ReviveAppends:
    """Recorder of appends to the revive log, each as the tags of its records.

    Attributes:
        fault: Reason with which the store refuses the next append; empty: accepted.
        failure: Error that the next append raises.
    """

    batches: list[list[str]] = field(default_factory=list)
    refused: int = 0
    fault: str = ""
    failure: Exception | None = None

    def watch(self, broker: Broker) -> None:
        path, inner = broker.parts.put_path, broker.parts.put_path.put
        topic = broker.store.topics.add(revive_topic(broker.parts.identity.cluster_name))

        def put(batch: PutBatch) -> None:
            rows = batch.filled
            if not rows.size or int(rows[0]["topic_index"]) != topic:
                inner(batch)
                return
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
            if self.fault:
                for row in range(batch.count):
                    batch.refuse(row, 1, self.fault)
                self.refused += 1
                self.fault = ""
                return
            tags = [batch.properties(row)["TAGS"] for row in range(batch.count)]
            inner(batch)
            self.batches.append(tags)

        path.put = put


@dataclass
class PopRig:
    """A running broker with raw connections to it."""

    broker: Broker
    clock: FakeClock
    remote: BrokerClient
    client: PopClient
    appends: ReviveAppends
    stack: AsyncExitStack

    async def peers(self, count: int) -> list[RawPeer]:
        """Return new connections."""
        port = int(self.broker.address.rpartition(":")[2])
        return [
            await self.stack.enter_async_context(await RawPeer.connect(port)) for _ in range(count)
        ]

    async def peer(self) -> RawPeer:
        """Return a new connection."""
        [peer] = await self.peers(1)
        return peer

    async def send(self, queue_id: int, *bodies: bytes, topic: str = "T", tags: str = "") -> None:
        """Send messages to a queue."""
        properties = f"TAGS\x01{tags}\x02" if tags else ""
        fields = {
            "producerGroup": "p",
            "topic": topic,
            "defaultTopic": "TBW102",
            "flag": 0,
            "defaultTopicQueueNums": 4,
            "queueId": queue_id,
            "sysFlag": 0,
            "bornTimestamp": 1,
            "properties": properties,
            "reconsumeTimes": 0,
            "unitMode": "false",
        }
        for body in bodies:
            assert (await self.remote.call(RequestCode.SEND_MESSAGE, fields, body)).code == 0

    async def pop_all(self, count: int, topic: str = "T") -> list[Popped]:
        """Pop until there are `count` messages."""
        messages: list[Popped] = []
        while len(messages) < count:
            more = await self.client.pop(topic)
            assert more, f"{len(messages)} of {count} messages"
            messages += more
        assert len(messages) == count
        return messages

    def pop_request(self, opaque: int, **changes: Any) -> Request:
        """Return a pop request without long polling."""
        fields = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": self.clock.now_ms(),
            "initMode": 0,
        } | changes
        texts = {name: str(value) for name, value in fields.items()}
        return Request(RequestCode.POP_MESSAGE, texts, opaque=opaque, version=479)

    def requests_measured(self, code: int) -> dict[int, int]:
        """Return the broker's metric of requests of a code, by response code."""
        counts: dict[int, int] = {}
        for (requested, answered, *_), buckets, _ in self.broker.parts.rpc.ms:
            if requested == code:
                counts[answered] = counts.get(answered, 0) + int(buckets[-1][1])
        return counts


def ack_request(message: Popped, opaque: int, **changes: Any) -> Request:
    """Return the acknowledgement of a message."""
    fields = {
        "consumerGroup": "g",
        "topic": message.real_topic,
        "queueId": message.queue_id,
        "offset": message.offset,
        "extraInfo": message.handle,
    } | changes
    texts = {name: str(value) for name, value in fields.items()}
    return Request(RequestCode.ACK_MESSAGE, texts, opaque=opaque, version=479)


def write(peer: RawPeer, requests: Sequence[Request], sign: Sign = as_they_are) -> None:
    """Write several requests in one write."""
    peer.writer.write(b"".join(codec.encode_request(sign(request)) for request in requests))


async def responses(peer: RawPeer, count: int) -> dict[int, Response]:
    """Return the next responses by opaque."""
    received = [await peer.read_response() for _ in range(count)]
    assert len({response.opaque for response in received}) == count
    return {response.opaque: response.response for response in received}


async def codes(peer: RawPeer, requests: Sequence[Request], **signed: Sign) -> dict[int, int]:
    """Write several requests in one write; return the response codes by opaque."""
    write(peer, requests, **signed)
    by_opaque = await responses(peer, len(requests))
    return {opaque: response.code for opaque, response in by_opaque.items()}


@asynccontextmanager
async def pop_rig(
    broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
) -> AsyncIterator[PopRig]:
    """Yield a rig with a topic T of four queues."""
    async with AsyncExitStack() as stack:
        await broker.parts.topics.ensure("T", queues=4)
        appends = ReviveAppends()
        appends.watch(broker)
        yield PopRig(broker, clock, remote, client, appends, stack)


async def turn() -> None:
    """Run the event loop until it has read and handled written requests."""
    for _ in range(8):
        await asyncio.sleep(0)
