"""Held pops of one group: each message resumes as many of them as are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.pop import pop_queues
from duemq.pop.checkpoints import PopCheckpoint
from duemq.pop.pop import PopProcessor, PopRequest, PopResult
from duemq_common.clock import FakeClock
from message_store.log.batch import PutBatch
from tests.support.fakes import HOST
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import BrokerClient, running, small

POPS = 40
WAIT_S = 60.0


@pytest.fixture
def run_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a scene with long polls of group g, and the list of attempts to collect messages."""
    tries = []
    collect = PopProcessor.collect

    def counted(self: PopProcessor, arguments: PopRequest) -> PopResult:
        tries.append(arguments)
        return collect(self, arguments)

    monkeypatch.setattr(PopProcessor, "collect", counted)

    def run(scene: Callable[..., Any]) -> None:
        clock = FakeClock()

        async def main() -> None:
            async with running(small(tmp_path), clock=clock) as (broker, remote):
                await remote.send("T", b"first")  # creates the topic
                assert len(await PopClient(remote, clock).pop()) == 1
                await scene(broker, clock, remote, tries)

        asyncio.run(main())

    return run


def put(broker: Broker, count: int, queue_id: int = 0) -> None:
    """Append messages to one queue as one batch."""
    store, batch = broker.store, PutBatch(count)
    for number in range(count):
        batch.add(
            topic_index=store.topics.add("T"),
            queue_id=queue_id,
            body=b"%d" % number,
            properties=b"",
            born_ms=1,
            born_host=HOST,
            store_host=HOST,
        )
    broker.parts.put_path.put(batch)


def start_pops(
    remote: BrokerClient, clock: FakeClock, count: int = POPS, **changes: int
) -> list[asyncio.Task[Any]]:
    client = PopClient(remote, clock)
    changes = {"pollTime": 30_000, "maxMsgNums": 1} | changes
    return [asyncio.create_task(client.pop(**changes)) for _ in range(count)]


def bodies(pops: list[asyncio.Task[Any]]) -> list[bytes]:
    return [message.body for pop in pops if pop.done() for message in pop.result()]


async def until_on_hold(broker: Broker, count: int) -> None:
    """Wait until `count` pops are on hold."""
    while len(broker.parts.long_polls) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def received(pops: list[asyncio.Task[Any]], count: int) -> list[bytes]:
    """Return the bodies that the pops received, once no more messages are delivered."""
    while len(bodies(pops)) < count:
        held = [pop for pop in pops if not pop.done()]
        done, _ = await asyncio.wait(held, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
    return bodies(pops)


async def drop(pops: list[asyncio.Task[Any]]) -> None:
    for pop in pops:
        pop.cancel()
    await asyncio.gather(*pops, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 7, POPS])
def test_as_many_pops_are_resumed_as_there_are_messages(
    run_rig: Callable[..., Any], count: int
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        pops = start_pops(remote, clock)
        await until_on_hold(broker, POPS)
        tries.clear()
        sent = [b"%d" % number for number in range(count)]
        for body in sent:
            await remote.send("T", body)
        assert sorted(await received(pops, count)) == sorted(sent)
        assert len(tries) <= 3 * count, "a message resumes few pops, however many are on hold"
        await drop(pops)

    run_rig(scene)


@pytest.mark.parametrize("count", [2, 9, POPS])
def test_messages_of_one_batch_resume_pops_one_after_another(
    run_rig: Callable[..., Any], count: int
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        pops = start_pops(remote, clock)
        await until_on_hold(broker, POPS)
        tries.clear()
        put(broker, count)
        assert len(await received(pops, count)) == count
        assert len(tries) <= 2 * count
        await drop(pops)

    run_rig(scene)


def test_messages_that_are_visible_again_resume_pops(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        put(broker, 6)
        assert len(await PopClient(remote, clock).pop(invisibleTime=5_000)) == 6
        pops = start_pops(remote, clock)
        await advance(broker, clock, 5_100, by_ms=100)
        assert len(await received(pops, 6)) == 6
        await drop(pops)

    run_rig(scene)


def test_long_polls_read_the_queues_that_their_topic_gets_later(
    run_rig: Callable[..., Any],
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        pops = start_pops(remote, clock, 3)
        await until_on_hold(broker, 3)
        topic = broker.parts.topics.find("T")
        await broker.parts.topics.update([topic.replace(read_queues=8, write_queues=8)])
        put(broker, 3, queue_id=6)
        assert sorted(await received(pops, 3)) == [b"0", b"1", b"2"]

    run_rig(scene)


def test_a_message_in_the_last_of_many_queues_resumes_a_pop(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        topic = broker.parts.topics.find("T")
        await broker.parts.topics.update([topic.replace(read_queues=700, write_queues=700)])
        pops = start_pops(remote, clock, 2)
        await until_on_hold(broker, 2)
        put(broker, 1, queue_id=699)
        assert await received(pops, 1) == [b"0"]
        await drop(pops)

    run_rig(scene)


def test_pops_of_other_groups_and_of_one_queue_are_resumed_too(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        every, single = start_pops(remote, clock, 3), start_pops(remote, clock, 3, queueId=0)
        clients = [PopClient(remote, clock, group) for group in ("h", "i")]
        for client in clients:
            assert len(await client.pop()) == 1
        others = [asyncio.create_task(client.pop(pollTime=30_000)) for client in clients]
        await until_on_hold(broker, 8)
        put(broker, 2)
        assert sorted(await received([*every, *single], 2)) == [b"0", b"1"]
        assert sorted(await received(others, 4)) == [b"0", b"0", b"1", b"1"]
        await drop([*every, *single])

    run_rig(scene)


def test_the_next_long_poll_gets_the_messages_of_a_failed_pop(
    run_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        pops = start_pops(remote, clock, 3)
        await until_on_hold(broker, 3)
        checkpoints, failures = PopProcessor.checkpoints, [OSError("a fault"), OSError("again")]

        def failing(
            self: PopProcessor, arguments: PopRequest, popped: PopResult
        ) -> list[tuple[int, PopCheckpoint]]:
            if popped.results and failures:
                raise failures.pop()
            return checkpoints(self, arguments, popped)  # type: ignore[return-value]

        monkeypatch.setattr(PopProcessor, "checkpoints", failing)
        await remote.send("T", b"message")
        await asyncio.wait(pops, timeout=WAIT_S)
        assert [pop.exception() is None for pop in pops] == [False, False, True]
        assert pops[2].result()[0].body == b"message"

    run_rig(scene)


def test_requests_on_hold_add_a_limited_number_of_topics_to_the_store(
    run_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_queues, "EARLY_TOPICS_MAX", 2)

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, tries: list[PopRequest]
    ) -> None:
        clients = [PopClient(remote, clock, group) for group in "abcd"]
        for client in clients:
            assert [message.body for message in await client.pop()] == [b"first"]
        count = len(broker.store.topics)
        pops = [asyncio.create_task(client.pop(pollTime=30_000)) for client in clients]
        await until_on_hold(broker, len(pops))
        assert len(broker.store.topics) == count + 2
        put(broker, 1)
        assert await received(pops, len(pops)) == [b"0"] * len(pops)

    run_rig(scene)
