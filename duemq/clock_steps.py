"""Watch for a wall clock that is set back: periodic jobs would pause for as long as the step.

APScheduler computes the next run of a job on the wall clock. After a step back of an hour every job
would wait for an hour: no progress is written, no file removed, no full disk looked at again. So
after such a step the jobs are scheduled again, from the time that the clock shows now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from message_store.clock import Clock

if TYPE_CHECKING:
    from apscheduler.schedulers.base import BaseScheduler

log = logging.getLogger(__name__)
WATCH_MS: Final = 60_000  # the clock's wait ends within a second of a step back
STEP_MS_MIN: Final = 1_000  # smaller steps pause jobs for less than that


@asynccontextmanager
async def watching_clock(clock: Clock, scheduler: BaseScheduler) -> AsyncIterator[None]:
    """Keep the jobs of a scheduler going while the block is open."""
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch_clock(clock, scheduler, stopped), name="clock watch")
        try:
            yield
        finally:
            stopped.set()


async def watch_clock(clock: Clock, scheduler: BaseScheduler, stopped: asyncio.Event) -> None:
    """Schedule the jobs again whenever the clock was set back, until `stopped` is set."""
    latest_ms = clock.now_ms()
    while not stopped.is_set():
        await clock.wait(stopped, until_ms=clock.now_ms() + WATCH_MS)
        now_ms = clock.now_ms()
        if now_ms < latest_ms - STEP_MS_MIN:
            log.warning("the clock was set back by %d s", (latest_ms - now_ms) // 1_000)
            schedule_again(scheduler)
        latest_ms = now_ms


def schedule_again(scheduler: BaseScheduler) -> None:
    """Have every job run as if it had been added now."""
    for job in scheduler.get_jobs():
        interval = getattr(job.trigger, "interval", None)
        if interval is None:  # at times of day
            job.reschedule(job.trigger)
        else:
            job.reschedule("interval", seconds=interval.total_seconds())
