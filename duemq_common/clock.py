"""Clock: the only module that reads time. Planners take `now_ms`; only loops hold a `Clock`."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from typing import Protocol


def thread_processor_s() -> float:
    """Return the processor time of this thread in seconds: waits for other threads are left out."""
    return time.thread_time()


class Clock(Protocol):
    """Wall-clock milliseconds and a wait that ends at a wall-clock time."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    def steady_ms(self) -> int:
        """Return milliseconds of a clock that is never set, and runs while the machine sleeps."""
        ...

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        """Return when `event` is set or the clock reaches `until_ms` (None: never).

        Also return soon after the clock was set back, because the wait must not become longer by
        that step. The caller must check the time again.
        """
        ...


class Signal(asyncio.Event):
    """Event for a single task that often waits with a deadline.

    For an asyncio.Event, the clock cancels the wait at the deadline, which is slower.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        super().set()
        if self._sleeper is not None:
            _finish(self._sleeper)

    async def wait_for(self, seconds: float) -> None:
        """Return when the event is set, or after `seconds`."""
        assert self._sleeper is None, "a second task waits"
        if self.is_set():
            return
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        wake_up = loop.call_later(seconds, _finish, self._sleeper)
        try:
            await self._sleeper
        finally:
            wake_up.cancel()
            self._sleeper = None


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class SystemClock:
    """The machine's clock."""

    WAIT_MS_MAX = 1_000  # then the wall clock is read again, because it may have been set
    STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no such clock

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(self.STEADY) // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds on the monotonic clock, for durations and ids, never for due times."""
        return time.monotonic()

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        seen_ms = 0.0
        while not event.is_set():
            if until_ms is None:
                await event.wait()
                return
            before_ms, seen_ms = seen_ms, time.time() * 1_000
            # Rounded up, because an event loop waits whole ms: this loop would spin for a part.
            left_ms = math.ceil(until_ms - seen_ms)
            if left_ms <= 0 or seen_ms < before_ms:
                return
            left_s = min(left_ms, self.WAIT_MS_MAX) / 1_000
            if isinstance(event, Signal):
                await event.wait_for(left_s)
                continue
            try:
                async with asyncio.timeout(left_s):
                    await event.wait()
            except TimeoutError:
                continue


class AwakeTime:
    """`Clock.steady_ms` without stalls: the time by which pauses of a loop end late.

        awake                            | stall, 300 s      | awake
        heartbeat, pause, pause, pause ..| suspended machine | pause: silent for 4 pauses

    Limits of the silence of peers use it. Peers may send heartbeats during a stall, or be stalled
    themselves: they run on the same machine, or wait for a response. If the stall counted as their
    silence, its end would remove all of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._stalled_ms = clock, 0
        self._until_ms: int | None = None  # end of the current pause

    def now_ms(self) -> int:
        """Return the time in ms."""
        now_ms = self._clock.steady_ms()
        if self._until_ms is not None:
            now_ms = min(now_ms, self._until_ms)
        return now_ms - self._stalled_ms

    async def pause(self, event: asyncio.Event, pause_ms: int) -> None:
        """Return when `event` is set or the pause is over; see `Clock.wait`.

        One task makes the pauses, one after the other.
        """
        self._until_ms = until_ms = self._clock.steady_ms() + pause_ms
        try:
            await self._clock.wait(event, until_ms=self._clock.now_ms() + pause_ms)
        finally:
            self._stalled_ms += max(self._clock.steady_ms() - until_ms, 0)
            self._until_ms = None


class FakeClock:
    """Clock that tests move by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._steady_ms = 0
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._serial = 0

    def now_ms(self) -> int:
        return self._now_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def monotonic_s(self) -> float:
        return self._steady_ms / 1_000

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        if event.is_set() or (until_ms is not None and until_ms <= self._now_ms):
            return
        if until_ms is None:
            await event.wait()
            return
        alarm = asyncio.Event()
        self._serial += 1
        heapq.heappush(self._sleepers, (until_ms, self._serial, alarm))
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(alarm.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def set_ms(self, now_ms: int) -> None:
        """Step to `now_ms`; end waits that are due; a step back ends all waits.

        A step back does not change the steady clock.
        """
        back = now_ms < self._now_ms
        self._steady_ms += max(now_ms - self._now_ms, 0)
        self._now_ms = now_ms
        while self._sleepers and (back or self._sleepers[0][0] <= now_ms):
            heapq.heappop(self._sleepers)[2].set()

    def advance(self, step_ms: int) -> None:
        """Move forward by `step_ms`."""
        self.set_ms(self._now_ms + step_ms)

    def step(self, step_ms: int) -> None:
        """Step the wall clock, forward or back, while no time passes."""
        steady_ms = self._steady_ms
        self.set_ms(self._now_ms + step_ms)
        self._steady_ms = steady_ms
