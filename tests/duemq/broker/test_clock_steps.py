"""Periodic jobs go on after the clock was set back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from duemq.broker.clock_steps import reschedule_jobs, watching_clock
from duemq.broker.periodic_jobs import PeriodicJobs
from duemq_common.clock import FakeClock

YEAR_MS = 365 * 86_400_000


async def work() -> None:
    """Do nothing."""


def scheduler_with_job() -> PeriodicJobs:
    """Return a running scheduler whose job was scheduled when the clock was ahead."""
    scheduler = PeriodicJobs(timezone=UTC)
    scheduler.start()
    job = scheduler.add_job(work, "interval", seconds=5, id="job")
    job.modify(next_run_time=datetime.now(UTC) + timedelta(days=3_650))
    return scheduler


def wait_s(scheduler: PeriodicJobs) -> float:
    next_run: datetime = scheduler.get_job("job").next_run_time
    return (next_run - datetime.now(UTC)).total_seconds()


def test_jobs_run_one_interval_after_a_step_back() -> None:
    async def main() -> None:
        scheduler = scheduler_with_job()
        reschedule_jobs(scheduler)
        assert 0 < wait_s(scheduler) <= 5
        scheduler.shutdown(wait=False)

    asyncio.run(main())


def test_jobs_at_times_of_day_stay_at_them() -> None:
    async def main() -> None:
        scheduler = PeriodicJobs(timezone=UTC)
        scheduler.start()
        scheduler.add_job(work, "cron", hour=3, id="job")
        reschedule_jobs(scheduler)
        assert scheduler.get_job("job").next_run_time.hour == 3
        scheduler.shutdown(wait=False)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("step_ms", "again"),
    [(-3_600_000, True), (-10 * YEAR_MS, True), (-500, False), (500, False), (YEAR_MS, False)],
)
def test_the_watch_sees_steps_back_only(step_ms: int, again: bool) -> None:
    async def main() -> None:
        clock, scheduler = FakeClock(), scheduler_with_job()
        async with watching_clock(clock, scheduler):
            await asyncio.sleep(0)
            clock.step(step_ms)
            for _ in range(8):
                await asyncio.sleep(0)
            assert (wait_s(scheduler) <= 5) == again
        scheduler.shutdown(wait=False)

    asyncio.run(main())
