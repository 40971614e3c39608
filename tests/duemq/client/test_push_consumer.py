"""Push consumer against a broker in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duemq.client import (
    Client,
    ConsumeFrom,
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    sql,
)
from tests.support.free_ports import free_ports
from tests.support.running_broker import TIMEOUT_S, running, small

Run = Callable[..., Any]
FAST = ConsumerSettings(consume_from=ConsumeFrom.FIRST, commit_s=0.01, rebalance_s=0.05)
WAIT_S = 60


async def until(probe: Callable[[], bool]) -> None:
    """Wait until `probe()` is true."""
    async with asyncio.timeout(WAIT_S):
        while not probe():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Collector:
    """Handler that collects the bodies of its messages."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._changed = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)
        self._changed.set()

    async def wait_for(self, count: int) -> list[bytes]:
        """Return the bodies as soon as there are `count`."""
        async with asyncio.timeout(WAIT_S):
            while len(self.bodies) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.bodies


def test_messages_are_handled_and_committed(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as reader,
        ):
            bodies = [b"%d" % number for number in range(100)]
            for body in bodies:
                await producer.send(Message("T", body))
            handler = Collector()
            async with PushConsumer(broker=broker.address, group="g", settings=FAST) as consumer:
                consumer.subscribe("T", handler)
                assert await handler.wait_for(100) == bodies
            [queue] = await reader.queues("T")
            assert await reader.committed(queue) == 100
            await producer.send(Message("T", b"later"))
            again = Collector()
            async with PushConsumer(broker=broker.address, group="g", settings=FAST) as consumer:
                consumer.subscribe("T", again)
                assert await again.wait_for(1) == [b"later"]

    run(main())


def test_an_unsubscribed_topic_is_committed_and_no_longer_pulled(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as reader,
            PushConsumer(
                broker=broker.address, group="g", consume_from=ConsumeFrom.FIRST, settings=FAST
            ) as consumer,
        ):
            first, other = Collector(), Collector()
            for topic, handler in (("T", first), ("U", other)):
                await producer.send(Message(topic, b"1"))
                consumer.subscribe(topic, handler)
            await first.wait_for(1)
            await other.wait_for(1)
            await consumer.unsubscribe("T")
            [queue] = await reader.queues("T")
            assert await reader.committed(queue) == 1
            await producer.send(Message("T", b"2"))
            await producer.send(Message("U", b"2"))
            assert await other.wait_for(2) == [b"1", b"2"]
            assert first.bodies == [b"1"]
            with pytest.raises(ValueError, match="topic T is not subscribed"):
                await consumer.unsubscribe("T")
            again = Collector()
            consumer.subscribe("T", again)
            assert await again.wait_for(1) == [b"2"]

    run(main())


def test_a_plain_function_gets_batches_in_threads(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
        ):
            for number in range(10):
                await producer.send(Message("T", b"%d" % number))
            batches: list[list[bytes]] = []
            done = asyncio.Event()
            loop = asyncio.get_running_loop()

            def handle(messages: list[ReceivedMessage]) -> None:
                batches.append([message.body for message in messages])
                if sum(map(len, batches)) == 10:
                    loop.call_soon_threadsafe(done.set)

            async with PushConsumer(broker=broker.address, group="g", settings=FAST) as consumer:
                consumer.subscribe("T", handle, batch=4)
                await asyncio.wait_for(done.wait(), WAIT_S)
            assert max(map(len, batches)) == 4
            assert sorted(body for batch in batches for body in batch) == [
                b"%d" % number for number in range(10)
            ]

    run(main())


def test_a_failed_message_is_retried_and_then_a_dead_letter(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        properties = small(tmp_path, messageDelayLevel="0s 0s 0s 0s 0s")
        async with (
            running(properties) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as reader,
        ):
            await producer.send(Message("T", b"bad"))
            attempts: list[int] = []

            async def fail(message: ReceivedMessage) -> None:
                assert message.topic == "T"
                attempts.append(message.delivery_attempt)
                if message.delivery_attempt > 1:
                    raise Retry(level=1)
                raise OSError("no database")

            settings = replace(FAST, retries_max=2)
            async with PushConsumer(broker=broker.address, group="g", settings=settings) as one:
                one.subscribe("T", fail)
                await until(lambda: attempts == [1, 2, 3])
            assert attempts == [1, 2, 3]
            queue = MessageQueue("%DLQ%g", "", 0)
            [message] = (await reader.pull(queue, 0, wait_s=1)).messages
            assert (message.topic, message.body) == ("T", b"bad")

    run(main())


def test_ordered_messages_are_retried_in_place(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, defaultTopicQueueNums="2")) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
        ):
            for number in range(20):
                await producer.send(Message("T", b"%d" % number, sharding_key="k"))
            handled: list[int] = []
            done = asyncio.Event()

            async def handle(message: ReceivedMessage) -> None:
                await asyncio.sleep(0)
                if int(message.body) % 5 == 0 and message.delivery_attempt < 3:
                    raise Retry
                handled.append(int(message.body))
                if len(handled) == 20:
                    done.set()

            settings = replace(FAST, ordered=True, retry_s=0.001)
            async with PushConsumer(broker=broker.address, group="g", settings=settings) as one:
                one.subscribe("T", handle)
                await asyncio.wait_for(done.wait(), WAIT_S)
            assert handled == list(range(20))

    run(main())


