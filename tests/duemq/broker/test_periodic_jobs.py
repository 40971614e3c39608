"""A step of the clock costs one run of each job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import given
from hypothesis import strategies as st

from duemq.broker.clock_steps import reschedule_jobs
from duemq.broker.periodic_jobs import CoalescedTrigger, PeriodicJobs
from duemq.broker.process_services import new_scheduler

START = datetime(2026, 1, 1, tzinfo=UTC)
RUNS_MAX = 2  # the missed one, and one at the current time
TRIGGERS: dict[str, Callable[[], Any]] = {
    "interval": lambda: IntervalTrigger(seconds=1, start_date=START),
    "cron": lambda: CronTrigger.from_crontab("* * * * *", timezone=UTC),
    "daily cron with a time zone": lambda: CronTrigger(hour=2, minute=30, timezone="Europe/Berlin"),
}


async def work() -> None:
    """Do nothing."""


@pytest.mark.finding("3D5")
@pytest.mark.parametrize("name", TRIGGERS)
@given(step_s=st.integers(0, 20 * 366 * 86_400))
def test_a_step_forward_is_one_run(name: str, step_s: int) -> None:
    trigger = CoalescedTrigger(TRIGGERS[name]())
    following = trigger.get_next_fire_time(None, START)
    now, runs = START + timedelta(seconds=step_s), 0
    while following is not None and following <= now:
        following, runs = trigger.get_next_fire_time(following, now), runs + 1
    assert runs <= RUNS_MAX
    assert following is not None
    assert following > now
    assert following - now <= timedelta(days=2)


@given(step_s=st.integers(0, 1))
def test_runs_that_are_not_missed_stay_at_their_times(step_s: int) -> None:
    trigger, plain = CoalescedTrigger(TRIGGERS["interval"]()), TRIGGERS["interval"]()
    now = START + timedelta(milliseconds=10)
    assert trigger.get_next_fire_time(START, now) == plain.get_next_fire_time(START, now)


def test_the_scheduler_coalesces_every_trigger() -> None:
    async def main() -> list[object]:
        scheduler = new_scheduler()
        assert isinstance(scheduler, PeriodicJobs)
        scheduler.add_job(work, "interval", seconds=1, id="before the start")
        scheduler.start()
        scheduler.add_job(work, "interval", seconds=1, id="interval")
        scheduler.add_job(work, TRIGGERS["cron"](), id="cron")
        reschedule_jobs(scheduler)
        triggers = [job.trigger for job in scheduler.get_jobs()]
        scheduler.shutdown(wait=False)
        return triggers

    triggers = asyncio.run(main())
    assert [type(trigger) for trigger in triggers] == [CoalescedTrigger] * 3
    nested = [each.trigger for each in triggers if isinstance(each, CoalescedTrigger)]
    assert not any(isinstance(trigger, CoalescedTrigger) for trigger in nested)
    assert {str(trigger) for trigger in triggers} >= {"interval[0:00:01]"}
