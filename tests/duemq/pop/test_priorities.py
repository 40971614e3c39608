"""Pops of topics of type PRIORITY: the queue of the highest priority is read first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.registry.groups import GroupConfig
from duemq_common.clock import FakeClock
from tests.support.pop_client import PopClient, advance, send
from tests.support.running_broker import BrokerClient
from tests.support.v5_client import typed_topic

PRIORITY = "_SYS_MSG_PRIORITY_"
RETRY_MS = 70_000


async def send_all(remote: BrokerClient, count: int = 4, **properties: str) -> None:
    """Send one message of each priority, the lowest first."""
    for priority in range(count):
        await send(remote, b"%d" % priority, **{PRIORITY: str(priority)}, **properties)


async def pop_one_by_one(client: PopClient, count: int = 4, **changes: Any) -> list[bytes]:
    return [
        message.body for _ in range(count) for message in await client.pop(maxMsgNums=1, **changes)
    ]


@pytest.mark.parametrize(
    ("ascends", "order"), [("true", [b"3", b"2", b"1", b"0"]), ("false", [b"0", b"1", b"2", b"3"])]
)
def test_the_highest_priority_is_popped_first(
    run_rig: Callable[..., Any], ascends: str, order: list[bytes]
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await typed_topic(broker, "T", "PRIORITY", queues=4)
        await send_all(remote)
        for group in ("g", "h"):
            assert await pop_one_by_one(PopClient(remote, clock, group)) == order

    run_rig(scene, priorityOrderAsc=ascends)


@pytest.mark.parametrize("kind", ["PRIORITY", "MIXED"])
def test_pops_that_are_not_by_priority_begin_with_queues_in_turn(
    run_rig: Callable[..., Any], kind: str
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await typed_topic(broker, "T", kind, queues=4)
        factor = {"+priority.factor": "0"} if kind == "PRIORITY" else {}
        await broker.parts.groups.update([GroupConfig(name="g", attributes=factor)])
        for _ in range(4):
            await send_all(remote)
        found = await pop_one_by_one(client, 16)
        assert set(found[:4]) == {b"0", b"1", b"2", b"3"}
        assert sorted(found) == sorted([b"0", b"1", b"2", b"3"] * 4)

    run_rig(scene)


def test_the_factor_is_the_share_of_pops_by_priority(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await typed_topic(broker, "T", "PRIORITY", queues=2)
        attributes = {"+priority.factor": "60"}
        await broker.parts.groups.update([GroupConfig(name="g", attributes=attributes)])
        for _ in range(100):
            await send_all(remote, 2)
        found = await pop_one_by_one(client, 100)
        assert found.count(b"1") == 80  # 60, and each second one of the others

    run_rig(scene)


@pytest.mark.finding("3C5")
@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}])
def test_a_delayed_message_keeps_its_priority_when_it_is_due(
    run_rig: Callable[..., Any], delay: dict[str, str]
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await typed_topic(broker, "T", "PRIORITY", queues=4)
        await send_all(remote, **delay)
        assert await client.pop() == []
        await advance(broker, clock, 2_000)
        found = await client.pop()
        assert [message.body for message in found] == [b"3", b"2", b"1", b"0"]
        assert [message.queue_id for message in found] == [3, 2, 1, 0]
        assert [message.record.properties[PRIORITY] for message in found] == ["3", "2", "1", "0"]

    run_rig(scene)


def test_retries_keep_their_priority_and_are_popped_last(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await typed_topic(broker, "T", "PRIORITY", queues=4)
        await send(remote, b"retried", **{PRIORITY: "3"})
        assert await pop_one_by_one(client, 1) == [b"retried"]
        await advance(broker, clock, RETRY_MS)
        for _ in range(2):
            await send_all(remote)
        found = await pop_one_by_one(client, 8)
        assert found == [b"3", b"3", b"2", b"2", b"1", b"1", b"0", b"0"]
        [retried] = await client.pop()
        assert (retried.body, retried.record.properties[PRIORITY]) == (b"retried", "3")

    run_rig(scene)


def test_a_pop_on_hold_gets_the_message_of_any_priority(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await typed_topic(broker, "T", "PRIORITY", queues=4)
        for priority in ("0", "2"):
            pop = asyncio.create_task(client.pop(pollTime=20_000))
            while not len(broker.parts.long_polls):  # noqa: ASYNC110
                await asyncio.sleep(0)
            await send(remote, b"m", **{PRIORITY: priority})
            assert [message.queue_id for message in await pop] == [int(priority)]

    run_rig(scene)


def test_an_orderly_pop_does_not_prefer_a_priority(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await typed_topic(broker, "T", "PRIORITY", queues=4)
        await send_all(remote)
        found = await pop_one_by_one(client, order="true", attemptId="a")
        assert sorted(found) == [b"0", b"1", b"2", b"3"]
        assert found != [b"3", b"2", b"1", b"0"]

    run_rig(scene)
