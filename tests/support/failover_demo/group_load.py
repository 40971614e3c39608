"""Load of delayed messages on a broker group, with a record of each message.

    sends    to the master in the name server's route       --> acknowledged or unknown
    pulls    one task per queue, follows a failover         --> arrivals

The record of a message has its due time, its acknowledgement and its arrivals. An acknowledged
message must arrive exactly once, a message without a response at most once.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from duemq.client import Client, ClientError, Message, MessageQueue, Producer, PullConsumer
from duemq.client.message import ReceivedMessage, time_of
from duemq.client.producer import STATUS
from duemq_common.clock import SystemClock
from duemq_common.codes import ResponseCode
from tests.support.failover_demo.processes import poll

GROUP: Final = "duemq_group_load"
LEVEL_DELAYS_MS: Final = {1: 1_000, 2: 5_000}
TIMER_DELAYS_MS: Final = (200, 9_000)
SEND_TIMEOUT_S: Final = 3.0
WAIT_S: Final = 1.0
STORED: Final = STATUS[ResponseCode.SUCCESS]
RETRY_S: Final = 0.1
DOUBLES_S: Final = 1.0


@dataclass(slots=True)
class SentMessage:
    """Record of one message; times in ms since the epoch.

    Attributes:
        level: Delay level; 0 for a timer.
        due_ms: Due time; for a level, the earliest possible one.
        acknowledged_ms: Time of the successful response; None: not acknowledged.
        arrivals: Store time of each received delivery.
    """

    level: int
    due_ms: int
    acknowledged_ms: int | None = None
    arrivals: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Account:
    """Counts over all messages of a load.

    Attributes:
        unknown: Sends without an acknowledgement, stored or not.
        gap_ms: Longest time between two acknowledgements, the outage for producers.
        late_ms: Largest lateness of a delivery.
    """

    sent: int
    acknowledged: int
    unknown: int
    arrived: int
    pending: int
    doubled: int
    early: int
    gap_ms: int
    late_ms: int

    @property
    def is_exact(self) -> bool:
        """Whether every acknowledged message arrived, and none arrived twice or early."""
        return not (self.pending or self.doubled or self.early)


class GroupLoad:
    """Producer and consumer of delayed messages of one topic.

    Args:
        rate: Sends per second.
        delays_ms: Delays of the levels to send with; the same as the group's.
    Attributes:
        messages: Records by key.
        failure: Text of the last error of a send or a pull.
    """

    def __init__(
        self,
        namesrv: str,
        topic: str,
        *,
        rate: int,
        seed: int = 0,
        delays_ms: Mapping[int, int] = LEVEL_DELAYS_MS,
    ) -> None:
        self._topic, self._rate, self._delays_ms = topic, rate, delays_ms
        self._random = random.Random(seed)
        self._clock = SystemClock()
        self._client = Client(namesrv, timeout_s=SEND_TIMEOUT_S)
        self._producer = Producer(client=self._client, group=GROUP, retries=0)
        self._consumer = PullConsumer(client=self._client, group=GROUP)
        self._ended = asyncio.Event()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._acknowledged_ms: list[int] = []
        self._queues: Sequence[MessageQueue] = ()
        self.messages: dict[str, SentMessage] = {}
        self.failure = ""

    async def prepare(self) -> None:
        """Create the topic by sending to it; wait until the name server has its route."""
        async for _ in poll(RETRY_S):
            try:
                for queue in (await self._client.route(self._topic)).write_queues:
                    await self._send(queue)
                self._queues = await self._consumer.queues(self._topic)
            except ClientError as error:
                self.failure = str(error)
            if self._acknowledged_ms and self._queues:
                return

    @property
    def acknowledged_count(self) -> int:
        """Number of acknowledged sends."""
        return len(self._acknowledged_ms)

    def end(self) -> None:
        """Stop sending; `run` returns after all messages have arrived."""
        self._ended.set()

    async def run(self, send_s: float | None, drain_s: float) -> None:
        """Send for `send_s` seconds, then wait at most `drain_s` seconds for all deliveries.

        Args:
            send_s: Seconds to send; None: until `end` is called.
        """
        readers = [asyncio.create_task(self._read(queue)) for queue in self._queues]
        try:
            await self._send_for(send_s)
            until_ms = self._clock.now_ms() + int(drain_s * 1_000)
            async for _ in poll(RETRY_S):
                if not self.account().pending or self._clock.now_ms() >= until_ms:
                    break
            await asyncio.sleep(DOUBLES_S)  # time for duplicates to arrive
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def account(self) -> Account:
        """Return the current counts."""
        messages = self.messages.values()
        acknowledged = [each for each in messages if each.acknowledged_ms is not None]
        arrived = [each for each in messages if each.arrivals]
        times = self._acknowledged_ms
        gaps = [after - before for before, after in itertools.pairwise(times)]
        late = [each.arrivals[0] - each.due_ms for each in arrived if not each.level]
        return Account(
            sent=len(self.messages),
            acknowledged=len(acknowledged),
            unknown=len(self.messages) - len(acknowledged),
            arrived=len(arrived),
            pending=sum(not each.arrivals for each in acknowledged),
            doubled=sum(len(each.arrivals) > 1 for each in messages),
            early=sum(min(each.arrivals) < each.due_ms for each in arrived),
            gap_ms=max(gaps, default=0),
            late_ms=max(late, default=0),
        )

    # -- sends --------------------------------------------------------------------------------

    async def _send_for(self, seconds: float | None) -> None:
        """Start sends at the rate, independent of earlier responses."""
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 0
        end_s = math.inf if seconds is None else seconds
        while (passed := loop.time() - began) < end_s and not self._ended.is_set():
            while count < passed * self._rate:
                queue = self._queues[count % len(self._queues)]
                task = asyncio.create_task(self._send(queue))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
                count += 1
            await asyncio.sleep(1 / self._rate)
        await asyncio.gather(*self._in_flight)

    async def _send(self, queue: MessageQueue) -> None:
        key, record = self._next()
        self.messages[key] = record
        try:
            sent = await self._producer.send(self._message(key, record), queue=queue)
        except ClientError as error:
            self.failure = str(error)
            return
        if sent.status != STORED:  # a replica does not have it
            self.failure = sent.status
        else:
            record.acknowledged_ms = self._clock.now_ms()
            self._acknowledged_ms.append(record.acknowledged_ms)

    def _next(self) -> tuple[str, SentMessage]:
        now_ms, number = self._clock.now_ms(), len(self.messages)
        levels = list(self._delays_ms)
        level = self._random.choice([0] * len(levels) + levels)
        delay_ms = self._delays_ms[level] if level else self._random.randint(*TIMER_DELAYS_MS)
        return f"{GROUP}-{number}", SentMessage(level, now_ms + delay_ms)

    def _message(self, key: str, record: SentMessage) -> Message:
        return Message(
            self._topic,
            key.encode(),
            keys=key,
            message_id=key,
            level=record.level,
            deliver_at=None if record.level else time_of(record.due_ms),
        )

    # -- deliveries ---------------------------------------------------------------------------

    async def _read(self, queue: MessageQueue) -> None:
        offset = 0
        while True:
            try:
                pulled = await self._consumer.pull(queue, offset, wait_s=WAIT_S)
            except ClientError as error:
                self.failure = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            self._arrived(pulled.messages)
            if pulled.messages:
                offset = pulled.messages[-1].queue_offset + 1

    def _arrived(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            for key in message.keys:
                if (record := self.messages.get(key)) is not None:
                    record.arrivals.append(message.record.store_ms)
