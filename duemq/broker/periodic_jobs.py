"""APScheduler whose jobs catch up with a step of the clock in one run, and finish at a stop.

Before it coalesces the missed runs of a job, APScheduler 3 lists them all, on the event loop: 34
million for a job of one second after a step of 400 days. At a stop it cancels the jobs that run.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

FINISH_S_MAX: Final = 10.0  # for jobs that run at a stop


class CoalescedTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler 3 has no types
    """Trigger that continues after the current time, whatever number of runs was missed.

    Attributes:
        trigger: Trigger that defines the times.
    """

    def __init__(self, trigger: BaseTrigger) -> None:
        self.trigger = trigger

    def get_next_fire_time(
        self, previous_fire_time: datetime | None, now: datetime
    ) -> datetime | None:
        """Return the next time after `previous_fire_time`, or the first one that is not before now.

        None: there is none.
        """
        following: datetime | None = self.trigger.get_next_fire_time(previous_fire_time, now)
        if following is not None and following < now:
            following = self.trigger.get_next_fire_time(None, now)
        return following

    def __str__(self) -> str:
        return str(self.trigger)


class FinishingExecutor(AsyncIOExecutor):  # type: ignore[misc]  # APScheduler 3 has no types
    """AsyncIOExecutor whose jobs can finish."""

    async def finish(self) -> None:
        """Return when the running jobs have ended, at the latest after `FINISH_S_MAX`."""
        if running := list(self._pending_futures):
            await asyncio.wait(running, timeout=FINISH_S_MAX)


class PeriodicJobs(AsyncIOScheduler):  # type: ignore[misc]  # APScheduler 3 has no types
    """AsyncIOScheduler with coalesced triggers."""

    async def finish(self) -> None:
        """Start no more jobs, let the running ones finish, and shut down."""
        self.pause()
        await self._jobs_executor.finish()
        self.shutdown(wait=False)
        await asyncio.sleep(0)  # APScheduler shuts down in the next turn of the event loop

    def _create_default_executor(self) -> FinishingExecutor:
        self._jobs_executor = FinishingExecutor()
        return self._jobs_executor

    def _create_trigger(self, trigger: object, trigger_args: dict[str, object]) -> CoalescedTrigger:
        if isinstance(trigger, CoalescedTrigger):
            return trigger
        return CoalescedTrigger(super()._create_trigger(trigger, trigger_args))
