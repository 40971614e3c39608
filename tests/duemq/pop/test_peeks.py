"""Peek, notification and polling info over a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq_common.clock import FakeClock
from tests.support.pop_client import PopClient, advance, records_of, rest
from tests.support.running_broker import BrokerClient, running, small

TARGET = {"consumerGroup": "g", "topic": "T", "queueId": -1}


@pytest.fixture
def run_rig(tmp_path: Path) -> Callable[..., Any]:
    def run(scene: Callable[..., Any]) -> None:
        clock = FakeClock()

        async def main() -> None:
            async with running(small(tmp_path), clock=clock) as (broker, remote):
                await broker.parts.topics.ensure("T", queues=2)
                return await scene(broker, clock, remote, PopClient(remote, clock))

        return asyncio.run(main())

    return run


async def notification(
    remote: BrokerClient, clock: FakeClock, poll_ms: int = 0, **changes: object
) -> dict[str, str] | None:
    fields = TARGET | {"pollTime": poll_ms, "bornTime": clock.now_ms()} | changes
    response = await remote.call(200_054, fields)
    assert response.code == 0, response.remark
    return response.fields


def test_peeked_messages_stay_visible(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        assert (await remote.call(200_052, TARGET | {"maxMsgNums": 2})).code == 19
        for body in (b"a", b"b", b"c"):
            await remote.send("T", body)
        for _ in range(2):
            response = await remote.call(200_052, TARGET | {"maxMsgNums": 2})
            assert (response.code, response.fields["restNum"]) == (0, "3")
            assert [record.body for record in records_of(response)] == [b"a", b"b"]
        assert len(await client.pop()) == 3
        assert (await remote.call(200_052, TARGET | {"maxMsgNums": 2})).code == 19

    run_rig(scene)


def test_a_notification_responds_to_a_message_without_a_pop(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        assert await notification(remote, clock) == {"hasMsg": "false", "pollingFull": "false"}
        waiting = asyncio.create_task(notification(remote, clock, 30_000))
        await advance(broker, clock, 1_000)
        assert not waiting.done()
        await remote.send("T", b"a")
        assert (await waiting)["hasMsg"] == "true"
        assert (await notification(remote, clock))["hasMsg"] == "true"
        assert len(await client.pop(invisibleTime=10_000)) == 1
        waiting = asyncio.create_task(notification(remote, clock, 30_000))
        await advance(broker, clock, 9_900)
        assert not waiting.done()
        await advance(broker, clock, 200, by_ms=10)
        assert (await waiting)["hasMsg"] == "true"  # its retry topic has it now

    run_rig(scene)


@pytest.mark.finding("3C7")
def test_an_orderly_notification_waits_for_the_pop_of_another_attempt(
    run_rig: Callable[..., Any],
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        for body in (b"a", b"b"):
            await remote.send("T", body)
        pop: dict[str, Any] = {"order": "true", "maxMsgNums": 1, "invisibleTime": 10_000}
        order = {"order": "true", "attemptId": "other"}
        assert (await notification(remote, clock, **order))["hasMsg"] == "true"
        [first] = await client.pop(attemptId="one", **pop)
        for changes, expected in (
            (order, "false"),
            ({"order": "true"}, "false"),
            (order | {"attemptId": "one"}, "true"),
            (order | {"order": "false"}, "true"),
            (order | {"queueId": 1}, "false"),
        ):
            assert (await notification(remote, clock, **changes))["hasMsg"] == expected, changes
        waiting = asyncio.create_task(notification(remote, clock, 30_000, **order))
        await advance(broker, clock, 9_900)
        await remote.send("T", b"c")
        await rest(broker)
        assert not waiting.done()
        await advance(broker, clock, 200, by_ms=10)
        assert (await waiting)["hasMsg"] == "true"
        [again] = await client.pop(attemptId="two", **pop)
        assert again.body == first.body
        waiting = asyncio.create_task(notification(remote, clock, 3_000, **order))
        await client.ack(again)
        assert (await waiting)["hasMsg"] == "true"

    run_rig(scene)


def test_a_notification_without_a_message_responds_at_the_deadline(
    run_rig: Callable[..., Any],
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        waiting = asyncio.create_task(notification(remote, clock, 3_000))
        await advance(broker, clock, 3_500)
        assert (await waiting)["hasMsg"] == "false"

    run_rig(scene)


def test_long_polls_are_counted_by_their_queue(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        async def polling(**changes: int | str) -> str:
            return (await remote.call(200_055, TARGET | changes)).fields["pollingNum"]

        waiting = [asyncio.create_task(client.pop(pollTime=5_000)) for _ in range(3)]
        await rest(broker)
        while await polling() != "3":  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await polling(queueId=1) == await polling(consumerGroup="h") == "0"
        await advance(broker, clock, 6_000)
        assert await asyncio.gather(*waiting) == [[], [], []]
        assert await polling() == "0"

    run_rig(scene)


WRONG = {
    "topic": ({"topic": "None"}, 17),
    "internal topic": ({"topic": "rmq_sys_wheel_timer"}, 16),
    "queue": ({"queueId": 2}, 29),
    "group": ({"consumerGroup": "a/b"}, 29),
}


@pytest.mark.parametrize("code", [200_052, 200_054, 200_055])
def test_absent_targets_are_refused(run_rig: Callable[..., Any], code: int) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        for name, (changes, expected) in WRONG.items():
            fields = TARGET | {"maxMsgNums": 1, "pollTime": 0, "bornTime": 0} | changes
            assert (name, (await remote.call(code, fields)).code) == (name, expected)

    run_rig(scene)
