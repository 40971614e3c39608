"""APScheduler whose jobs catch up with a step of the clock in one run.

Before it coalesces the missed runs of a job, APScheduler 3 lists them all, on the event loop: 34
million for a job of one second after a step of 400 days.
"""

from __future__ import annotations

from datetime import datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger


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


class PeriodicJobs(AsyncIOScheduler):  # type: ignore[misc]  # APScheduler 3 has no types
    """AsyncIOScheduler with coalesced triggers."""

    def _create_trigger(self, trigger: object, trigger_args: dict[str, object]) -> CoalescedTrigger:
        if isinstance(trigger, CoalescedTrigger):
            return trigger
        return CoalescedTrigger(super()._create_trigger(trigger, trigger_args))
