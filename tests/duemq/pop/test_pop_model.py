"""Pop, acknowledge, change, expire, kill: a broker against a dictionary of messages."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from tests.support.extended import one_in
from tests.support.killed_copy import copy_as_killed
from tests.support.pop_client import PopClient, Popped, advance, rest
from tests.support.running_broker import running, small

STEPS, LIVES = 25, 4
YEAR_MS = 300 * 86_400_000
SLACK_MS = 10  # from the end of an invisible time to the message's return, on a fake clock


@dataclass
class MessageState:
    """Expected state of one message.

    Attributes:
        until_ms: Time from which it is visible; 0 before the first pop.
        handle: Its newest handle.
        is_acked: Whether it was acknowledged in time.
    """

    until_ms: int = 0
    handle: Popped | None = None
    is_acked: bool = False


class Model:
    """Expected state of a broker's messages, and the checks of each pop."""

    def __init__(self, clock: FakeClock, seed: int) -> None:
        self.clock, self.chance = clock, random.Random(seed)
        self.states: dict[bytes, MessageState] = {}
        self.old: list[Popped] = []
        self.returned = 0

    async def step(self, broker: Any, remote: Any, client: PopClient) -> None:
        actions = [self.send, self.send, self.pop, self.pop, self.ack, self.ack]
        actions += [self.ack_old, self.change, self.wait, self.wait, self.persist]
        await self.chance.choice(actions)(broker, remote, client)

    async def send(self, broker: Any, remote: Any, client: PopClient) -> None:
        for _ in range(self.chance.randint(1, 5)):
            body = b"%d" % len(self.states)
            assert (await remote.send("T", body)).code == 0
            self.states[body] = MessageState()

    async def pop(self, broker: Any, remote: Any, client: PopClient) -> None:
        invisible_ms = self.chance.choice([500, 3_000, 20_000, 200_000])
        count = self.chance.choice([1, 3, 32])
        found = await client.pop(invisibleTime=invisible_ms, maxMsgNums=count)
        self._note(found, invisible_ms)
        if client.rest == 0:
            self._check_nothing_is_missing()

    def _note(self, found: list[Popped], invisible_ms: int) -> None:
        now_ms = self.clock.now_ms()
        for message in found:
            state = self.states[message.body]
            assert not state.is_acked, f"{message.body!r} was acknowledged"
            assert state.until_ms <= now_ms, f"{message.body!r} is another consumer's"
            self.returned += state.until_ms > 0
            if state.handle is not None:
                self.old.append(state.handle)
            state.until_ms, state.handle = now_ms + invisible_ms, message

    def _check_nothing_is_missing(self) -> None:
        """Check that no visible message is missing, after a pop that could return more messages."""
        now_ms = self.clock.now_ms()
        for body, state in self.states.items():
            if not state.is_acked:
                late_ms = now_ms - state.until_ms
                assert late_ms < SLACK_MS, f"{body!r} has not come back after {late_ms} ms"

    def _invisible(self) -> list[MessageState]:
        now_ms = self.clock.now_ms()
        return [
            k for k in self.states.values() if k.handle and not k.is_acked and k.until_ms > now_ms
        ]

    async def ack(self, broker: Any, remote: Any, client: PopClient) -> None:
        invisible = self._invisible()
        for state in self.chance.sample(invisible, min(len(invisible), self.chance.randint(1, 4))):
            for _ in range(self.chance.choice([1, 1, 2])):
                assert state.handle is not None
                assert (await client.ack(state.handle)).code == 0
            state.is_acked = True

    async def ack_old(self, broker: Any, remote: Any, client: PopClient) -> None:
        """Acknowledge with an expired handle, which changes nothing."""
        if self.old:
            assert (await client.ack(self.chance.choice(self.old))).code == 0

    async def change(self, broker: Any, remote: Any, client: PopClient) -> None:
        invisible = self._invisible()
        if not invisible:
            return
        state, invisible_ms = (
            self.chance.choice(invisible),
            self.chance.choice([0, 800, 5_000, 90_000]),
        )
        old = state.handle
        assert old is not None
        response = await client.change(old, invisible_ms)
        assert response.code == 0
        fields = response.fields or {}
        parts = [str(old.offset), fields["popTime"], fields["invisibleTime"], fields["reviveQid"]]
        handle = " ".join([*parts, *old.handle.split(" ")[4:]])
        state.handle = Popped(old.body, old.topic, old.queue_id, old.offset, handle, old.record)
        state.until_ms = self.clock.now_ms() + invisible_ms
        await advance(broker, self.clock, 1)

    async def wait(self, broker: Any, remote: Any, client: PopClient) -> None:
        await advance(broker, self.clock, self.chance.choice([50, 700, 4_000, 30_000]), by_ms=900)
        await advance(broker, self.clock, 2 * SLACK_MS, by_ms=5)

    async def persist(self, broker: Any, remote: Any, client: PopClient) -> None:
        broker.parts.persist()

    def kill(self) -> None:
        """Kill the broker; the table of offsets is the last persisted one."""
        self.clock.advance(self.chance.choice([1, 2_000, 40_000]))

    async def drain(self, broker: Any, remote: Any, client: PopClient) -> None:
        """Advance past every invisible time, and acknowledge all messages."""
        await advance(broker, self.clock, 300_000, by_ms=20_000)
        while True:
            await advance(broker, self.clock, 2 * SLACK_MS, by_ms=5)
            found = await client.pop(invisibleTime=60_000)
            self._note(found, 60_000)
            for message in found:
                assert (await client.ack(message)).code == 0
                self.states[message.body].is_acked = True
            if not found:
                break
        self._check_nothing_is_missing()
        assert all(state.is_acked for state in self.states.values())


