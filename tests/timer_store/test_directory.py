"""The timer store as a library: a directory and a clock, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from delayed_delivery.pending import Verdict
from duemq_common.clock import FakeClock
from duemq_common.errors import ConfigError, StoreLocked
from message_store.log.batch import PutBatch
from tests.support.replica_rig import until
from tests.support.stores import add_message
from timer_store.directory import TimerDirectory, TimerRefused, open_timers

SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeTimerLog": "5200",
    "timerMaxDelaySec": "3600",
}
HOUR_MS = 3_600_000


class OpenedTimers:
    """An opened directory and its clock."""

    def __init__(self, timers: TimerDirectory, clock: FakeClock) -> None:
        self.timers, self.clock = timers, clock

    async def rest(self) -> None:
        """Let the service do all work that is possible now."""
        for _ in range(5):  # until the service has run
            await asyncio.sleep(0)
        await until(lambda: self.timers.is_idle)

    async def advance(self, step_ms: int) -> None:
        self.clock.advance(step_ms)
        await self.rest()

    def bodies(self, topic: str = "Orders", **where: int) -> list[bytes]:
        return [record.body for record in self.timers.delivered(topic, **where)]


@asynccontextmanager
async def opened(root: Path, clock: FakeClock, **properties: str) -> AsyncIterator[OpenedTimers]:
    async with open_timers(root, clock=clock, properties=SMALL | properties) as timers:
        run = OpenedTimers(timers, clock)
        await run.rest()
        yield run


def test_timers_are_delivered_on_time_across_a_restart(tmp_path: Path) -> None:
    async def steps() -> None:
        clock = FakeClock()
        async with opened(tmp_path, clock) as run:
            now_ms = clock.now_ms()
            for number in range(100):
                run.timers.put("Orders", b"%d" % number, now_ms + 10 * number + 5)
            assert run.timers.pending == {"Orders": 100}
            assert run.timers.forecast(now_ms, 60_000, 1).tolist() == [100]
            await run.advance(14)
            assert run.bodies() == [b"0"]
            await run.advance(1)
            assert run.bodies() == [b"0", b"1"]
            assert await run.timers.durable()
            assert await run.timers.checkpoint()
        clock.advance(400)
        async with opened(tmp_path, clock) as run:
            assert run.bodies() == [b"%d" % number for number in range(42)]
            await run.advance(10_000)
            assert run.bodies(offset=90) == [b"%d" % number for number in range(90, 100)]
            assert run.timers.pending == {}
            late = [
                r.store_ms - now_ms - 10 * n - 5
                for n, r in enumerate(run.timers.delivered("Orders"))
            ]
            assert min(late) >= 0

    asyncio.run(steps())


def test_decisions_report_their_verdict(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path, FakeClock()) as run:
            timers, now_ms = run.timers, run.clock.now_ms()
            ids = np.array([timers.put("Orders", b"%d" % n, now_ms + HOUR_MS) for n in range(4)])
            assert timers.cancel(ids[:1]).verdicts.tolist() == [Verdict.DONE]
            assert timers.move(ids[1:2], np.array([now_ms + 50])).verdicts.tolist() == [
                Verdict.DONE
            ]
            assert timers.fire(ids[2:3]).verdicts.tolist() == [Verdict.DONE]
            await run.rest()
            assert run.bodies() == [b"2"]
            await run.advance(50)
            assert run.bodies() == [b"2", b"1"]
            assert timers.cancel(ids[2:3]).verdicts.tolist() == [Verdict.DELIVERED]
            assert timers.pending == {"Orders": 1}

    asyncio.run(steps())


def test_a_batch_and_its_refusals(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path, FakeClock()) as run:
            now_ms, batch = run.clock.now_ms(), PutBatch(2)
            for due_ms in (now_ms + 1_000, now_ms + 2 * HOUR_MS):
                properties = {"TIMER_DELIVER_MS": str(due_ms)}
                add_message(run.timers.store, batch, "Orders", properties=properties)
            run.timers.put_batch(batch)
            assert batch.filled["status"].tolist() == [0, 13]
            assert "3600000" in batch.remarks[1]
            with pytest.raises(TimerRefused, match="3600000") as refused:
                run.timers.put("Orders", b"", now_ms + 2 * HOUR_MS)
            assert refused.value.code == 13

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("topic", "queue_id", "reason"),
    [
        ("", 0, "name"),
        ("a/b", 0, "name"),
        ("Orders", -1, "queue -1"),
        ("Orders", 1 << 20, "is not in"),
    ],
)
def test_refused_puts_give_the_reason(
    tmp_path: Path, topic: str, queue_id: int, reason: str
) -> None:
    async def steps() -> None:
        async with opened(tmp_path, FakeClock()) as run:
            with pytest.raises(ValueError, match=reason):
                run.timers.put(topic, b"", run.clock.now_ms(), queue_id=queue_id)
            assert run.timers.store.max_offset == 0

    asyncio.run(steps())


def test_bad_properties_and_a_second_owner(tmp_path: Path) -> None:
    async def steps() -> None:
        with pytest.raises(ConfigError, match="timerPrecisionMs"):
            async with opened(tmp_path, FakeClock(), timerPrecisionMs="never"):
                pass
        async with opened(tmp_path, FakeClock()):
            with pytest.raises(StoreLocked):
                async with opened(tmp_path, FakeClock()):
                    pass

    asyncio.run(steps())


def test_checkpoints_are_written_periodically(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path, FakeClock(), timerFlushIntervalMs="1000") as run:
            run.timers.put("Orders", b"", run.clock.now_ms() + HOUR_MS)
            path = tmp_path / "config" / "duemq.timers.json"
            before = path.read_text()
            await run.advance(1_000)
            for _ in range(1_000):
                if path.read_text() != before:
                    return
                await asyncio.to_thread(run.timers.store.flush)
            raise AssertionError("no checkpoint")

    asyncio.run(steps())
