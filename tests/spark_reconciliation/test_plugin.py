"""Scheduled audits: their times, one at a time, and their metrics."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from duemq.broker.broker import Broker
from duemq_common.clock import FakeClock
from duemq_common.errors import ConfigError, RequestError
from duemq_common.ledger.engine import default_url
from duemq_common.request import Request
from spark_reconciliation.config import ReconcileConfig
from spark_reconciliation.jobs import child_process
from spark_reconciliation.jobs.audit_ledger import AuditLedger
from spark_reconciliation.jobs.child_process import Result
from spark_reconciliation.plugin import JOB, ReconciliationPlugin
from tests.support.running_broker import connected, small

NIGHTLY = {"reconcileCron": "30 3 * * * Europe/Berlin"}


class Scheduler:
    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}

    def add_job(self, function: Any, trigger: Any, *, id: str, **settings: Any) -> None:
        self.jobs[id] = (function, trigger, settings)

    def remove_job(self, id: str) -> None:
        del self.jobs[id]


class Host:
    def __init__(self, **properties: str) -> None:
        self.clock, self.properties = FakeClock(), properties
        self.store_root, self.scheduler = "/store", Scheduler()
        self.metrics = CollectorRegistry()


class Runs:
    """Audit runs that end on a signal of the test."""

    def __init__(self, result: Result | None = None) -> None:
        self.commands: list[Any] = []
        self.may_end = asyncio.Event()
        self.result = result or Result(exit_code=0, audit_id="a", verdicts={"ok": 5})

    async def __call__(self, command: Any, *, seconds_max: float) -> Result:
        self.commands.append((command, seconds_max))
        await self.may_end.wait()
        return self.result


@asynccontextmanager
async def running(host: Host, runs: Runs) -> AsyncIterator[ReconciliationPlugin]:
    plugin = ReconciliationPlugin(host, runs)
    async with plugin.running(None):
        yield plugin


@pytest.mark.parametrize(
    "text", ["soon", "* * * *", "61 * * * *", "0 3 * * * Moon/Side", "1 2 3 4 5 6 7"]
)
def test_illegal_times_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"reconcileCron=.*not a crontab time"):
        ReconcileConfig(cron=text)


def test_nothing_is_scheduled_unless_requested() -> None:
    async def run() -> None:
        host = Host()
        async with running(host, Runs()) as plugin:
            assert host.scheduler.jobs == {}
            plugin.reconfigure(NIGHTLY)
            _, trigger, settings = host.scheduler.jobs[JOB]
            assert str(trigger.timezone) == "Europe/Berlin"
            assert (settings["max_instances"], settings["coalesce"]) == (1, True)
            with pytest.raises(ConfigError):
                plugin.reconfigure({"reconcileCron": "never"})
            assert host.scheduler.jobs[JOB][1] is trigger
        assert host.scheduler.jobs == {}

    asyncio.run(run())


def test_only_one_audit_runs_at_a_time() -> None:
    async def run() -> None:
        host, runs = Host(**NIGHTLY, messageDelayLevel="1s 1h", reconcileMinutesMax="2"), Runs()
        async with running(host, runs) as plugin:
            first = asyncio.create_task(plugin.audit())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert plugin.is_running
            await plugin.audit()
            assert len(runs.commands) == 1
            runs.may_end.set()
            await first
            assert not plugin.is_running
            await plugin.audit()
        ((words, seconds), _) = runs.commands
        assert seconds == 120
        assert words[words.index("--levels") + 1] == "1s 1h"
        assert (plugin.last.runs, plugin.last.skipped) == (2, 1)

    asyncio.run(run())


def test_a_running_audit_ends_with_the_broker() -> None:
    async def run() -> None:
        runs = Runs()
        async with running(Host(**NIGHTLY), runs) as plugin:
            waiting = asyncio.create_task(plugin.audit())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await waiting
        assert not plugin.is_running
        assert plugin.last.runs == 0

    asyncio.run(run())


def test_the_last_audit_is_shown_in_metrics_and_status() -> None:
    async def run() -> None:
        result = Result(exit_code=1, audit_id="a", verdicts={"ok": 5, "lost": 2})
        host, runs = Host(**NIGHTLY), Runs(result)
        runs.may_end.set()
        async with running(host, runs) as plugin:
            assert b"\nduemq_audit_exit_code " not in generate_latest(host.metrics)
            await plugin.audit()
            page = generate_latest(host.metrics).decode()
            view = plugin.admin_views()["status"]()
        for line in (
            "duemq_audit_exit_code 1.0",
            'duemq_audit_verdicts{verdict="lost"} 2.0',
            "duemq_audit_runs_total 1.0",
            "duemq_audit_running 0.0",
            f"duemq_audit_last_seconds {host.clock.now_ms() / 1_000:g}"[:28],
        ):
            assert line in page
        assert view["last"]["verdicts"] == {"ok": 5, "lost": 2}
        assert (view["runs"], view["running"]) == (1, False)

    asyncio.run(run())


async def eager(command: list[str], *, seconds_max: float) -> Result:
    """Run the command without the lowest priority, because other tests run meanwhile."""
    words = command[command.index(sys.executable) :]
    return await child_process.run([w for w in words if w != "--idle"], seconds_max=seconds_max)


@pytest.mark.extended
@pytest.mark.spark
def test_a_broker_audits_its_own_store(tmp_path: Path) -> None:
    """From the broker's plugin through process and Spark to the ledger."""
    more = NIGHTLY | {"reconcileMemory": "512m", "messageDelayLevel": "1s 1h"}

    async def run() -> dict[str, Any]:
        async with Broker(small(tmp_path, **more)) as broker:
            async with connected(f"127.0.0.1:{broker.port}") as client:
                for number in range(5):
                    sent = await client.send("T", b"x", DELAY="2", UNIQ_KEY=f"ID{number}")
                    assert sent.code == 0
            plugin: Any = broker.plugins.plugins["reconciliation"]
            plugin.run_command = eager
            await plugin.audit()
            view: dict[str, Any] = plugin.admin_views()["status"]()
            return view

    last = asyncio.run(run())["last"]
    assert (last["exit_code"], last["verdicts"]) == (0, {"pending": 5}), last["why"]
    [record] = AuditLedger.open_existing(default_url(tmp_path / "store")).audits()
    assert (record.audit_id, record.made_by) == (last["audit_id"], "cron")
    assert (record.exit_code, record.verdicts) == (0, {"pending": 5})


def test_a_requested_audit_runs_alone() -> None:
    async def work() -> None:
        runs = Runs()
        async with running(Host(), runs) as plugin:
            assert (await plugin.start(Request(9_020, {}))).code == 0
            with pytest.raises(RequestError, match="an audit runs"):
                await plugin.start(Request(9_020, {}))
            await plugin.audit()  # the schedule skips its own
            assert plugin.last.skipped == 1
            runs.may_end.set()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not plugin.is_running
            assert (plugin.last.runs, len(runs.commands)) == (1, 1)
            runs.may_end.clear()
            await plugin.start(Request(9_020, {}))  # the end of the broker ends it

    asyncio.run(work())
