"""Loop of the timer store: other tasks run while a turn has to wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from delayed_delivery.service_tasks import PRELOAD_AFTER_MS
from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore
from message_store.kernels import registry
from tests.support.timer_rig import TimerRig

WAITS_MAX = 10_000
TURNS = 50
DAY_MS = 86_400_000


class CountingClock(FakeClock):
    """Clock that ends a loop of waits which never suspend."""

    waits = 0

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        self.waits += 1
        assert self.waits < WAITS_MAX, "the loop does not let other tasks run"
        await super().wait(event, until_ms=until_ms)


async def call(function: Callable[..., object], *args: object) -> object:
    """Call a function in this thread."""
    return function(*args)


def test_a_rebuild_begins_after_the_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    """The end of the write is another task's work."""
    clock = CountingClock()
    rig = TimerRig(tmp_path, clock).open()
    rig.is_sound = False
    rig.put(clock.now_ms() + 5_000, body=b"timer")
    rig.work()
    failures: list[str] = []

    async def work() -> None:
        rig.timers.writing = True
        rig.timers.dequeue.broken = CorruptStore(tmp_path, 0, "a pointer is wrong", "")
        clock.advance(10_000)
        async with rig.timers.running(on_failure=failures.append):
            for _ in range(10):
                await asyncio.sleep(0)
            assert rig.timers.state.rebuilds == 0
            rig.timers.writing = False
            for _ in range(WAITS_MAX):
                await asyncio.sleep(0)
                if failures or rig.timers.is_idle:
                    break

    asyncio.run(work())
    assert failures == []
    assert rig.timers.state.rebuilds == 1
    assert rig.bodies() == [b"timer"]
    rig.close()


@pytest.mark.parametrize("timers_at_start", [0, 1])
def test_kernels_of_decisions_are_loaded_when_there_is_a_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timers_at_start: int
) -> None:
    """A broker without timers does not keep their machine code in memory."""
    clock, groups = FakeClock(), list[str]()
    rig = TimerRig(tmp_path, clock).open()
    if timers_at_start:
        rig.put(clock.now_ms() + DAY_MS)
        rig.work()
        rig.close()
        rig.open()
    monkeypatch.setattr(registry, "load", groups.append)
    monkeypatch.setattr(asyncio, "to_thread", call)

    async def load() -> list[str]:
        for _ in range(TURNS):
            clock.advance(PRELOAD_AFTER_MS)
            await asyncio.sleep(0)
        return groups

    async def work() -> None:
        async with rig.timers.running(on_failure=pytest.fail):
            expected = ["timers", "pending_timers"]
            assert await load() == expected[: 1 + timers_at_start]
            if not timers_at_start:
                rig.put(clock.now_ms() + DAY_MS)
                assert await load() == expected

    asyncio.run(work())
    rig.close()
