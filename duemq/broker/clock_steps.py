"""Rescheduling of periodic jobs after the wall clock is set back.

APScheduler computes the next run of a job in wall clock time. After a step back of an hour, no job
would run for an hour: no offsets written, no files removed, no disk checks. The jobs are therefore
rescheduled from the current time. A step forward needs nothing: the jobs run once, and continue
(`duemq.broker.periodic_jobs`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from duemq_common.clock import Clock

if TYPE_CHECKING:
    from duemq.broker.periodic_jobs import PeriodicJobs

log = logging.getLogger(__name__)
WATCH_MS: Final = 60_000  # `Clock.wait` ends within a second of a step back
STEP_MS_MIN: Final = 1_000  # smaller steps are ignored


@asynccontextmanager
async def watching_clock(clock: Clock, scheduler: PeriodicJobs) -> AsyncIterator[None]:
    """Reschedule jobs after clock steps while the block is active."""
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch_clock(clock, scheduler, stopped), name="clock watch")
        try:
            yield
        finally:
            stopped.set()


async def watch_clock(clock: Clock, scheduler: PeriodicJobs, stopped: asyncio.Event) -> None:
    """Reschedule the jobs whenever the clock is set back, until `stopped` is set."""
    latest_ms = clock.now_ms()
    while not stopped.is_set():
        await clock.wait(stopped, until_ms=clock.now_ms() + WATCH_MS)
        now_ms = clock.now_ms()
        if now_ms < latest_ms - STEP_MS_MIN:
            log.warning("the clock was set back by %d s", (latest_ms - now_ms) // 1_000)
            reschedule_jobs(scheduler)
        latest_ms = now_ms


def reschedule_jobs(scheduler: PeriodicJobs) -> None:
    """Reschedule every job from now."""
    for job in scheduler.get_jobs():
        interval = getattr(job.trigger.trigger, "interval", None)
        if interval is None:  # a cron trigger
            job.reschedule(job.trigger)
        else:
            job.reschedule("interval", seconds=interval.total_seconds())
