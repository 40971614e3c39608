"""Load: pull rate of one consumer with an SQL92 filter."""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.bench import Bench, Load, Metric
from duemq.client import Client, Message, MessageQueue, Producer, PullConsumer, sql

MESSAGES = 1_000_000
SHARES = 100  # the filter matches 1 of SHARES messages
IN_FLIGHT = 8
CALL_S = 60.0
BODY = b"x" * 100
PROPERTIES = {"region": "eu", "name": "customer-1234567"}
FILTER = "share = 7 AND region IN ('eu', 'us')"


def sql_filter(bench: Bench) -> list[Metric]:
    """Fill a queue, then pull the whole queue with a filter, sequentially."""
    batches = bench.count(MESSAGES) // SHARES
    address = f"127.0.0.1:{bench.server.broker_port}"
    return asyncio.run(_measure(address, bench.topic(), batches))


async def _measure(address: str, topic: str, batches: int) -> list[Metric]:
    queue = MessageQueue(topic, "", 0)
    async with Client(broker=address, timeout_s=CALL_S) as client:
        await _fill(Producer(client=client), queue, batches)
        consumer = PullConsumer(group="bench-filter", client=client)
        await _pull_all(consumer, queue, batches * SHARES)  # warm up caches and compiled code
        begin = perf_counter()
        matches, pulls = await _pull_all(consumer, queue, batches * SHARES)
        seconds = perf_counter() - begin
    assert matches == batches, f"{matches} messages passed the filter, not {batches}"
    speed = batches * SHARES / seconds
    return [
        Metric(name="filtered", value=speed, unit="msg/s", better="more"),
        Metric(name="pulls", value=pulls, unit="", better="less"),
    ]


async def _fill(producer: Producer, queue: MessageQueue, batches: int) -> None:
    messages = [
        Message(queue.topic, BODY, properties=PROPERTIES | {"share": str(share)})
        for share in range(SHARES)
    ]

    async def send(count: int) -> None:
        for _ in range(count):
            await producer.send_batch(messages, queue=queue)

    async with asyncio.TaskGroup() as tasks:
        for number in range(IN_FLIGHT):
            tasks.create_task(send(batches // IN_FLIGHT + (number < batches % IN_FLIGHT)))


async def _pull_all(consumer: PullConsumer, queue: MessageQueue, end: int) -> tuple[int, int]:
    """Return the number of matching messages and the number of pulls."""
    offset = matches = pulls = 0
    while offset < end:
        result = await consumer.pull(queue, offset, only=sql(FILTER))
        offset = result.next_offset
        matches += len(result.messages)
        pulls += 1
    return matches, pulls


LOADS = [
    Load(
        name="sql-filter",
        what="one queue of 1 M messages pulled with an SQL92 filter that 1 % pass",
        run=sql_filter,
        keys={"enablePropertyFilter": "true"},
    )
]
