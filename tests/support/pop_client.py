"""POP client that builds receipt handles as Apache's Java client does.

Source: MQClientAPIImpl.processPopResponse, DefaultMQPushConsumerImpl.changePopInvisibleTimeAsync
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from duemq.broker.broker import Broker
from duemq_common.clock import FakeClock
from duemq_common.request import Response
from message_store.log.record import Record, decode_record
from tests.support.running_broker import BrokerClient

TURNS = 20


@dataclass(frozen=True)
class Popped:
    """Popped message with its receipt handle."""

    body: bytes
    topic: str
    queue_id: int
    offset: int
    handle: str
    record: Record

    @property
    def real_topic(self) -> str:
        """Topic of an acknowledgement, by the retry flag of the handle (getRealTopic)."""
        flag = self.handle.split(" ")[4]
        return self.topic if flag == "0" else f"%RETRY%g{'_' if flag == '1' else '+'}{self.topic}"


class PopClient:
    """Consumer of one group."""

    def __init__(self, remote: BrokerClient, clock: FakeClock, group: str = "g") -> None:
        self._remote, self._clock, self.group = remote, clock, group
        self.rest = 0  # remaining messages, from the last response

    async def call(self, topic: str = "T", **changes: Any) -> Response:
        """Pop; by default without long polling, and with an invisible time of 60 s."""
        fields = {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": self._clock.now_ms(),
            "initMode": 0,
        }
        return await self._remote.call(200_050, fields | changes)

    async def pop(self, topic: str = "T", **changes: Any) -> list[Popped]:
        """Pop and return the messages; empty if there are none in time."""
        response = await self.call(topic, **changes)
        self.rest = int((response.fields or {}).get("restNum", 0))
        if response.code == 210:
            return []
        assert response.code == 0, response.remark
        return popped(response, topic)

    async def ack(self, message: Popped, **changes: Any) -> Response:
        return await self._remote.call(200_051, self._named(message) | changes)

    async def change(self, message: Popped, invisible_ms: int, **changes: Any) -> Response:
        fields = self._named(message) | {"invisibleTime": invisible_ms}
        return await self._remote.call(200_053, fields | changes)

    def _named(self, message: Popped) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "topic": message.real_topic,
            "queueId": message.queue_id,
            "offset": message.offset,
            "extraInfo": message.handle,
        }


def records_of(response: Response) -> Iterator[Record]:
    """Yield the messages of a response."""
    data = memoryview(bytes(response.body))
    while data:
        record = decode_record(data, 0)
        yield record
        data = data[record.total_size :]


def popped(response: Response, topic: str, broker_name: str = "test") -> list[Popped]:
    """Return the messages of a response with their receipt handles."""
    fields = response.fields or {}
    starts = dict(_entries(fields["startOffsetInfo"]))
    offsets = {key: text.split(",") for key, text in _entries(fields["msgOffsetInfo"])}
    messages = []
    for record in records_of(response):
        handle = record.properties.get("POP_CK")
        if handle is None:
            key = f"0@{record.queue_id}"
            assert str(record.queue_offset) in offsets[key]
            parts = starts[key], fields["popTime"], fields["invisibleTime"], fields["reviveQid"]
            handle = " ".join(
                [*parts, "0", broker_name, str(record.queue_id), str(record.queue_offset)]
            )
        messages.append(
            Popped(record.body, topic, record.queue_id, record.queue_offset, handle, record)
        )
    return messages


def _entries(text: str) -> list[tuple[str, str]]:
    parts = [entry.split(" ") for entry in text.split(";") if entry]
    pairs = [(f"{flag}@{queue}", value) for flag, queue, value in parts]
    assert len(dict(pairs)) == len(pairs), "the client refuses two entries of one queue"
    return pairs


async def send(remote: BrokerClient, *bodies: bytes, topic: str = "T", **properties: str) -> None:
    """Send messages, each of which must be accepted."""
    for body in bodies:
        assert (await remote.send(topic, body, **properties)).code == 0


async def advance(broker: Broker, clock: FakeClock, step_ms: int, by_ms: int = 500) -> None:
    """Advance the clock in steps; after each step, run all due work."""
    end_ms = clock.now_ms() + step_ms
    while clock.now_ms() < end_ms:
        clock.advance(min(by_ms, end_ms - clock.now_ms()))
        await rest(broker)


async def rest(broker: Broker) -> None:
    """Wait until due timers are delivered and the reviver has read them."""
    timers = broker.plugins.plugins["timer_store"].parts.timers  # type: ignore[attr-defined]
    assert broker.parts.pop is not None
    for _ in range(TURNS):
        await asyncio.sleep(0)
        while not (timers.is_idle and broker.parts.pop.reviver.is_idle):  # noqa: ASYNC110
            await asyncio.sleep(0)
