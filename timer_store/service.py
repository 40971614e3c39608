"""The timer service: a loop that sleeps until the next due time and works in bounded turns.

    turn:  enqueue from the timer queue -> non-timers -> load slots -> deliver one due batch

Each turn is bounded, and the event loop runs other work between two turns: ordinary sends and
pulls keep their latency while a second with a million timers leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from message_store.clock import Clock, Signal
from message_store.log.batch import PutBatch
from timer_store.preload import preload_copies, preload_kernels
from timer_store.store import TimerStore

log = logging.getLogger(__name__)
PRELOAD_MS = 100  # after the start: the broker serves by then


class TimerService:
    """Runs a `TimerStore`. Belongs to the event loop's thread.

    Args:
        on_failure: called when the service cannot go on.
    """

    def __init__(
        self, timers: TimerStore, clock: Clock, *, on_failure: Callable[[str], None]
    ) -> None:
        self._timers, self._clock, self._on_failure = timers, clock, on_failure
        self._wake = Signal()
        self._stop = asyncio.Event()
        self._sleeping_until = -1
        self._stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Deliver while the block is open; leaving it finishes the turn in hand."""
        loop = asyncio.get_running_loop()
        loader = self._timers.dequeue.loader
        with loader.threaded(lambda: _call_soon(loop, self._wake.set)):
            delivery = asyncio.create_task(self._guard(), name="timer delivery")
            preload = asyncio.create_task(self._preload_kernels(), name="timer preload")
            try:
                yield self
            finally:
                self._stopping = True
                self._stop.set()
                self._wake.set()
                await delivery
                await preload

    async def _preload_kernels(self) -> None:
        """Have kernels loaded before the first timer is due, and not while the broker starts."""
        await self._clock.wait(self._stop, until_ms=self._clock.now_ms() + PRELOAD_MS)
        if not self._stopping:
            await asyncio.to_thread(preload_kernels)
            await asyncio.to_thread(preload_copies)

    async def _guard(self) -> None:
        """Have the broker stop in order if the loop dies: the log has everything."""
        try:
            await self.run()
        except Exception as error:
            log.exception("the timer service cannot go on")
            self._on_failure(f"{type(error).__name__}: {error}")

    async def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            if self._timers.turn(self._clock.now_ms()):
                await asyncio.sleep(0)
            else:
                await self._sleep()

    async def _sleep(self) -> None:
        self._wake.clear()  # nothing was awaited since the turn
        if self._stopping:
            return
        until_ms = self._timers.next_moment_ms(self._clock.now_ms())
        self._sleeping_until = until_ms
        await self._clock.wait(self._wake, until_ms=until_ms)
        self._sleeping_until = -1

    @property
    def resting(self) -> bool:
        """Whether everything that can be done now is done."""
        busy = self._timers.dequeue.loader.busy
        return self._sleeping_until >= 0 and not self._wake.is_set() and not busy

    def wake(self) -> None:
        """Have the loop look again: a setting or a timer has changed."""
        self._wake.set()

    def note_put(self, batch: PutBatch) -> None:
        """Take the timers of an appended batch in. The dispatcher of this plugin."""
        noted = self._timers.note_put(batch, self._clock.now_ms())
        if noted and self._timers.look_ms < self._sleeping_until:
            self._wake.set()


def _call_soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Have the loop do something, unless it has ended: a thread may be the last to finish."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)
