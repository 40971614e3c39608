"""Bulk decisions in progress: lists the hits of searches, and decides on them in batches."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Final

from duemq.client.decisions import MessageSelection
from duemq.client.errors import ClientError
from duemq.console.bulk_job import ACTIVE, BulkJob, ItemList, TimerSearch
from duemq.http.endpoints import JsonObject
from duemq.http.problems import Problem
from duemq.http.sessions import AccountSession
from duemq.net.decisions import DecisionResult
from duemq_common.errors import RequestError

log = logging.getLogger(__name__)
ITEMS_MAX: Final = 1_000_000  # messages of one job; an item takes about 50 bytes
ITEMS_TOTAL_MAX: Final = 2_000_000  # messages of all jobs; the oldest ended ones are removed
JOBS_MAX: Final = 32
ACTIVE_MAX: Final = 2  # jobs that list or decide at the same time
READY_S: Final = 15 * 60.0  # time for the confirmation
LIST_VIEW: Final = "timer_store.list"
KEY_COUNT: Final = 1_000  # messages with one key that a broker lists; there is no next page
LIST_COUNT: Final = 500  # messages of one request; the broker reads their records in one turn
BATCH: Final = 2_000  # decisions of one request
CANCELLED_BEFORE: Final = "the message was cancelled before"


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
        search: TimerSearch,
        deliver_ms: int | None,
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
        """List the hits of the search, broker by broker."""
        search = job.search
        fields: dict[str, object] = {
            "topic": search.topic,
            "key": search.key,
            "from_ms": search.from_ms,
            "to_ms": search.until_ms,
            "limit": KEY_COUNT if search.key else LIST_COUNT,
        }
        for _, address in await session.masters():
            cursor: str | None = ""
            while cursor is not None and not job.stopped_by:
                page: JsonObject = await session.admin.view(
                    address, LIST_VIEW, **fields, cursor=cursor
                )
                for timer in page["timers"]:
                    job.add(timer.get("topic"), timer.get("unique_key"), timer["due_ms"])
                job.damage += page["damage"]
                cursor = page["cursor"]
                if job.total > ITEMS_MAX:
                    job.fail(f"the search has more than {ITEMS_MAX:,} hits: give a shorter range")
                    job.lists.clear()
                    return
        if search.key:
            await _check_key(session, job)
        if job.state == "listing":
            job.state = "stopped" if job.stopped_by else "ready"
        job.prepared_s = self._now_s()

    async def _decide(self, session: AccountSession, job: BulkJob) -> None:
        """Decide on the listed messages, batch by batch."""
        for topic, items in job.lists.items():
            for first in range(0, len(items), BATCH):
                if job.stopped_by:
                    job.state = "stopped"
                    return
                await decide_batch(session, job, topic, items, first)
        job.state = "done"


async def _check_key(session: AccountSession, job: BulkJob) -> None:
    """Fail if the brokers have more messages with the key than they list."""
    search = job.search
    for topic, items in job.lists.items():
        selection = MessageSelection(
            keys=[search.key], topic=topic, from_ms=search.from_ms, until_ms=search.until_ms
        )
        [result] = await session.decisions.decide(job.action, selection, dry_run=True, **job.move())
        if result.messages + result.refused > len(items):
            job.fail(
                f"topic {topic} has {result.messages + result.refused:,} pending messages with the "
                f"key, of which {len(items):,} are listed: give the topic and a range instead"
            )


async def decide_batch(
    session: AccountSession, job: BulkJob, topic: str, items: ItemList, first: int
) -> None:
    """Decide on the messages of a topic from a position on, and set their results."""
    indexes = range(first, min(first + BATCH, len(items)))
    names = [items.name(index) for index in indexes]
    due_ms = items.due_ms[indexes.start : indexes.stop]
    selection = MessageSelection(
        ids=list(dict.fromkeys(names)),
        topic=topic,
        from_ms=min(due_ms),
        until_ms=max(due_ms) + 1,
    )
    try:
        results = await session.decisions.decide(job.action, selection, dry_run=False, **job.move())
    except BaseException:
        for index in indexes:  # a broker may have decided before the request failed
            job.set_result(items, index, "no_response")
        raise
    by_name = {one.name: one for one in results}
    for index, name in zip(indexes, names, strict=True):
        job.set_result(items, index, verdict_of(by_name[name]), by_name[name].remark)


def verdict_of(result: DecisionResult) -> str:
    """Return the verdict of an item; a message that was cancelled before is one of its own."""
    if not result.messages and result.remark == CANCELLED_BEFORE:
        return "before"
    return result.verdict.replace(" ", "_")
