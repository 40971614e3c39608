"""`duemq consume`: print messages of a topic as they arrive, and commit the group's offsets.

The process reads all queues of the topic and does not rebalance. It is meant for inspection and
scripts; applications use a RocketMQ client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from duemq.cli.messages import describe, time_text
from duemq.cli.options import ConsumeOptions, Target
from duemq.cli.output import print_json_line, printable, reader_has_closed
from duemq.cli.quarantined import plain, summary
from duemq.cli.retrying import Retrying
from duemq.client.admin.quarantine import quarantined
from duemq.client.client import Client
from duemq.client.errors import NoRoute, Refused
from duemq.client.message import MessageQueue
from duemq.client.pull_consumer import PULL_COUNT, PullConsumer
from duemq_common.codes import ResponseCode
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.record import Record

READER_LOOK_S = 1.0  # interval of checks whether standard output is closed
WAIT_S = 15.0
BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)  # during start and stop
T = TypeVar("T")
Show = Callable[[str, Record], None]
"""Called with the name or address of a broker, and each message that was read from it."""


class Reader:
    """Reader of all queues of a topic, one task per queue."""

    def __init__(self, client: Client, options: ConsumeOptions, show: Show) -> None:
        self._consumer = PullConsumer(client=client, group=options.group)
        self._options, self._show = options, show
        self._left = options.count or -1
        self._enough = asyncio.Event()
        self._retrying: dict[str, Retrying] = {}  # by broker, shared by its queues

    async def run(self) -> None:
        """Read until the count or the time limit is reached."""
        queues = await self._consumer.queues(self._options.topic)
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(self._read(queue)) for queue in queues
        ]
        waiter: asyncio.Task[object] = asyncio.create_task(self._enough.wait())
        try:
            await asyncio.wait(
                [waiter, *tasks],
                timeout=self._options.wait_s or None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in (waiter, *tasks):
                task.cancel()
            await asyncio.gather(waiter, *tasks, return_exceptions=True)

    async def _read(self, queue: MessageQueue) -> None:
        consumer, options = self._consumer, self._options
        offset = await self._start(queue)
        while True:
            count = PULL_COUNT if self._left < 0 else min(PULL_COUNT, max(self._left, 1))
            pulled = await self._persist(
                queue,
                partial(consumer.pull, queue, offset, count=count, wait_s=WAIT_S, only=options.tag),
            )
            next_offset = pulled.next_offset
            for message in pulled.messages:
                if self._left:
                    self._left -= 1
                    self._show(self._name(queue), message.record)
                    if not self._left:
                        next_offset = message.queue_offset + 1
            if next_offset != offset:
                offset = next_offset
                await self._persist(queue, partial(consumer.commit, queue, offset))
            if not self._left:
                self._enough.set()
                return

    async def _persist(self, queue: MessageQueue, request: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a request; repeat it while the broker starts, stops or is away."""
        name = self._name(queue)
        retrying = self._retrying.setdefault(name, Retrying(name))
        while True:
            try:
                result = await request()
            except Refused as error:
                if error.code not in BUSY:
                    raise
                await retrying.pause(error)
            except (ConnectionError, NoRoute) as error:
                await retrying.pause(error)
            else:
                retrying.succeeded()
                return result

    def _name(self, queue: MessageQueue) -> str:
        return queue.broker_name or self._consumer.client.broker

    async def _start(self, queue: MessageQueue) -> int:
        if self._options.from_first:
            return await self._consumer.min_offset(queue)
        offset = await self._consumer.committed(queue)
        return await self._consumer.max_offset(queue) if offset is None else offset


def show_line(broker: str, record: Record) -> None:
    """Print a message as one line of escaped text."""
    shown = describe(record)
    position = f"{broker}/{record.queue_id}/{record.queue_offset}"
    body = shown["body"]
    if record.topic == QUARANTINE_TOPIC:
        body = summary(quarantined(broker, record))
    text = f"{position}  {shown['unique_key'] or '-'}  {body}"
    print(f"{time_text(record.store_ms)}  {printable(text)}", flush=True)


def show_json(broker: str, record: Record) -> None:
    """Print a message as a JSON line."""
    shown = {"broker": broker, **describe(record)}
    if record.topic == QUARANTINE_TOPIC:
        shown["quarantined"] = plain(quarantined(broker, record))
    print_json_line(shown)


def consume_messages(options: ConsumeOptions, target: Target) -> None:
    """Print messages until the count or time limit, or Ctrl-C."""
    asyncio.run(_consume(options, target))


async def _consume(options: ConsumeOptions, target: Target) -> None:
    async with target.client() as client:
        reader = Reader(client, options, show_json if target.as_json else show_line)
        reading = asyncio.create_task(reader.run())
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=READER_LOOK_S)
                if reader_has_closed():
                    raise BrokenPipeError
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
