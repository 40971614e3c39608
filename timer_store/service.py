"""Timer service: a loop that sleeps until the next due time and works in bounded turns.

    turn:  enqueue from the timer queue -> non-timers -> load slots -> deliver one due batch

The event loop runs other work between two turns, so that sends and pulls are not delayed
while a second with a million timers is delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from delayed_delivery.service_tasks import preload, report_failure
from duemq_common.clock import Clock, Signal
from message_store.kernels.preparation import Preparation
from message_store.log.batch import PutBatch
from timer_store.store import TimerStore

KERNELS = "timers", "pending_timers"  # groups of kernels: delivery; moves and copies


class TimerService:
    """Loop that runs a `TimerStore`. Belongs to the event loop's thread.

    Args:
        on_failure: Called when the service cannot continue.
        kernels: Preparation of kernels; delivery begins when those of timers are ready.
    """

    def __init__(
        self,
        timers: TimerStore,
        clock: Clock,
        *,
        on_failure: Callable[[str], None],
        kernels: Preparation | None = None,
    ) -> None:
        self._kernels = kernels or Preparation()
        self._timers, self._clock, self._on_failure = timers, clock, on_failure
        self._wake = Signal()
        self._stop = asyncio.Event()
        self._sleeping_until = -1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Deliver while the block is open; leaving it finishes the current turn."""
        loop = asyncio.get_running_loop()
        loader = self._timers.dequeue.loader
        with loader.threaded(lambda: _call_soon(loop, self._wake.set)):
            delivering = asyncio.create_task(self.run(), name="timer delivery")
            loading = asyncio.create_task(
                preload(self._kernels, KERNELS, self._clock, self._stop), name="timer preload"
            )
            try:
                yield self
            finally:
                self._stop.set()
                self._wake.set()
                await delivering
                await loading

    async def run(self) -> None:
        """Run turns until stopped, once the kernels are ready."""
        try:
            await self._kernels.wait(KERNELS[0], stop=self._stop)
            while not self._stop.is_set():
                if self._timers.turn(self._clock.now_ms()):
                    await asyncio.sleep(0)
                else:
                    await self._sleep()
        except Exception as error:
            report_failure("timer", error, self._on_failure)

    async def _sleep(self) -> None:
        self._wake.clear()  # there was no await since the turn
        if self._stop.is_set():
            return
        now_ms = self._clock.now_ms()
        until_ms = self._timers.next_work_ms(now_ms)
        if until_ms <= now_ms:  # such a wait would not yield, and would block other tasks
            await asyncio.sleep(0)
            return
        self._sleeping_until = until_ms
        await self._clock.wait(self._wake, until_ms=until_ms)
        self._sleeping_until = -1

    @property
    def is_idle(self) -> bool:
        """Whether all work that is possible now is done."""
        busy = self._timers.dequeue.loader.busy
        return self._sleeping_until >= 0 and not self._wake.is_set() and not busy

    def wake(self) -> None:
        """Wake the loop after a setting or a timer has changed."""
        self._wake.set()

    def on_put(self, batch: PutBatch) -> None:
        """Enqueue the timers of an appended batch. The dispatcher of this plugin."""
        noted = self._timers.on_put(batch, self._clock.now_ms())
        if noted and self._timers.new_timers_ms < self._sleeping_until:
            self._wake.set()


def _call_soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Schedule work on the loop from a thread, unless the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)
