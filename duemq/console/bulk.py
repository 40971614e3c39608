"""Bulk decisions in progress: lists the hits of searches, and decides on them page by page."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Final

from duemq.client.admin.resends import AS_IT_IS, ResendOptions, UndeliveredSearch
from duemq.client.bulk_decisions import PendingSearch
from duemq.client.errors import ClientError
from duemq.console.bulk_job import ACTIVE, NO_RESPONSE, OPEN, BulkJob, JobPage
from duemq.http.broker_states import unasked
from duemq.http.problems import Problem
from duemq.http.sessions import AccountSession
from duemq_common.errors import RequestError

log = logging.getLogger(__name__)
ITEMS_MAX: Final = 1_000_000  # messages of one job; an item takes about 60 bytes
ITEMS_TOTAL_MAX: Final = 2_000_000  # messages of all jobs; the oldest ended ones are removed
JOBS_MAX: Final = 32
ACTIVE_MAX: Final = 2  # jobs that list or decide at the same time
READY_S: Final = 15 * 60.0  # time for the confirmation


class BulkJobs:
    """Jobs of one console.

    Args:
        now_ms: Returns the time in ms since the epoch.
        now_s: Returns a monotonic time in seconds.
    """

    def __init__(self, now_ms: Callable[[], int], now_s: Callable[[], float]) -> None:
        self._now_ms, self._now_s = now_ms, now_s
        self._jobs: OrderedDict[str, BulkJob] = OrderedDict()

    def jobs(self) -> list[BulkJob]:
        """Return the jobs, newest first."""
        self._expire()
        return list(reversed(self._jobs.values()))

    def find(self, name: str) -> BulkJob:
        """Return a job.

        Raises:
            Problem: There is no such job.
        """
        self._expire()
        job = self._jobs.get(name)
        if job is None:
            detail = "its list has expired or was discarded, or the console was started again"
            raise Problem(404, "no-job", "There is no such bulk decision", detail)
        return job

    def prepare(
        self,
        session: AccountSession,
        account: str,
        action: str,
        search: PendingSearch | UndeliveredSearch,
        deliver_ms: int | None = None,
        resend: ResendOptions = AS_IT_IS,
    ) -> BulkJob:
        """Begin to list the hits of a search.

        Raises:
            Problem: Too many jobs are in progress.
        """
        self._expire()
        self._check_active()
        job = BulkJob(
            id=secrets.token_urlsafe(9),
            account=account,
            action=action,
            search=search,
            deliver_ms=deliver_ms,
            resend=resend,
            prepared_ms=self._now_ms(),
            prepared_s=self._now_s(),
        )
        self._jobs[job.id] = job
        self._run(job, session, self._list(session, job))
        return job

    def start(self, session: AccountSession, job: BulkJob, account: str) -> None:
        """Begin to decide.

        Raises:
            Problem: The job is not ready, or another account has prepared it.
        """
        if job.account != account:
            detail = f"{job.account} has prepared it; search again to prepare your own"
            raise Problem(403, "account", "The bulk decision belongs to another account", detail)
        if job.state != "ready":
            raise Problem(409, "not-ready", "The bulk decision cannot start", job.state)
        self._check_active()
        job.state, job.started_ms = "running", self._now_ms()
        self._run(job, session, self._decide(session, job))

    def stop(self, job: BulkJob, account: str) -> None:
        """Stop a job after the request in progress; what was decided stays decided."""
        if job.state in ACTIVE:
            job.stopped_by = account

    def discard(self, job: BulkJob) -> None:
        """Remove a job that does nothing."""
        if job.state not in ACTIVE:
            self._jobs.pop(job.id, None)

    def _check_active(self) -> None:
        if sum(job.state in ACTIVE for job in self._jobs.values()) >= ACTIVE_MAX:
            detail = f"{ACTIVE_MAX} are in progress: wait for one, or stop it"
            raise Problem(429, "bulk-limit", "Too many bulk decisions are in progress", detail)

    def _expire(self) -> None:
        """Remove lists that were not confirmed in time, and the oldest jobs beyond the limits."""
        now_s = self._now_s()
        for job in list(self._jobs.values()):
            if job.state == "ready" and now_s - job.prepared_s > READY_S:
                del self._jobs[job.id]
        for job in list(self._jobs.values()):
            total = sum(one.total for one in self._jobs.values())
            if total <= ITEMS_TOTAL_MAX and len(self._jobs) < JOBS_MAX:
                break
            if job.state not in ACTIVE:
                del self._jobs[job.id]

    def _run(
        self, job: BulkJob, session: AccountSession, steps: Coroutine[None, None, None]
    ) -> None:
        """Run the steps of a job in a task; a failure is the job's state."""

        async def run() -> None:
            try:
                with session:
                    await steps
            except (ClientError, RequestError) as error:
                job.fail(str(error))
            except Exception:
                log.exception("a bulk decision failed")
                job.fail("an error of the console; its log has the details")
            if job.state not in ("listing", "ready", "running"):
                job.ended_ms = self._now_ms()

        job.task = asyncio.create_task(run(), name="bulk decision")

    async def _list(self, session: AccountSession, job: BulkJob) -> None:
        """List the hits of the search."""
        job.unknown = {part.broker: part.reason for part in await unasked(session)}
        has_response = False
        async for page, hits in job.listed(session.client):
            has_response = True
            job.add(page, hits)
            if job.total > ITEMS_MAX:
                job.fail(f"the search has more than {ITEMS_MAX:,} hits: give a shorter range")
                job.pages.clear()
                job.topics.clear()
                job.counts.clear()
                return
            if job.stopped_by:
                break
        if job.unknown and not has_response:
            job.fail("; ".join(job.unknown.values()))
            return
        job.state = "stopped" if job.stopped_by else "ready"
        job.prepared_s = self._now_s()

    async def _decide(self, session: AccountSession, job: BulkJob) -> None:
        """Decide on the listed messages, page by page; after a failure, of other brokers only."""
        failures: dict[str, str] = {}
        for one in job.pages:
            if job.stopped_by:
                job.state = "stopped"
                return
            if one.page.broker in failures:
                continue
            try:
                await decide_page(session, job, one)
            except (ClientError, RequestError) as error:
                failures[one.page.broker] = str(error)
        job.state = "done"
        if failures:
            job.fail("; ".join(failures.values()))


async def decide_page(session: AccountSession, job: BulkJob, one: JobPage) -> None:
    """Decide on the messages of a page, and set their results."""
    try:
        result = await job.decide(session.client, one.page)
    except BaseException as error:
        is_read = isinstance(job.search, UndeliveredSearch) and isinstance(error, ClientError)
        if not is_read:  # the broker may have decided before the request failed
            verdicts = one.verdicts.replace(bytes([OPEN]), bytes([NO_RESPONSE]))
            job.set_results(one, verdicts, one.remarks)
        raise
    job.set_results(one, result.verdicts, result.remarks)
