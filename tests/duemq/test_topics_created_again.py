"""Topics that are deleted and created again with the same name: their groups begin again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.pop.pop_offsets import GroupQueue
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from message_store.queues.deleted_topics import Deletions
from message_store.store import MessageStore
from tests.support.killed_copy import copy_as_killed
from tests.support.pop_client import PopClient, advance, send
from tests.support.running_broker import BrokerClient, bodies_of, running, small

TOPIC = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}
OLD, NEW = (b"old-0", b"old-1", b"old-2"), (b"new-0", b"new-1", b"new-2")


async def create(remote: BrokerClient) -> None:
    assert (await remote.call(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0


async def create_again(remote: BrokerClient) -> None:
    """Delete the topic, create it again and send the new messages."""
    deleted = await remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert deleted.code == 0, deleted.remark
    await create(remote)
    await send(remote, *NEW)


async def pull(remote: BrokerClient, offset: int) -> Response:
    """Pull without a long poll."""
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": offset}
    fields |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0}
    fields |= {"subscription": "*", "subVersion": 0}
    return await remote.call(RequestCode.PULL_MESSAGE, fields)


Scene = Callable[[Any, BrokerClient, FakeClock], Awaitable[None]]


def lives(tmp_path: Path, *scenes: Scene) -> None:
    """Run each scene on a broker; the broker is killed after it."""
    clock = FakeClock()

    async def live(number: int, scene: Scene) -> None:
        root = tmp_path / str(number)
        async with running(small(root), clock=clock) as (broker, remote):
            await scene(broker, remote, clock)
            copy_as_killed(root, tmp_path / str(number + 1))

    for number, scene in enumerate(scenes):
        asyncio.run(live(number, scene))
        clock.advance(1)


def test_committed_offsets(tmp_path: Path) -> None:
    async def before(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await create(remote)
        await send(remote, *OLD)
        broker.parts.groups.find_or_create("g")
        offset = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 3}
        assert (await remote.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code == 0
        broker.parts.offsets.persist()
        await create_again(remote)

    async def after(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        offsets = broker.parts.offsets
        assert (offsets.topics_of("g"), offsets.pending_reset("g", "T", 0)) == ([], 0)

    lives(tmp_path, before, after)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_pulls_of_a_connected_consumer(tmp_path: Path, offset: int) -> None:
    """Its offset is that of the deleted topic, which it commits and pulls from."""

    async def scene(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        async def commit() -> None:
            fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
            assert (await remote.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0

        await create(remote)
        await send(remote, *OLD)
        assert bodies_of(await pull(remote, 0)) == list(OLD)
        await commit()
        await create_again(remote)
        await commit()
        if offset:
            moved = await pull(remote, offset)
            assert (moved.code, (moved.fields or {})["nextBeginOffset"]) == (21, "0")
        assert bodies_of(await pull(remote, 0)) == list(NEW)
        await commit()
        assert broker.parts.offsets.query("g", "T", 0) == offset

    lives(tmp_path, scene)


@pytest.mark.parametrize("is_persisted", [False, True])
def test_pops(tmp_path: Path, is_persisted: bool) -> None:
    async def before(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await create(remote)
        await send(remote, *OLD)
        assert len(await PopClient(remote, clock).pop()) == 3
        if is_persisted:
            broker.parts.offsets.persist()
        await create_again(remote)

    async def after(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        client = PopClient(remote, clock)
        assert [each.body for each in await client.pop()] == list(NEW)
        await advance(broker, clock, 70_000, by_ms=10_000)
        assert sorted(each.body for each in await client.pop()) == list(NEW)

    lives(tmp_path, before, after)


def test_a_pop_that_is_not_confirmed(tmp_path: Path) -> None:
    async def scene(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await create(remote)
        await send(remote, *OLD)
        broker.parts.pop.offsets.move(GroupQueue("g", "T", 0), 3)
        await create_again(remote)
        popped = await PopClient(remote, clock).pop()
        assert [each.body for each in popped] == list(NEW)

    lives(tmp_path, scene)


@pytest.mark.parametrize("is_killed", [False, True])
def test_orderly_pops(tmp_path: Path, is_killed: bool) -> None:
    async def before(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await create(remote)
        await send(remote, *OLD)
        client = PopClient(remote, clock)
        popped = await client.pop(order="true")
        assert len(popped) == 3
        await broker.parts.pop.orderly.table.save()
        broker.parts.persist()
        await create_again(remote)
        if not is_killed:
            await check(client, popped)

    async def check(client: PopClient, popped: Any) -> None:
        for each in popped:
            await client.ack(each)
        assert [each.body for each in await client.pop(order="true")] == list(NEW)

    async def after(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await check(PopClient(remote, clock), [])

    lives(tmp_path, before, *([after] if is_killed else []))


@pytest.mark.parametrize("step_ms", [10, -3_600_000])
def test_a_changed_invisible_time(tmp_path: Path, step_ms: int) -> None:
    async def scene(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await create(remote)
        await send(remote, *OLD)
        client = PopClient(remote, clock)
        popped = await client.pop()
        clock.advance(step_ms)
        await create_again(remote)
        assert (await client.change(popped[0], 5_000)).code == ResponseCode.NO_MESSAGE
        new = await client.pop(invisibleTime=600_000)
        assert [each.body for each in new] == list(NEW)
        await advance(broker, clock, 70_000, by_ms=10_000)
        assert await client.pop() == []

    lives(tmp_path, scene)


@pytest.mark.parametrize("is_created", [False, True])
def test_a_send_while_a_topic_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_created: bool
) -> None:
    """The topic is created by a request, or by the first send."""

    async def send_new(remote: BrokerClient) -> None:
        if is_created:
            await create(remote)
        await send(remote, *NEW)

    async def scene(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await create(remote)
        await send(remote, *OLD)
        gate = asyncio.Event()

        wait_durable = broker.store.wait_durable

        async def wait(end: int) -> bool:
            await gate.wait()
            return await wait_durable(end)

        monkeypatch.setattr(broker.store, "wait_durable", wait)
        deleting = asyncio.create_task(
            remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        )
        while broker.parts.topics.find("T") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        sending = asyncio.create_task(send_new(remote))
        for _ in range(200):
            await asyncio.sleep(0.001)
        gate.set()
        assert (await deleting).code == 0
        await sending
        popped = await PopClient(remote, clock).pop()
        assert [each.body for each in popped] == list(NEW)

    lives(tmp_path, scene)


STEPS = {
    "in topics.json": (MessageStore, "detach_topic", False),
    "detached": (MessageStore, "detach_topic", True),
    "recorded": (Deletions, "write", True),
}


@pytest.mark.sampled
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_while_a_topic_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The topic is created again without another deletion."""
    owner, name, is_after = STEPS[step]
    root, killed = tmp_path / "0", tmp_path / "killed"
    clock = FakeClock()

    async def before() -> None:
        async with running(small(root), clock=clock) as (broker, remote):
            await create(remote)
            await send(remote, *OLD)
            client = PopClient(remote, clock)
            first, *_ = await client.pop()
            await client.ack(first)
            broker.parts.offsets.persist()
            real = getattr(owner, name)

            def call(self: Any, *values: Any) -> Any:
                result = real(self, *values) if is_after else None
                if not killed.exists():
                    copy_as_killed(root, killed)
                return result if is_after else real(self, *values)

            monkeypatch.setattr(owner, name, call)
            deleted = await remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert deleted.code == 0
            monkeypatch.undo()

    async def after() -> None:
        async with running(small(killed), clock=clock) as (broker, remote):
            assert broker.parts.topics.find("T") is None
            await create(remote)
            await send(remote, *NEW)
            client, bodies = PopClient(remote, clock), list[bytes]()
            for _ in range(2):
                for each in await client.pop():
                    bodies.append(each.body)
                    await client.ack(each)
                await advance(broker, clock, 70_000, by_ms=10_000)
            assert [body for body in bodies if body in NEW] == list(NEW)
            assert all(bodies.count(body) == 1 for body in bodies)

    asyncio.run(before())
    clock.advance(1)
    asyncio.run(after())