@dataclass
class Lease:
    """Invisible time of a message after a step of the clock.

    Attributes:
        handle: Handle of the pop that began it.
        stored_ms: Time at which its checkpoint came into the revive topic; 0: it is pending.
        until_ms: Earliest time at which the message is visible if the clock does not show the time
            of the pop before.
        latest_ms: Latest time at which the message is visible again.
    """

    handle: Popped | None
    stored_ms: int = 0
    until_ms: int = 0
    latest_ms: int = 0


class SteppedModel(Model):
    """Model whose clock is set, back and forward."""

    def __init__(self, clock: FakeClock, seed: int) -> None:
        super().__init__(clock, seed)
        self.leases: dict[bytes, Lease] = {}
        self.steps = 0

    async def step(self, broker: Any, remote: Any, client: PopClient) -> None:
        if self.chance.random() < 0.2:
            await self.set_clock(broker)
        else:
            await super().step(broker, remote, client)

    async def set_clock(self, broker: Any) -> None:
        before_ms, far_ms = self.clock.now_ms(), self.chance.choice([5_000, 70_000, YEAR_MS])
        self.clock.step(self.chance.choice([-far_ms, -far_ms, far_ms]))
        self.steps += 1
        for body, state in self.states.items():
            if state.handle and not state.is_acked:
                self._step_message(body, state, before_ms)
        await rest(broker)
        await advance(broker, self.clock, 2 * SLACK_MS, by_ms=5)

    def _step_message(self, body: bytes, state: MessageState, before_ms: int) -> None:
        now_ms = self.clock.now_ms()
        lease = self.leases.get(body)
        if lease is None or lease.handle is not state.handle:
            lease = self.leases[body] = Lease(state.handle)
        assert state.handle is not None
        _, pop_text, invisible_text, *_ = state.handle.handle.split(" ")
        pop_ms, invisible_ms = int(pop_text), int(invisible_text)
        if max(state.until_ms, lease.latest_ms) <= before_ms:  # it is visible already
            state.until_ms = lease.latest_ms = 0
            return
        if not lease.stored_ms and pop_ms + invisible_ms - 1_000 <= before_ms:
            lease.stored_ms = before_ms
        if pop_ms <= now_ms + 1_000:
            state.until_ms = lease.until_ms = pop_ms + invisible_ms
            lease.latest_ms = 0
            return
        if now_ms > before_ms:
            return
        revive_ms, ahead_ms = pop_ms + invisible_ms, pop_ms - 1_000
        if not lease.stored_ms:
            lease.stored_ms = now_ms
        until_ms = state.until_ms if before_ms >= ahead_ms else lease.until_ms or state.until_ms
        lease.latest_ms = 0
        if lease.stored_ms <= now_ms + 1_000:
            lease.until_ms = min(lease.stored_ms, now_ms) + invisible_ms
        else:
            lease.until_ms = now_ms + max(until_ms - before_ms, 0)
            lease.latest_ms = now_ms + invisible_ms
        # The clock may show the time of the pop before.
        state.until_ms = revive_ms if lease.until_ms > ahead_ms else lease.until_ms
        lease.latest_ms = revive_ms if lease.latest_ms > ahead_ms else lease.latest_ms

    async def drain(self, broker: Any, remote: Any, client: PopClient) -> None:
        await advance(broker, self.clock, 600_000, by_ms=20_000)
        await super().drain(broker, remote, client)

    def _check_nothing_is_missing(self) -> None:
        now_ms = self.clock.now_ms()
        for body, state in self.states.items():
            lease = self.leases.get(body)
            is_current = lease is not None and lease.handle is state.handle
            latest_ms = lease.latest_ms if lease is not None and is_current else 0
            late_ms = now_ms - max(state.until_ms, latest_ms)
            assert state.is_acked or late_ms < SLACK_MS, f"{body!r} is missing for {late_ms} ms"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("seed", "is_stepped"),
    one_in(
        4,
        [(seed, False) for seed in [*range(8), 113]]
        + [(seed, True) for seed in (3, 4, 7, 9, 15, 18, 20, 26)],
    ),
)
def test_each_message_is_visible_to_one_consumer_and_not_lost(
    tmp_path: Path, seed: int, is_stepped: bool
) -> None:
    """A clock is set only without kills, after which an invisible time may begin again."""
    model = (SteppedModel if is_stepped else Model)(FakeClock(), seed)

    async def run_broker(root: Path, *, last: bool) -> None:
        async with running(small(root), clock=model.clock) as (broker, remote):
            client = PopClient(remote, model.clock)
            await broker.parts.topics.ensure("T", queues=1)
            await rest(broker)
            await advance(broker, model.clock, 2 * SLACK_MS, by_ms=5)
            for _ in range(STEPS * (4 if is_stepped else 1)):
                await model.step(broker, remote, client)
            if last:
                await model.drain(broker, remote, client)
            else:
                copy = root.with_name(f"{root.name}+")  # as a killed process leaves it
                copy_as_killed(root, copy)

    root, lives = tmp_path / "broker", 1 if is_stepped else LIVES
    for number in range(lives):
        asyncio.run(run_broker(root, last=number == lives - 1))
        root = root.with_name(f"{root.name}+")
        model.kill()
    assert model.returned > (0 if is_stepped else 5)
