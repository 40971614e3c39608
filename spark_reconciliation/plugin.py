"""Reconciliation plugin: audits by cron and on request, one at a time, in child processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from delayed_delivery.plugin import PluginBase, PluginHost
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import from_properties, with_live
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response
from spark_reconciliation.config import ReconcileConfig
from spark_reconciliation.jobs import child_process
from spark_reconciliation.jobs.stored_audits import StoredAudits

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from message_store.store import MessageStore

log = logging.getLogger(__name__)
JOB: Final = "reconciliation.audit"
LEVELS_KEY: Final = "messageDelayLevel"
GRACE_S: Final = 3_600
"""Maximum delay, in seconds, after which an audit that missed its time is not started."""


@dataclass(slots=True)
class LastAudit:
    """Last audit of this process, and the numbers of finished and skipped audits."""

    started_ms: int = 0
    ended_ms: int = 0
    result: child_process.Result | None = None
    runs: int = 0
    skipped: int = 0


class ReconciliationPlugin(PluginBase):
    """Plugin that starts audits by `reconcileCron` and on request, one at a time.

    Attributes:
        run_command: Runs the command of an audit.
    """

    name = "reconciliation"

    def __init__(
        self,
        host: PluginHost,
        run_command: Callable[..., Awaitable[child_process.Result]] = child_process.run,
    ) -> None:
        self._host, self.run_command = host, run_command
        self.config = from_properties(ReconcileConfig, host.properties)
        self.last = LastAudit()
        self.stored = StoredAudits(host.store_root, lambda: self.config.ledger_url)
        self._audit_task: asyncio.Task[None] | None = None
        self._open = False

    def config_class(self) -> type:
        return ReconcileConfig

    def request_handlers(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.START_AUDIT: self.start, RequestCode.READ_AUDITS: self.stored.read}

    def admin_views(self) -> Mapping[str, Callable[[], object]]:
        return {"status": self._status_view}

    def reconfigure(self, properties: Mapping[str, str]) -> None:
        """Apply a changed configuration; a running audit continues.

        Raises:
            ConfigError: The configuration is invalid; nothing has changed.
        """
        self.config, _ = with_live(self.config, from_properties(ReconcileConfig, properties))
        if self._open:
            self._schedule()

    @asynccontextmanager
    async def running(self, store: MessageStore) -> AsyncIterator[None]:
        """Audit by the schedule while the block is open; leaving it ends a running audit."""
        collector = AuditCollector(self)
        self._host.metrics.register(collector)
        self._open = True
        self._schedule()
        try:
            yield
        finally:
            self._open = False
            self._unschedule()
            self._host.metrics.unregister(collector)
            if self._audit_task is not None:
                self._audit_task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._audit_task

    async def start(self, request: Request) -> Response:
        """Start an audit for an operator; the audits of the schedule remain.

        Raises:
            RequestError: An audit runs, or the broker stops.
        """
        if self.is_running or not self._open:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "an audit runs: wait for its end")
        log.info("an audit was requested")
        self._begin()
        return Response()

    @property
    def is_running(self) -> bool:
        """Whether an audit runs now."""
        return self._audit_task is not None

    async def audit(self) -> None:
        """Run an audit, unless one is running."""
        if self._audit_task is not None or not self._open:
            self.last.skipped += 1
            log.warning("an audit still runs; this one is skipped")
            return
        await asyncio.wait([self._begin()])

    def _begin(self) -> asyncio.Task[None]:
        """Return the task of a new audit."""
        task = self._audit_task = asyncio.create_task(self._run_audit(), name="audit")
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._audit_task = None

    async def _run_audit(self) -> None:
        started_ms = self._host.clock.now_ms()
        levels = self._host.properties.get(LEVELS_KEY, "")
        command = child_process.command_of(self.config, self._host.store_root, levels)
        result = await self.run_command(
            command, seconds_max=self.config.minutes_max * child_process.MINUTE_S
        )
        ended_ms, runs = self._host.clock.now_ms(), self.last.runs + 1
        self.last = LastAudit(started_ms, ended_ms, result, runs, self.last.skipped)
        if result.exit_code:
            reason = result.why or ", ".join(f"{n} {k}" for k, n in result.verdicts.items())
            log.error("the audit %s ended with code %d: %s", *_named(result), reason)
        else:
            log.info("the audit %s has no findings", result.audit_id)

    def _schedule(self) -> None:
        self._unschedule()
        trigger = self.config.trigger()
        if trigger is not None:
            self._host.scheduler.add_job(
                self.audit,
                trigger,
                id=JOB,
                coalesce=True,
                max_instances=1,
                misfire_grace_time=GRACE_S,
            )

    def _unschedule(self) -> None:
        with suppress(LookupError):
            self._host.scheduler.remove_job(JOB)

    def _status_view(self) -> dict[str, object]:
        last = self.last
        return {
            "cron": self.config.cron,
            "running": self.is_running,
            "runs": last.runs,
            "skipped": last.skipped,
            "started_ms": last.started_ms,
            "ended_ms": last.ended_ms,
            "last": None if last.result is None else asdict(last.result),
        }


def _named(result: child_process.Result) -> tuple[str, int]:
    return result.audit_id or "that was started", result.exit_code


class AuditCollector:
    """A prometheus-client collector over the audits of one broker."""

    def __init__(self, plugin: ReconciliationPlugin) -> None:
        self._plugin = plugin

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families; those of the last audit are empty before it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        last = self._plugin.last
        result, took_ms = last.result, last.ended_ms - last.started_ms
        yield CounterMetricFamily("duemq_audit_runs", "Audits since the start.", value=last.runs)
        yield CounterMetricFamily(
            "duemq_audit_skipped",
            "Audits that were skipped because another one was running.",
            value=last.skipped,
        )
        yield GaugeMetricFamily(
            "duemq_audit_running", "1 while an audit runs.", value=int(self._plugin.is_running)
        )
        facts = (
            (
                "exit_code",
                "Exit code of the last audit: 0 clean, 1 findings, 2 it could not run.",
                0 if result is None else result.exit_code,
            ),
            ("last_seconds", "End of the last audit, Unix time.", last.ended_ms / 1_000),
            ("duration_seconds", "Duration of the last audit.", took_ms / 1_000),
        )
        for name, doc, value in facts:
            shown = None if result is None else value
            yield GaugeMetricFamily(f"duemq_audit_{name}", doc, value=shown)
        verdicts = GaugeMetricFamily(
            "duemq_audit_verdicts", "Messages of the last audit by verdict.", labels=["verdict"]
        )
        for verdict, count in result.verdicts.items() if result is not None else ():
            verdicts.add_metric([verdict], count)
        yield verdicts


def create_plugin(host: PluginHost) -> ReconciliationPlugin:
    """Return the reconciliation plugin. The entry point of `duemq.broker_plugins`."""
    return ReconciliationPlugin(host)
