"""Topics that are deleted and created again with the same name: their groups begin again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.pop.pop_offsets import GroupQueue
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from tests.support.pop_client import PopClient, advance, send
from tests.support.running_broker import BrokerClient, running, small

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


Scene = Callable[[Any, BrokerClient, FakeClock], Awaitable[None]]


def lives(tmp_path: Path, *scenes: Scene) -> None:
    """Run each scene on a broker; the broker is killed after it."""
    clock = FakeClock()

    async def live(number: int, scene: Scene) -> None:
        root = tmp_path / str(number)
        async with running(small(root), clock=clock) as (broker, remote):
            await scene(broker, remote, clock)
            shutil.copytree(
                root, tmp_path / str(number + 1), ignore=shutil.ignore_patterns("*.tmp")
            )

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
        assert broker.parts.offsets.query("g", "T", 0) is None

    lives(tmp_path, before, after)


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


def test_a_changed_invisible_time(tmp_path: Path) -> None:
    async def scene(broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        await create(remote)
        await send(remote, *OLD)
        client = PopClient(remote, clock)
        popped = await client.pop()
        clock.advance(10)
        await create_again(remote)
        await client.change(popped[0], 5_000)
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
