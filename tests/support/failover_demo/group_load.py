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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from duemq.cli.client import Cluster, Queue
from duemq.client.routes import NEW_TOPIC_QUEUES, READ, TEMPLATE_TOPIC, WRITE, bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.clock import SystemClock
from duemq_common.errors import DueMQError
from message_store.log.properties import encode_properties
from message_store.log.record import Record, split_records
from tests.support.failover_demo.processes import poll

GROUP: Final = "duemq_group_load"
LEVEL_DELAYS_MS: Final = {1: 1_000, 2: 5_000}
TIMER_DELAYS_MS: Final = (200, 9_000)
SEND_TIMEOUT_S: Final = 3.0
PULL_TIMEOUT_S: Final = 5.0
SUSPEND_MS: Final = 1_000
PULL_COUNT: Final = 32
PULL_FLAGS: Final = 2 | 4  # hold the pull; the subscription is in the request
RETRY_S: Final = 0.1
DOUBLES_S: Final = 1.0
PULLED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(slots=True)
class Message:
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
        self._cluster = Cluster(namesrv)
        self._looking_up, self._ended = asyncio.Event(), asyncio.Event()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._acknowledged_ms: list[int] = []
        self._queues: list[Queue] = []
        self.messages: dict[str, Message] = {}
        self.failure = ""

    async def prepare(self) -> None:
        """Create the topic by sending to it; wait until the name server has its route."""
        async for _ in poll(RETRY_S):
            await self._find_queues(WRITE)
            for queue in self._queues:
                await self._send(queue)
            if self._acknowledged_ms:
                await self._find_queues(READ)
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
        await self._cluster.__aexit__()

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

    async def _send(self, queue: Queue) -> None:
        key, message = self._next()
        self.messages[key] = message
        try:
            response = await self._cluster.request(
                self._address(queue),
                RequestCode.SEND_MESSAGE,
                self._fields(queue, key, message),
                key.encode(),
                timeout_s=SEND_TIMEOUT_S,
            )
        except ConnectionError as error:
            self.failure = str(error)
            await self._find_master()
            return
        if response.code == ResponseCode.SUCCESS:
            message.acknowledged_ms = self._clock.now_ms()
            self._acknowledged_ms.append(message.acknowledged_ms)
        else:
            self.failure = f"code {response.code}: {response.remark}"
            await self._find_master()

    def _next(self) -> tuple[str, Message]:
        now_ms, number = self._clock.now_ms(), len(self.messages)
        levels = list(self._delays_ms)
        level = self._random.choice([0] * len(levels) + levels)
        delay_ms = self._delays_ms[level] if level else self._random.randint(*TIMER_DELAYS_MS)
        return f"{GROUP}-{number}", Message(level, now_ms + delay_ms)

    def _fields(self, queue: Queue, key: str, message: Message) -> dict[str, object]:
        properties = {"KEYS": key, "UNIQ_KEY": key, "WAIT": "true"}
        if message.level:
            properties["DELAY"] = str(message.level)
        else:
            properties["TIMER_DELIVER_MS"] = str(message.due_ms)
        return {
            "producerGroup": GROUP,
            "topic": self._topic,
            "defaultTopic": TEMPLATE_TOPIC,
            "defaultTopicQueueNums": NEW_TOPIC_QUEUES,
            "queueId": queue.queue_id,
            "sysFlag": 0,
            "bornTimestamp": self._clock.now_ms(),
            "flag": 0,
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": 0,
            "unitMode": False,
            "batch": False,
        }

    # -- the master ---------------------------------------------------------------------------

    def _address(self, queue: Queue) -> str:
        """Return the current address of the queue's master."""
        for each in self._queues:
            if each.queue_id == queue.queue_id and each.broker_name == queue.broker_name:
                return each.address
        return queue.address

    async def _find_master(self) -> None:
        """Refresh the route, in one task at a time."""
        if not self._looking_up.is_set():
            self._looking_up.set()
            try:
                await asyncio.sleep(RETRY_S)
                await self._find_queues(READ)
            finally:
                self._looking_up.clear()

    async def _find_queues(self, permission: int) -> None:
        try:
            self._queues = (
                await self._cluster.queues(self._topic, permission=permission) or self._queues
            )
        except (ConnectionError, DueMQError) as error:
            self.failure = str(error)

    # -- deliveries ---------------------------------------------------------------------------

    async def _read(self, queue: Queue) -> None:
        offset = 0
        while True:
            try:
                response = await self._cluster.request(
                    self._address(queue),
                    RequestCode.PULL_MESSAGE,
                    self._pull_fields(queue, offset),
                    timeout_s=PULL_TIMEOUT_S,
                )
            except ConnectionError as error:
                self.failure = str(error)
                await self._find_master()
                await asyncio.sleep(RETRY_S)
                continue
            if response.code == ResponseCode.SUCCESS:
                records = split_records(bytes_of(response))
                self._arrived(records)
                offset = records[-1].queue_offset + 1
            elif response.code not in PULLED:
                await asyncio.sleep(RETRY_S)

    def _arrived(self, records: Iterable[Record]) -> None:
        for record in records:
            message = self.messages.get(record.properties.get("KEYS", ""))
            if message is not None:
                message.arrivals.append(record.store_ms)

    def _pull_fields(self, queue: Queue, offset: int) -> dict[str, object]:
        return {
            "consumerGroup": GROUP,
            "topic": self._topic,
            "queueId": queue.queue_id,
            "queueOffset": offset,
            "maxMsgNums": PULL_COUNT,
            "sysFlag": PULL_FLAGS,
            "commitOffset": 0,
            "suspendTimeoutMillis": SUSPEND_MS,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