def test_a_slow_handler_stops_pulls(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as reader,
        ):
            for number in range(200):
                await producer.send(Message("T", b"%d" % number))
            release = asyncio.Event()
            handler = Collector()
            handled = 0

            async def handle(message: ReceivedMessage) -> None:
                nonlocal handled
                handled += 1
                await release.wait()
                await handler(message)

            settings = replace(FAST, queue_messages_max=40, handlers_max=4)
            async with PushConsumer(broker=broker.address, group="g", settings=settings) as one:
                one.subscribe("T", handle)
                [queue] = await reader.queues("T")
                await until(lambda: handled >= 4 and one.pending >= 40)
                assert handled == 4
                assert one.pending < 72  # a pull returns up to 32
                release.set()
                await handler.wait_for(200)
            assert await reader.committed(queue) == 200

    run(main())


def test_broadcast_consumers_get_all_messages(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
        ):
            await producer.send(Message("T", b"1"))
            for _ in range(2):  # the second run starts at the offsets in the files
                handlers = [Collector(), Collector()]
                async with AsyncExitStack() as stack:
                    for number, handler in enumerate(handlers):
                        settings = replace(FAST, offsets_file=tmp_path / f"{number}.json")
                        consumer = PushConsumer(broker=broker.address, group="g", settings=settings)
                        consumer.subscribe("T", handler)
                        await stack.enter_async_context(consumer)
                    for handler in handlers:
                        await handler.wait_for(1)
                assert [handler.bodies for handler in handlers] == [[b"1"], [b"1"]]
                (await producer.send(Message("T", b"1")))

    run(main())


def test_a_broker_that_restarts_delivers_the_rest(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        _, _, port, _ = free_ports(4)  # VIP is 2 below, replicas 1 above
        properties = small(tmp_path, listenPort=str(port))
        address = f"127.0.0.1:{port}"
        handler = Collector()
        async with PushConsumer(broker=address, group="g", settings=FAST) as consumer:
            consumer.subscribe("T", handler)
            for count in (1, 2):
                async with (
                    running(properties),
                    Producer(broker=address, timeout_s=TIMEOUT_S) as producer,
                ):
                    await producer.send(Message("T", b"%d" % count))
                    await handler.wait_for(count)
        assert sorted(set(handler.bodies)) == [b"1", b"2"]

    run(main())


def test_an_invalid_filter_is_explained(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PushConsumer(broker=broker.address, group="g", settings=FAST) as consumer,
        ):
            await producer.send(Message("T", b"1"))
            consumer.subscribe("T", Collector(), only=sql("color ="))
            await until(lambda: "no messages of" in caplog.text)
        [failure] = [line for line in caplog.messages if line.startswith("no messages of")]
        assert failure.endswith("Encountered <EOF> at line 1, column 7")

    run(main())


def test_a_handler_that_was_cancelled_leaves_its_message(run: Run, tmp_path: Path) -> None:
    """After a close that could not wait, the message is delivered again: at least once."""

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
        ):
            for body in (b"1", b"2", b"3"):
                await producer.send(Message("T", body))
            first = Collector()

            async def handle(message: ReceivedMessage) -> None:
                await first(message)
                if message.body == b"2":
                    await asyncio.Event().wait()

            settings = replace(FAST, close_s=0.01)
            async with PushConsumer(broker=broker.address, group="g", settings=settings) as one:
                one.subscribe("T", handle)
                assert sorted(await first.wait_for(3)) == [b"1", b"2", b"3"]
            again = Collector()
            async with PushConsumer(broker=broker.address, group="g", settings=FAST) as one:
                one.subscribe("T", again)
                assert await again.wait_for(2) == [b"2", b"3"]

    run(main())


def test_consumers_that_share_a_client_get_their_own_messages(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address) as client,
            Producer(client=client) as producer,
        ):
            await producer.send(Message("T", b"1"))
            handlers = {group: Collector() for group in ("g", "h")}
            async with AsyncExitStack() as stack:
                for group, handler in handlers.items():
                    consumer = PushConsumer(group=group, client=client, settings=FAST)
                    consumer.subscribe("T", handler)
                    await stack.enter_async_context(consumer)
                for handler in handlers.values():
                    assert await handler.wait_for(1) == [b"1"]
                for _ in range(2):  # closing the refused one leaves the registered one
                    second = PushConsumer(group="g", client=client)
                    with pytest.raises(ValueError, match="has a consumer of group g already"):
                        await second.start()
                    await second.close()
            async with PushConsumer(group="g", client=client, settings=FAST) as third:
                third.subscribe("T", handlers["g"])
            assert (await producer.send(Message("T", b"2"))).queue_offset == 1

    run(main())
