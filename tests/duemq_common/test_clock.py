"""The clocks: waiting for an event or a time, whichever is first."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from duemq_common.clock import AwakeTime, FakeClock, Signal, SystemClock
from tests.support.fakes import settle

EVENTS = [asyncio.Event, Signal]
PAUSE_MS = 10_000
clock = SystemClock()


@pytest.mark.parametrize("make", EVENTS)
def test_a_past_time_ends_the_wait(make: type[asyncio.Event]) -> None:
    async def main() -> None:
        until_ms = clock.now_ms() + 2
        await clock.wait(make(), until_ms=until_ms)
        assert clock.now_ms() >= until_ms
        await clock.wait(make(), until_ms=until_ms)

    asyncio.run(main())


@pytest.mark.parametrize("until_ms", [None, 1 << 60])
@pytest.mark.parametrize("make", EVENTS)
def test_an_event_ends_the_wait(make: type[asyncio.Event], until_ms: int | None) -> None:
    async def main() -> None:
        event = make()
        asyncio.get_running_loop().call_soon(event.set)
        await clock.wait(event, until_ms=until_ms)
        await clock.wait(event, until_ms=until_ms)  # already set
        event.clear()
        asyncio.get_running_loop().call_soon(event.set)
        await clock.wait(event, until_ms=until_ms)

    asyncio.run(main())


@pytest.mark.parametrize("make", EVENTS)
def test_a_wait_can_be_cancelled_and_repeated(make: type[asyncio.Event]) -> None:
    async def main() -> None:
        event = make()
        task = asyncio.create_task(clock.wait(event, until_ms=1 << 60))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        asyncio.get_running_loop().call_soon(event.set)
        await clock.wait(event, until_ms=1 << 60)

    asyncio.run(main())


def test_the_fake_clock_waits_for_events() -> None:
    async def main() -> None:
        fake, signal = FakeClock(1_000), Signal()
        waits = asyncio.create_task(fake.wait(signal, until_ms=2_000))
        await asyncio.sleep(0)
        fake.advance(1_000)
        await waits
        waits = asyncio.create_task(fake.wait(signal, until_ms=9_000))
        await asyncio.sleep(0)
        signal.set()
        await waits

    asyncio.run(main())


@pytest.mark.parametrize("make", [asyncio.Event, Signal])
def test_a_clock_set_back_ends_the_wait(
    make: type[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a wait of a second would last as long as the step back."""
    times = iter([5_000.0, 1_400.0])
    # Only the clock's module: other threads read the time as well.
    monkeypatch.setattr("duemq_common.clock.time", SimpleNamespace(time=lambda: next(times)))
    clock = SystemClock()
    clock.WAIT_MS_MAX = 1

    async def main() -> None:
        async with asyncio.timeout(60):
            await clock.wait(make(), until_ms=5_001_000)

    asyncio.run(main())
    assert next(times, None) is None


def test_the_fake_clock_set_back_ends_the_wait() -> None:
    clock = FakeClock()

    async def main() -> None:
        waiting = asyncio.ensure_future(clock.wait(asyncio.Event(), until_ms=clock.now_ms() + 10))
        await asyncio.sleep(0)
        clock.advance(9)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(-60_000)
        await waiting

    asyncio.run(main())


@pytest.mark.parametrize(
    ("steps_ms", "awake_ms"),
    [
        ([PAUSE_MS], PAUSE_MS),
        ([4_000, 6_000, 3_000], 13_000),
        ([300_000], PAUSE_MS),
        ([4_000, 300_000], PAUSE_MS),
        ([300_000, 4_000, 300_000], 2 * PAUSE_MS),
    ],
)
def test_stalls_do_not_count(steps_ms: list[int], awake_ms: int) -> None:
    async def main() -> None:
        clock, stop = FakeClock(), asyncio.Event()
        awake = AwakeTime(clock)

        async def pauses() -> None:
            while not stop.is_set():
                await awake.pause(stop, PAUSE_MS)

        task = asyncio.create_task(pauses())
        for step_ms in steps_ms:
            await settle()
            before_ms = awake.now_ms()
            clock.advance(step_ms)
            assert awake.now_ms() <= before_ms + PAUSE_MS  # while the stall has not been noticed
        await settle()
        assert awake.now_ms() == awake_ms
        stop.set()
        await task
        clock.advance(5)
        assert awake.now_ms() == awake_ms + 5

    asyncio.run(main())
