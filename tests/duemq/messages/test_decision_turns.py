"""Decisions yield to deliveries: what is due is delivered before the next slice, up to a limit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duemq.client.decisions import PendingDecisions
from duemq.messages import decision_turns
from duemq.messages.decision_turns import DUE_TURNS_MAX, DecisionTurns
from duemq_common.clock import FakeClock
from schedule_service.decisions import PendingLevels
from tests.support.running_broker import BrokerClient, running, small
from timer_store.pending.lookup import PendingTimers

HOUR_MS = 3_600_000
COUNT = 6
WAYS = [{"keys": ["all"]}, {"topic": "T"}, {"ids": [f"U{number}" for number in range(COUNT)]}]


class DuePort:
    """Component whose deliveries need some turns."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def wake_due(self, now_ms: int) -> bool:
        self.turns -= 1
        return self.turns >= 0


@pytest.mark.parametrize("turns", [0, 1, 3, DUE_TURNS_MAX, 10 * DUE_TURNS_MAX])
def test_a_slice_waits_for_a_limited_number_of_deliveries(turns: int) -> None:
    port, steps = DuePort(turns), [0]
    ports: list[Any] = [port]

    async def count_steps() -> None:
        while True:
            await asyncio.sleep(0)
            steps[0] += 1

    async def work() -> None:
        counting = asyncio.create_task(count_steps())
        await asyncio.sleep(0)
        async with DecisionTurns(lambda: ports, FakeClock()):
            assert steps[0] == 1 + min(turns, DUE_TURNS_MAX)
        counting.cancel()

    asyncio.run(work())


class NextPort:
    """Component whose next message is due at a time, and is not delivered."""

    def __init__(self, due_ms: int) -> None:
        self._due_ms = due_ms

    def wake_due(self, now_ms: int) -> bool:
        return self._due_ms <= now_ms


@pytest.mark.parametrize(
    ("due_in_ms", "waits_s"), [(0, [0] * DUE_TURNS_MAX), (1, [0.001]), (2, []), (60_000, [])]
)
def test_a_delivery_that_is_due_in_a_slice_comes_before_it(
    due_in_ms: int, waits_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice waits once, however many messages are due at each millisecond."""
    sleep, clock, sleeps = asyncio.sleep, FakeClock(), list[float]()
    ports: list[Any] = [NextPort(clock.now_ms() + due_in_ms)]

    async def noted(seconds: float) -> None:
        sleeps.append(seconds)
        await sleep(0)

    async def work() -> None:
        async with DecisionTurns(lambda: ports, clock):
            pass

    monkeypatch.setattr(asyncio, "sleep", noted)
    asyncio.run(work())
    assert sleeps == [0, *waits_s]


def test_a_cancelled_wait_does_not_hold_the_turn() -> None:
    port = DuePort(10 * DUE_TURNS_MAX)
    ports: list[Any] = [port]

    async def work() -> None:
        turns = DecisionTurns(lambda: ports, FakeClock())

        async def decide() -> None:
            async with turns:
                pass

        decision = asyncio.create_task(decide())
        for _ in range(3):
            await asyncio.sleep(0)
        decision.cancel()
        await asyncio.gather(decision, return_exceptions=True)
        assert port.turns > 0
        port.turns = 0
        await asyncio.wait_for(decide(), 10)

    asyncio.run(work())


async def fill(remote: BrokerClient, now_ms: int, kind: str) -> None:
    """Send messages for decisions, and timers that are due one after the other."""
    for number in range(COUNT):
        due = {"TIMER_DELIVER_MS": str(now_ms + HOUR_MS + number)} if kind == "timer" else {}
        due = due or {"DELAY": "9"}
        await remote.send("T", b"m", UNIQ_KEY=f"U{number}", KEYS="all", **due)
    for number in range(2 * COUNT):
        await remote.send("due", b"m", TIMER_DELIVER_MS=str(now_ms + 10_000 + number))


@pytest.mark.parametrize("kind", ["timer", "level"])
@pytest.mark.parametrize("selection", WAYS, ids=["key", "topic", "ids"])
def test_due_messages_are_delivered_before_the_next_slice(
    selection: dict[str, Any], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice takes one ms of the clock, and a timer becomes due in it."""
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MIN", 2)
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MAX", 2)
    port: Any = PendingTimers if kind == "timer" else PendingLevels
    cancel, slices = port.cancel, list[tuple[int, int]]()

    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, remote):
            now_ms = clock.now_ms()
            await fill(remote, now_ms, kind)
            clock.advance(9_999)

            def sliced(self: Any, offsets: Any) -> Any:
                slices.append((offsets.size, broker.store.queue_bounds("due", 0)[1]))
                clock.advance(1)
                return cancel(self, offsets)

            monkeypatch.setattr(port, "cancel", sliced)
            async with PendingDecisions(broker=broker.address) as decisions:
                results = await decisions.cancel(**selection)
                assert sum(result.messages for result in results) == COUNT, results
            assert slices == [(2, number) for number in range(COUNT // 2)]

    asyncio.run(work())
