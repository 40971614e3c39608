"""`duemq consume`: print messages of a topic as they arrive, and commit the group's offsets.

The process reads all queues of the topic and does not rebalance. It is meant for inspection and
scripts; applications use a RocketMQ client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from delayed_delivery.quarantine import QUARANTINE_TOPIC
from duemq.cli.client import PULL_COUNT, SUBSCRIPTION, SUSPEND, Cluster, Queue, pull_fields
from duemq.cli.messages import describe, time_text
from duemq.cli.options import ConsumeOptions, Target
from duemq.cli.output import print_json_line, printable, reader_has_closed
from duemq.cli.quarantined import parsed, summary
from duemq.cli.retrying import Retrying
from duemq.client.routes import READ, bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Response
from message_store.log.record import Record, split_records

READER_LOOK_S = 1.0  # interval of checks whether standard output is closed
SUSPEND_MS = 15_000
PULL_TIMEOUT_S = SUSPEND_MS / 1_000 + 10
BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)  # during start and stop


Show = Callable[[Queue, Record], None]
"""Called with each message and the queue it was read from."""


class Reader:
    """Reader of all queues of a topic, one task per queue."""

    def __init__(self, cluster: Cluster, options: ConsumeOptions, show: Show) -> None:
        self._cluster, self._options, self._show = cluster, options, show
        self._left = options.count or -1
        self._enough = asyncio.Event()
        self._retrying: dict[str, Retrying] = {}  # by address, shared by the queues of a broker
        self._tags = None if options.tag.strip() in ("", "*") else _tags_of(options.tag)

    async def run(self) -> None:
        """Read until the count or the time limit is reached."""
        queues = await self._cluster.queues(self._options.topic, permission=READ)
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

    async def _read(self, queue: Queue) -> None:
        offset = await self._start(queue)
        retrying = self._retrying.setdefault(queue.address, Retrying(queue.address))
        while True:
            try:
                response = await self._pull(queue, offset)
            except ConnectionError as error:
                await retrying.pause(error)
                continue
            retrying.succeeded()
            if response.code not in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ):
                raise RequestError(response.code, response.remark or "the pull was refused")
            records = (
                split_records(bytes_of(response)) if response.code == ResponseCode.SUCCESS else []
            )
            offset = int((response.fields or {}).get("nextBeginOffset", offset))
            for record in records:
                if self._left and self._passes(record):
                    self._left -= 1
                    self._show(queue, record)
                    offset = record.queue_offset + 1 if not self._left else offset
            if records:
                await self._commit(queue, offset, retrying)
            if not self._left:
                self._enough.set()
                return

    async def _pull(self, queue: Queue, offset: int) -> Response:
        """Return the response to one pull.

        Raises:
            ConnectionError: The broker does not respond, or is starting or stopping.
        """
        fields = pull_fields(
            queue,
            self._options.topic,
            self._options.group,
            offset,
            count=PULL_COUNT if self._left < 0 else min(PULL_COUNT, max(self._left, 1)),
            sys_flag=SUSPEND | SUBSCRIPTION,
            suspendTimeoutMillis=SUSPEND_MS,
            subscription=self._options.tag,
        )
        response = await self._cluster.request(
            queue.address, RequestCode.PULL_MESSAGE, fields, timeout_s=PULL_TIMEOUT_S
        )
        if response.code in BUSY:
            raise ConnectionError(response.remark or f"{queue.address} is busy")
        return response

    async def _start(self, queue: Queue) -> int:
        fields = {
            "consumerGroup": self._options.group,
            "topic": self._options.topic,
            "queueId": queue.queue_id,
        }
        response = await self._cluster.request(
            queue.address, RequestCode.QUERY_CONSUMER_OFFSET, fields
        )
        if response.code == ResponseCode.SUCCESS and not self._options.from_first:
            return int((response.fields or {})["offset"])
        code = (
            RequestCode.GET_MIN_OFFSET if self._options.from_first else RequestCode.GET_MAX_OFFSET
        )
        response = await self._cluster.call(queue.address, code, fields)
        return int((response.fields or {})["offset"])

    async def _commit(self, queue: Queue, offset: int, retrying: Retrying) -> None:
        fields = {
            "consumerGroup": self._options.group,
            "topic": self._options.topic,
            "queueId": queue.queue_id,
            "commitOffset": offset,
        }
        while True:
            try:
                await self._cluster.call(queue.address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
                return
            except ConnectionError as error:
                await retrying.pause(error)

    def _passes(self, record: Record) -> bool:
        return self._tags is None or record.properties.get("TAGS", "") in self._tags


def show_line(queue: Queue, record: Record) -> None:
    """Print a message as one line of escaped text."""
    shown = describe(record)
    position = f"{queue.broker_name or queue.address}/{record.queue_id}/{record.queue_offset}"
    body = shown["body"]
    if record.topic == QUARANTINE_TOPIC:
        body = summary(parsed(queue, record))
    text = f"{position}  {shown['unique_key'] or '-'}  {body}"
    print(f"{time_text(record.store_ms)}  {printable(text)}", flush=True)


def show_json(queue: Queue, record: Record) -> None:
    """Print a message as a JSON line."""
    shown = {"broker": queue.broker_name or queue.address, **describe(record)}
    if record.topic == QUARANTINE_TOPIC:
        shown["quarantined"] = parsed(queue, record).plain()
    print_json_line(shown)


def _tags_of(expression: str) -> frozenset[str]:
    return frozenset(tag.strip() for tag in expression.split("||") if tag.strip())


def consume_messages(options: ConsumeOptions, target: Target) -> None:
    """Print messages until the count or time limit, or Ctrl-C."""
    asyncio.run(_consume(options, target))


async def _consume(options: ConsumeOptions, target: Target) -> None:
    async with target.cluster() as cluster:
        reader = Reader(cluster, options, show_json if target.as_json else show_line)
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
