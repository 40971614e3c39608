"""Loop of the timer store: other tasks run while a turn has to wait for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore
from tests.support.timer_rig import TimerRig

WAITS_MAX = 10_000


class CountingClock(FakeClock):
    """Clock that ends a loop of waits which never suspend."""

    waits = 0

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        self.waits += 1
        assert self.waits < WAITS_MAX, "the loop does not let other tasks run"
        await super().wait(event, until_ms=until_ms)


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
