"""The ledger of a running broker, on both databases: recording, loss and another store's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from duemq_common.ledger.engine import parse_url
from duemq_migration.ledger.reader import MigrationLedger
from duemq_migration.ledger.records import MigrationRun
from duemq_migration.ownership.states import State
from tests.migration.bench import Bench, with_broker

TURNS_MAX = 300


@pytest.fixture(autouse=True)
def unhurried_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stop wait for the last records, also on a busy machine."""
    monkeypatch.setattr("duemq_migration.plugin.LEDGER_STOP_S", 120)


async def until_written(bench: Bench) -> None:
    """Advance the clock until the ledger is complete."""
    await bench.ledger_until(lambda ledger: not ledger["pending"] and not ledger["trouble"])


def run_of(url: str, migration: str) -> MigrationRun:
    ledger = MigrationLedger.open_existing(url)
    run = ledger.run(migration)
    ledger.close()
    return run


def wipe(url: str) -> None:
    """Empty a database, or delete a file."""
    if url.startswith("sqlite"):
        for path in Path(url.removeprefix("sqlite:///")).parent.glob("ledger.sqlite*"):
            path.unlink()
        return
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        names = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        )
        for name in [row[0] for row in names]:
            connection.execute(text(f'DROP TABLE "{name}" CASCADE'))
    engine.dispose()


def test_a_run_is_recorded_from_plan_to_rollback(url: str, tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(20, 5)
        plan = (await bench.command("plan", levels=[5], operator="anna"))["plan"]
        started = await bench.command("start", plan_id=plan["plan_id"], operator="anna")
        runs.append(started["migration"])
        await bench.until(5, "done")
        await bench.send(3, 5, "new")
        bench.clock.advance(1_000)
        assert (await bench.command("verify", levels=[5]))["right"]
        await bench.command("rollback", operator="ben")
        await bench.until(5, "rolled_back")
        await until_written(bench)

    runs: list[str] = []
    with_broker(tmp_path, steps, migrationLedgerUrl=url)
    run = run_of(url, runs[0])
    assert (run.migration.started_by, run.migration.mode) == ("anna", "live")
    assert run.migration.ended_ms is not None
    assert run.plan is not None
    assert sum(level.pending for level in run.plan.levels) == 20
    [level] = run.levels
    assert (level.state, level.moved, level.returned) == (State.ROLLED_BACK, 20, 20)
    assert [check.agrees for check in run.verifications] == [True, True]
    kinds = [event.kind for event in run.events]
    assert {"route", "state", "handover", "giveback"} == set(kinds)
    assert {event.operator for event in run.events} == {"", "anna", "ben"}


@pytest.mark.sampled
def test_a_ledger_lost_during_a_run_is_rebuilt_from_the_log(url: str, tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(60, 5)
        runs.append((await bench.command("start", levels=[5], operator="anna"))["migration"])
        await bench.until(5, "draining", step_ms=1)
        for _ in range(TURNS_MAX):
            if (await bench.level(5))["moved"]:
                break
            bench.clock.advance(10)
        await bench.command("pause")
        await until_written(bench)
        assert 0 < (await bench.level(5))["moved"] < 60
        wipe(url)
        await bench.command("resume")
        done = await bench.until(5, "done", step_ms=100)
        assert done["moved"] == 60
        for _ in range(TURNS_MAX):
            bench.clock.advance(1_000)
            await bench.command("status")
        await until_written(bench)

    runs: list[str] = []
    with_broker(tmp_path, steps, migrationLedgerUrl=url, migrationRate="2")
    run = run_of(url, runs[0])
    [level] = run.levels
    assert (level.state, level.moved, run.migration.started_by) == (State.DONE, 60, "anna")
    marks = [event.mark_offset for event in run.events if event.mark_offset is not None]
    assert (marks[0], marks) == (0, sorted(set(marks)))  # from the first on
    texts = [event.text for event in run.events if event.kind == "handover"]
    assert sum(int(text.split()[0]) for text in texts) == 60
    assert [check.agrees for check in run.verifications] == [True]


def test_a_ledger_of_another_store_is_refused(url: str, tmp_path: Path) -> None:
    async def first(bench: Bench) -> None:
        await bench.command("start", levels=[5])
        await bench.until(5, "done")
        await until_written(bench)

    async def second(bench: Bench) -> None:
        why = await bench.refused("start", levels=[5])
        assert "it belongs to store" in why
        assert "Nothing was started" in why
        status: Any = await bench.command("status")
        assert not status["levels"]
        assert "it belongs to store" in status["ledger"]["trouble"]

    clock = with_broker(tmp_path / "one", first, migrationLedgerUrl=url)
    with_broker(tmp_path / "two", second, clock, migrationLedgerUrl=url)
