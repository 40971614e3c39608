"""Orderly pops over a connection: one batch of a queue at a time, in order, across a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.codes import ResponseCode
from tests.support.pop_client import PopClient, Popped, advance, rest
from tests.support.running_broker import BrokerClient, running, small

YEAR_MS = 31_536_000_000


@pytest.fixture
def run_rig(tmp_path: Path) -> Callable[..., Any]:
    def run(*scenes: Callable[..., Any]) -> None:
        clock = FakeClock()

        async def main(scene: Callable[..., Any]) -> None:
            async with running(small(tmp_path), clock=clock) as (broker, remote):
                client = PopClient(remote, clock)
                await broker.parts.topics.ensure("T", queues=1)

                async def pop(**changes: int | str) -> list[Popped]:
                    return await client.pop(**{"order": "true", "invisibleTime": 10_000} | changes)

                await scene(broker, clock, remote, client, pop)

        for scene in scenes:
            asyncio.run(main(scene))

    return run


async def send(remote: BrokerClient, count: int) -> None:
    for number in range(count):
        assert (await remote.send("T", b"%d" % number)).code == 0


def bodies(messages: list[Popped]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_queue_is_blocked_until_its_messages_are_acknowledged(
    run_rig: Callable[..., Any],
) -> None:
    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 5)
        first = await pop(maxMsgNums=2)
        assert bodies(first) == [b"0", b"1"]
        assert {message.handle.split(" ")[3] for message in first} == {"999"}
        assert await pop() == []
        assert (await client.ack(first[0])).code == 0
        assert await pop() == []
        assert broker.parts.offsets.query("g", "T", 0) == 1
        assert (await client.ack(first[1])).code == 0
        assert (await client.ack(first[1])).code == 0  # again
        assert bodies(await pop()) == [b"2", b"3", b"4"]

    run_rig(scene)


def test_a_pop_that_the_table_of_offsets_refuses_blocks_no_queue(
    run_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages were returned to no client for their invisible time."""

    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 2)
        with monkeypatch.context() as full:
            full.setattr(broker.parts.offsets, "_pairs_max", 0)
            response = await client.call(order="true", invisibleTime=10_000)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert "consumerOffsetsMax=0" in (response.remark or "")
        assert bodies(await pop()) == [b"0", b"1"]

    run_rig(scene)


def test_unacknowledged_messages_are_popped_first_and_counted(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 3)
        first = await pop(maxMsgNums=2)
        await client.ack(first[0])
        await advance(broker, clock, 9_990)
        assert await pop() == []
        await advance(broker, clock, 20, by_ms=5)
        response = await client.call(order="true", invisibleTime=10_000)
        assert response.fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"
        assert response.fields["msgOffsetInfo"] == "0 0 1,2"
        await advance(broker, clock, 10_010)
        response = await client.call(order="true")
        assert response.fields["orderCountInfo"] == "0 qo0%1 2;0 qo0%2 1;0 0 1"
        assert broker.store.topics.find("%RETRY%g_T") < 0 or broker.store.queue_bounds(
            "%RETRY%g_T", 0
        ) == (0, 0)

    run_rig(scene)


def test_a_long_poll_continues_when_the_queue_is_not_blocked(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 2)
        (first,) = await pop(maxMsgNums=1)
        waiting = asyncio.create_task(pop(maxMsgNums=1, pollTime=60_000))
        await advance(broker, clock, 9_900)
        assert not waiting.done()
        await advance(broker, clock, 110, by_ms=10)
        assert bodies(await waiting) == [b"0"]
        waiting = asyncio.create_task(pop(pollTime=60_000))
        await advance(broker, clock, 1_000)
        assert await pop(maxMsgNums=1, attemptId="x") == []
        await advance(broker, clock, 9_100)
        assert bodies(await waiting) == [b"0", b"1"]
        assert (await client.ack(first)).code == 0  # of an earlier pop: it changes nothing
        assert broker.parts.offsets.query("g", "T", 0) == 0

    run_rig(scene)


def test_a_changed_invisible_time_changes_the_end_of_blocking(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 2)
        (first,) = await pop(maxMsgNums=1)
        response = await client.change(first, 30_000)
        assert response.fields == {
            "popTime": first.handle.split(" ")[1],
            "invisibleTime": "30000",
            "reviveQid": "999",
        }
        await advance(broker, clock, 29_990)
        assert await pop() == []
        await advance(broker, clock, 20, by_ms=5)
        assert bodies(await pop()) == [b"0", b"1"]

    run_rig(scene)


def test_a_repeated_attempt_gets_the_same_messages(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 2)
        first = await pop(maxMsgNums=1, attemptId="x")
        assert bodies(await pop(maxMsgNums=1, attemptId="x")) == bodies(first)
        assert await pop(maxMsgNums=1, attemptId="y") == []

    run_rig(scene)


def test_a_clock_set_back_does_not_block_the_queue_for_longer(run_rig: Callable[..., Any]) -> None:
    """The block would last until the clock shows the end of the invisible time again."""

    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 2)
        clock.step(YEAR_MS)
        first = await pop(maxMsgNums=1)
        poll = asyncio.create_task(pop(pollTime=60_000))
        await advance(broker, clock, 100)
        assert not poll.done()
        clock.step(-YEAR_MS)
        await advance(broker, clock, 1_000)
        assert bodies(await poll) == [b"0", b"1"]
        assert (await client.ack(first[0])).code == 0  # of an earlier pop: it changes nothing
        assert await pop() == []

    run_rig(scene)


FORGED = {
    "another message": {"offset": 1},
    "another pop": {"extraInfo": "0 1 2 999 0 test 0 0"},
    "another group": {"consumerGroup": "h"},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_forged_acknowledgements_do_not_advance_the_group(
    run_rig: Callable[..., Any], changes: dict[str, int | str]
) -> None:
    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 3)
        (first,) = await pop(maxMsgNums=1)
        assert (await client.ack(first, **changes)).code in (0, 13)
        assert broker.parts.offsets.query("g", "T", 0) == 0
        assert broker.parts.offsets.query("h", "T", 0) is None
        assert await pop() == []

    run_rig(scene)


def test_a_reset_unblocks_the_queue(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 3)
        await pop(maxMsgNums=2)
        broker.parts.offsets.set_reset("g", "T", 0, 2)
        assert bodies(await pop()) == [b"2"]

    run_rig(scene)


def test_a_restart_keeps_the_queue_blocked(run_rig: Callable[..., Any], tmp_path: Path) -> None:
    kept = []

    async def before(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        await send(remote, 3)
        kept.extend(await pop(maxMsgNums=2))
        await client.ack(kept[0])

    async def after(
        broker: Broker,
        clock: FakeClock,
        remote: BrokerClient,
        client: PopClient,
        pop: Callable[..., Any],
    ) -> None:
        assert await pop() == []
        waiting = asyncio.create_task(pop(pollTime=60_000))
        await rest(broker)
        assert (await client.ack(kept[1])).code == 0
        assert bodies(await waiting) == [b"2"]

    run_rig(before, after)
    text = (tmp_path / "store/config/consumerOrderInfo.json").read_text()
    table = json_dialect.loads(text)["table"]
    assert table["T@g"][0]["o"] == [2]
