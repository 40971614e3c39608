"""Periodic jobs of a broker: writes of tables, statistics, disk, retention, changed files."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from duemq.auth.access import AccessControl
from duemq.auth.plain_files import POLL_MS
from duemq.broker.components import BrokerComponents
from duemq.configuration.settings import Settings
from duemq.net.tls import Tls
from duemq_common.clock import Clock
from message_store.retention.log_retention import Retention

log = logging.getLogger(__name__)
PERSIST_MS = 3_000
STATS_MS = 10_000
PERSIST_JOB, OFFSETS_JOB, STATS_JOB = "topics and groups", "consumer offsets", "statistics"
DISK_JOB, RETENTION_JOB, CONFIG_JOB = "disk", "retention", "configuration file"
ACCOUNTS_JOB = "accounts"


def add_jobs(
    scheduler: AsyncIOScheduler,
    parts: BrokerComponents,
    settings: Settings,
    access: AccessControl | None,
    tls: Tls,
    clock: Clock,
) -> None:
    """Add the jobs that need the store and its tables."""

    async def persist() -> None:
        await parts.save()
        await parts.append_snapshots()

    async def check_disk() -> None:
        parts.store.check_disk()

    async def sample() -> None:
        parts.stats.sample(clock.now_ms())
        if tls.client is not None:
            tls.client.reload_if_changed()

    add_job(scheduler, PERSIST_MS, with_reports(persist, PERSIST_JOB), PERSIST_JOB)
    offsets = with_reports(parts.offsets.save, OFFSETS_JOB)
    add_job(scheduler, settings.broker.flush_consumer_offset_ms, offsets, OFFSETS_JOB)
    add_job(scheduler, settings.store.clean_interval_ms, check_disk, DISK_JOB)
    add_job(scheduler, STATS_MS, sample, STATS_JOB)
    if access is not None and access.files is not None:
        add_job(scheduler, POLL_MS, access.poll, ACCOUNTS_JOB)


def add_retention(
    scheduler: AsyncIOScheduler, interval_ms: int, retention: Retention, stack: AsyncExitStack
) -> None:
    """Add retention, which needs a complete broker; a stop ends it first.

    A retention round in progress at that time finds pins unknown from then on.
    """
    add_job(scheduler, interval_ms, retention.clean_in_thread, RETENTION_JOB)
    stack.push_async_callback(retention.finish)
    stack.callback(scheduler.remove_job, RETENTION_JOB)


def add_job(
    scheduler: AsyncIOScheduler,
    interval_ms: int,
    work: Callable[[], Awaitable[object]],
    name: str,
) -> None:
    """Add a job that runs at intervals."""
    scheduler.add_job(work, "interval", seconds=interval_ms / 1_000, id=name, name=name)


def with_reports(
    write: Callable[[], Awaitable[object]], tables: str
) -> Callable[[], Awaitable[None]]:
    """Return a periodic job that writes tables, and reports a failing disk once per cause.

    Args:
        write: Writes what has changed; after an OSError the next call retries.
        tables: Names of the tables, for the log.
    """
    failure = ""

    async def written() -> None:
        nonlocal failure
        try:
            await write()
        except OSError as error:
            if str(error) != failure:
                log.error("%s cannot be written; it is tried again: %s", tables, error)
            failure = str(error)
            return
        if failure:
            log.info("%s: written again", tables)
        failure = ""

    return written
