"""Pops of a clock that was ahead: visible again after their invisible time, once, and not acked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.pop.revival.ahead_pops import AheadPops
from duemq.pop.revival.reviver import RETRY_MS
from duemq_common.clock import FakeClock
from duemq_common.codes import ResponseCode
from tests.support.killed_copy import copy_as_killed
from tests.support.pop_client import PopClient, advance, rest, send
from tests.support.running_broker import BrokerClient, running, small

STEP_MS = 300 * 86_400_000
BODIES = [b"acked", b"acked later", b"open"]


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


async def popped_ahead(clock: FakeClock, remote: BrokerClient, client: PopClient) -> list[Any]:
    """Pop three messages while the clock is ahead, and acknowledge the first."""
    await send(remote, *BODIES)
    clock.step(STEP_MS)
    messages = await client.pop()
    assert bodies(messages) == BODIES
    assert (await client.ack(messages[0])).code == 0
    return messages


async def check_open_message(broker: Broker, clock: FakeClock, client: PopClient) -> None:
    """Check that the message without acknowledgement, and no other, is visible again in time."""
    assert broker.parts.pop is not None
    await advance(broker, clock, 59_000)
    assert await client.pop() == []
    await advance(broker, clock, 2_000)
    messages = await client.pop()
    assert bodies(messages) == [b"open"]
    assert (await client.ack(messages[0])).code == 0
    await advance(broker, clock, 200_000)
    assert await client.pop() == []
    assert broker.parts.pop.first_needed() is None, "the log files of the pops are needed"
    assert timers_of(broker) == 0


def timers_of(broker: Broker) -> int:
    timers = broker.plugins.plugins["timer_store"].parts.timers  # type: ignore[attr-defined]
    return int(timers.counts.total)


@pytest.mark.parametrize("is_settled", [True, False], ids=["after the search", "before it"])
def test_a_clock_set_back_hides_no_message_and_forgets_no_acknowledgement(
    run_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        messages = await popped_ahead(clock, remote, client)
        with monkeypatch.context() as patch:
            if not is_settled:
                patch.setattr(AheadPops, "step", lambda self, now_ms: False)
            clock.step(-STEP_MS)
            await rest(broker)
            assert broker.parts.pop is not None
            assert broker.parts.pop.first_needed() == 0, "the popped messages are in the first file"
            assert (await client.ack(messages[1])).code == 0
        await advance(broker, clock, 0 if is_settled else RETRY_MS)
        await check_open_message(broker, clock, client)

    run_rig(scene)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize("is_back", [True, False], ids=["back after a restart", "back before it"])
def test_a_restart_changes_nothing(tmp_path: Path, is_killed: bool, is_back: bool) -> None:
    clock = FakeClock()

    async def before(root: Path) -> Any:
        async with running(small(root), clock=clock) as (broker, remote):
            messages = await popped_ahead(clock, remote, PopClient(remote, clock))
            if is_back:
                clock.step(-STEP_MS)
                await rest(broker)
            if is_killed:
                copy_as_killed(root, tmp_path / "next")
        if not is_killed:
            copy_as_killed(root, tmp_path / "next")
        return messages[1]

    async def after(root: Path, message: Any) -> None:
        async with running(small(root), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            await rest(broker)
            assert (await client.ack(message)).code == 0
            await check_open_message(broker, clock, client)

    acked_later = asyncio.run(before(tmp_path / "broker"))
    if not is_back:
        clock.step(-STEP_MS)
    asyncio.run(after(tmp_path / "next", acked_later))


def test_a_clock_that_is_set_forward_again_ends_no_invisible_time(
    run_rig: Callable[..., Any],
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        messages = await popped_ahead(clock, remote, client)
        clock.step(-STEP_MS)
        await rest(broker)
        clock.step(STEP_MS)
        await rest(broker)
        assert (await client.ack(messages[1])).code == 0
        clock.step(-STEP_MS)
        await check_open_message(broker, clock, client)

    run_rig(scene)


def test_a_kill_forgets_no_acknowledgement_of_a_clock_that_was_set_forward_again(
    tmp_path: Path,
) -> None:
    """The table that was written before the acknowledgement has no time ahead of the clock."""
    clock = FakeClock()

    async def before(root: Path) -> None:
        async with running(small(root), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            messages = await popped_ahead(clock, remote, client)
            clock.step(-STEP_MS)
            await rest(broker)
            broker.parts.persist()
            clock.step(STEP_MS)
            assert (await client.ack(messages[1])).code == 0
            copy_as_killed(root, tmp_path / "killed")

    async def after(root: Path) -> None:
        async with running(small(root), clock=clock) as (broker, remote):
            await rest(broker)
            await check_open_message(broker, clock, PopClient(remote, clock))

    asyncio.run(before(tmp_path / "broker"))
    clock.step(-STEP_MS)
    asyncio.run(after(tmp_path / "killed"))


def test_the_invisible_time_can_be_changed_after_the_step(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        messages = await popped_ahead(clock, remote, client)
        clock.step(-STEP_MS)
        await rest(broker)
        assert (await client.change(messages[1], 200_000)).code == 0
        assert (await client.change(messages[0], 9_000)).code == ResponseCode.NO_MESSAGE
        await advance(broker, clock, 61_000)
        assert bodies(await client.pop()) == [b"open"]
        assert (await client.change(messages[2], 9_000)).code == ResponseCode.NO_MESSAGE
        await advance(broker, clock, 138_000)
        assert bodies(await client.pop()) == [b"open"]
        await advance(broker, clock, 2_000)
        assert bodies(await client.pop()) == [b"acked later"]

    run_rig(scene)


def test_a_pop_whose_checkpoint_is_read_at_the_step_is_decided_after_its_acknowledgements(
    run_rig: Callable[..., Any],
) -> None:
    """In its last second, the checkpoint is in the revive topic, the acknowledgement is not."""

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        messages = await popped_ahead(clock, remote, client)
        await advance(broker, clock, 59_500)
        clock.step(-STEP_MS)
        assert (await client.ack(messages[1])).code == 0
        await rest(broker)
        assert await client.pop() == []
        await advance(broker, clock, 1_000)
        assert bodies(await client.pop()) == [b"open"]

    run_rig(scene)


def test_records_are_fired_when_the_store_accepts_them_again(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        messages = await popped_ahead(clock, remote, client)
        broker.store.gate.refusal = "the disk is full"
        clock.step(-STEP_MS)
        await rest(broker)
        await advance(broker, clock, 90_000)
        assert timers_of(broker) > 0
        broker.store.gate.refusal = ""
        await advance(broker, clock, 1_500)
        assert (await client.ack(messages[1])).code == 0
        await check_open_message(broker, clock, client)

    run_rig(scene)


def test_the_search_and_its_pieces_are_bounded(
    run_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints and acknowledgements of many pieces."""
    monkeypatch.setattr("duemq.pop.revival.ahead_pops.RECORDS_MAX", 3)
    monkeypatch.setattr("duemq.pop.revival.ahead_pops.UNITS_MAX", 5)

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        names = [b"%d" % number for number in range(20)]
        await send(remote, *names)
        clock.step(STEP_MS)
        messages = [(await client.pop(maxMsgNums=1))[0] for _ in names]
        for message in messages[::2]:
            assert (await client.ack(message)).code == 0
        clock.step(-STEP_MS)
        await rest(broker)
        await advance(broker, clock, 61_000)
        returned = await client.pop() + await client.pop()
        assert sorted(bodies(returned)) == sorted(names[1::2])

    run_rig(scene)
