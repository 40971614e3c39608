"""The ledger writer: no failure of the ledger blocks the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from duemq_common.clock import FakeClock
from duemq_common.ledger.engine import default_url, make_engine, parse_url
from duemq_common.ledger.errors import LedgerError, LedgerNewer, LedgerOfAnotherStore
from duemq_common.ledger.ledger import Ledger
from duemq_common.ledger.location import LedgerLocation
from duemq_common.ledger.records import LedgerRecord, LogSnapshot
from duemq_common.ledger.writer import LINGER_MS, RETRY_MS, Health, LedgerWriter
from duemq_migration.ledger.reader import MigrationLedger
from duemq_migration.ledger.records import LedgerSnapshot
from duemq_migration.plans.plan import Plan
from tests.duemq_common.ledger import records_of as some
from tests.duemq_common.ledger.conftest import NOW_MS, Opener, open_ledger
from tests.duemq_common.ledger.postgres import Server

RUN_ID = some.RUN_ID
REACHED_S_MAX = 120  # the ledger is written by a thread, perhaps on a busy machine


class Rig:
    """A writer with a manual clock, and a log from which records are read again."""

    def __init__(self, url: str, **limits: Any) -> None:
        self.clock = FakeClock(NOW_MS)
        self.url, self.snapshot = url, some.snapshot(0)
        self.location = LedgerLocation(url=url, store_id="s-1", store_path="/stores/one", busy_ms=1)
        self.writer = LedgerWriter(
            self.location, clock=self.clock, snapshot=lambda: self.snapshot, **limits
        )

    def step(self, count: int = 1) -> None:
        """Take steps, each of which writes a mark to the log and records it."""
        for _ in range(count):
            self.snapshot = some.snapshot(self.snapshot.next_record + 1)
            self.writer.write(self.snapshot.events[-1], *self.snapshot.levels)

    def open(self) -> MigrationLedger:
        return open_ledger(self.url, store_id="s-1")

    @property
    def health(self) -> Health:
        return self.writer.health

    def recorded(self) -> LedgerSnapshot:
        """Return the marks in the ledger."""
        run = self.open().run(RUN_ID)
        return LedgerSnapshot(
            next_record=len(run.events),
            migrations=[run.migration],
            levels=run.levels,
            events=run.events,
        )

    async def until(self, reached: Callable[[], bool]) -> None:
        """Advance the clock until a condition holds."""
        try:
            async with asyncio.timeout(REACHED_S_MAX):
                while not reached():
                    self.clock.advance(LINGER_MS)
                    await asyncio.sleep(0.001)
        except TimeoutError as error:
            raise AssertionError(f"it never happened: {self.health}") from error

    async def written(self) -> None:
        await self.until(lambda: not self.health.pending and not self.health.trouble)


@asynccontextmanager
async def running(writer: LedgerWriter) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.run())
    try:
        await writer.opened()
        yield
    finally:
        writer.stop(REACHED_S_MAX)
        await task


def play(rig: Rig, steps: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with running(rig.writer):
            await steps(rig)

    asyncio.run(whole())


def test_recorded_rows_are_written(url: str) -> None:
    async def steps(rig: Rig) -> None:
        rig.step(3)
        await rig.written()
        assert rig.recorded() == rig.snapshot

    play(Rig(url), steps)


def test_closing_writes_the_queue(url: str) -> None:
    async def steps(rig: Rig) -> None:
        rig.step(3)
        assert rig.health.pending == 4  # the level counts once

    rig = Rig(url)
    play(rig, steps)
    assert rig.recorded() == rig.snapshot


def test_records_are_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[LedgerRecord]] = []
    write = Ledger.write

    def counted(ledger: Ledger, records: list[LedgerRecord]) -> None:
        batches.append(records)
        write(ledger, records)

    monkeypatch.setattr(Ledger, "write", counted)

    async def steps(rig: Rig) -> None:
        rig.snapshot = some.snapshot(2_499)
        rig.writer.write(*rig.snapshot.records(), some.sample(1))
        rig.step()
        await rig.written()
        assert [len(batch) for batch in batches] == [1_000, 1_000, 503]
        assert rig.recorded() == rig.snapshot

    play(Rig(default_url(tmp_path)), steps)


def test_a_deleted_ledger_is_created_again(tmp_path: Path) -> None:
    async def steps(rig: Rig) -> None:
        rig.step(5)
        await rig.written()
        (tmp_path / "duemq.ledger.sqlite").unlink()
        rig.step()
        await rig.until(lambda: bool(rig.health.trouble))
        assert "removed or replaced" in rig.health.trouble
        rig.step()
        await rig.written()
        assert rig.recorded() == rig.snapshot

    play(Rig(default_url(tmp_path)), steps)


@pytest.mark.sampled
@pytest.mark.parametrize("from_start", [True, False], ids=["from the start", "on the way"])
def test_a_locked_ledger_is_completed_later(from_start: bool, url: str, opener: Opener) -> None:
    opener()

    @asynccontextmanager
    async def locked() -> AsyncIterator[None]:
        with make_engine(parse_url(url)).begin() as other:
            if other.dialect.name == "postgresql":
                other.execute(text("LOCK TABLE duemq_levels IN ACCESS EXCLUSIVE MODE"))
            yield

    async def steps(rig: Rig) -> None:
        async with locked():
            rig.step(3)
            await rig.until(lambda: "lock" in rig.health.trouble)
            since = rig.health.since_ms
            rig.step(3)
            await rig.until(lambda: rig.clock.now_ms() > since + 3 * RETRY_MS)
            assert rig.health.since_ms == since
            assert rig.health.pending == 7
        await rig.written()
        assert rig.recorded() == rig.snapshot

    async def whole() -> None:
        rig = Rig(url)
        if not from_start:
            async with running(rig.writer):
                await steps(rig)
            return
        async with locked(), running(rig.writer):
            assert "lock" in rig.health.trouble
            rig.step(3)
        assert rig.health.pending  # given up; the next start completes the ledger
        again = Rig(url)
        again.snapshot = rig.snapshot
        async with running(again.writer):
            assert again.recorded() == rig.snapshot

    asyncio.run(whole())


def test_a_server_that_is_down_for_some_time(postgres: Server) -> None:
    async def steps(rig: Rig) -> None:
        rig.step(2)
        await rig.written()
        postgres.stop()
        try:
            rig.step(2)
            await rig.until(lambda: bool(rig.health.trouble))
            rig.step(2)
        finally:
            postgres.start()
        await rig.written()
        assert rig.recorded() == rig.snapshot

    play(Rig(postgres.new_database()), steps)


def hang(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the ledger hang; return (event that ends it, event set while it hangs)."""
    free, inside, write = threading.Event(), threading.Event(), Ledger.write

    def hanging(ledger: Ledger, records: list[LedgerRecord]) -> None:
        inside.set()
        assert free.wait(REACHED_S_MAX)
        write(ledger, records)

    monkeypatch.setattr(Ledger, "write", hanging)
    return free, inside


def test_the_event_loop_continues_while_the_ledger_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, inside = hang(monkeypatch)

    async def steps(rig: Rig) -> None:
        rig.step()
        await rig.until(inside.is_set)
        rig.step(10)  # recorded while the thread hangs, without waiting
        assert rig.health.pending == 12
        free.set()
        await rig.written()
        assert rig.recorded() == rig.snapshot

    play(Rig(default_url(tmp_path)), steps)


def test_closing_during_a_write_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, inside = hang(monkeypatch)

    async def leave(rig: Rig) -> None:
        async with asyncio.timeout(REACHED_S_MAX):
            async with running(rig.writer):
                rig.step()
                await rig.until(inside.is_set)
                asyncio.get_running_loop().call_later(0.01, free.set)

    rig = Rig(default_url(tmp_path))
    asyncio.run(leave(rig))
    assert rig.recorded() == rig.snapshot


@pytest.mark.finding("3D6")
@pytest.mark.parametrize("call", ["open", "write"])
def test_a_stop_does_not_wait_for_a_ledger_that_hangs(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, inside = threading.Event(), threading.Event()

    def hanging(*arguments: object, **options: object) -> None:
        inside.set()
        free.wait(REACHED_S_MAX)

    monkeypatch.setattr(Ledger, call, hanging)
    rig = Rig(default_url(tmp_path))

    async def leave() -> None:
        work = asyncio.create_task(rig.writer.run())
        rig.step()
        await rig.until(inside.is_set)
        rig.writer.stop(0.01)
        async with asyncio.timeout(REACHED_S_MAX / 2):
            await work
        assert not free.is_set()
        assert rig.health.pending
        assert "does not wait" in rig.health.trouble

    try:
        asyncio.run(leave())
    finally:
        free.set()


END_WITH_A_HANGING_LEDGER = """
import asyncio, sys, threading
from duemq_common.clock import SystemClock
from duemq_common.ledger.ledger import Ledger
from duemq_common.ledger.location import LedgerLocation
from duemq_common.ledger.writer import LedgerWriter
from duemq_migration.ledger.records import LedgerSnapshot, MigrationRecord

inside = threading.Event()

def hang(*arguments, **options):
    inside.set()
    threading.Event().wait()

async def main():
    location = LedgerLocation(url=sys.argv[1], store_id="s-1", store_path="/")
    snapshot = LedgerSnapshot(next_record=0)
    writer = LedgerWriter(location, clock=SystemClock(), snapshot=lambda: snapshot)
    work = asyncio.create_task(writer.run())
    writer.write(MigrationRecord(migration_id="m", started_ms=1))
    await asyncio.to_thread(inside.wait)
    writer.stop(0.01)
    await work

Ledger.open = hang
asyncio.run(main())
"""


def test_a_process_ends_while_its_ledger_hangs(tmp_path: Path) -> None:
    words = [sys.executable, "-c", END_WITH_A_HANGING_LEDGER, default_url(tmp_path)]
    subprocess.run(words, check=True, timeout=REACHED_S_MAX)


def test_a_ledger_that_does_not_respond_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq_common.ledger.writer.RESPONSE_S", 0.01)
    free, inside = hang(monkeypatch)

    async def steps(rig: Rig) -> None:
        rig.step()
        await rig.until(inside.is_set)
        await rig.until(lambda: "has not responded" in rig.health.trouble)
        monkeypatch.setattr("duemq_common.ledger.writer.RESPONSE_S", REACHED_S_MAX)
        free.set()
        await rig.written()
        assert rig.recorded() == rig.snapshot

    play(Rig(default_url(tmp_path)), steps)


@pytest.mark.parametrize(
    ("error", "text"),
    [(ZeroDivisionError("a bug"), "a bug"), (MemoryError("no memory"), "no memory")],
)
def test_a_failure_of_a_call_is_reported_and_the_writer_continues(
    error: Exception, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild, failures = Ledger.rebuild, [error]

    def failing(ledger: Ledger, snapshot: LogSnapshot) -> None:
        if failures:
            raise failures.pop()
        rebuild(ledger, snapshot)

    monkeypatch.setattr(Ledger, "rebuild", failing)

    async def steps(rig: Rig) -> None:
        assert text in rig.health.trouble
        assert "Please report this" in rig.health.trouble
        rig.step()
        await rig.written()
        assert rig.recorded() == rig.snapshot

    play(Rig(default_url(tmp_path)), steps)


def test_without_threads_the_writer_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def steps(rig: Rig) -> None:
        assert "no thread can be started" in rig.health.trouble
        monkeypatch.undo()
        rig.step()
        await rig.written()
        assert rig.recorded() == rig.snapshot

    monkeypatch.setattr("duemq_common.ledger.writer.Thread.start", refused)
    play(Rig(default_url(tmp_path)), steps)


def test_records_without_room_are_read_again_from_the_log(tmp_path: Path) -> None:
    async def steps(rig: Rig) -> None:
        rig.writer.write(*(some.sample(n) for n in range(4)))
        rig.writer.write(Plan(plan_id="p", store_id="s-1", made_ms=1, made_by=""))
        rig.step(20)
        assert rig.health.pending == 8
        assert rig.health.dropped == 4 + 1 + 20 + 1 - 8
        await rig.written()
        assert rig.recorded() == rig.snapshot
        assert rig.open().run(RUN_ID).samples == []

    play(Rig(default_url(tmp_path), pending_max=8), steps)


def test_samples_are_dropped_first(tmp_path: Path) -> None:
    async def steps(rig: Rig) -> None:
        plan = Plan(plan_id="p", store_id="s-1", made_ms=1, made_by="")
        rig.writer.write(plan, some.sample(1), some.sample(2))
        rig.step()
        assert rig.health.dropped == 1
        await rig.written()
        assert rig.open().plans() == [plan]
        assert [sample.at_ms for sample in rig.open().run(RUN_ID).samples] == [2]

    play(Rig(default_url(tmp_path), pending_max=4), steps)


def test_a_refused_record_does_not_stop_the_others(url: str) -> None:
    async def steps(rig: Rig) -> None:
        rig.writer.write(some.sample(1, delivered=1 << 70))
        await rig.written()
        assert rig.health.dropped == 1
        rig.step()
        await rig.written()
        assert rig.recorded() == rig.snapshot

    play(Rig(url), steps)


def test_another_stores_ledger_stops_the_start(url: str) -> None:
    open_ledger(url, store_id="s-2", store_path="/stores/two")
    with pytest.raises(LedgerError, match="/stores/two") as refused:
        play(Rig(url), nothing)
    assert isinstance(refused.value.__cause__, LedgerOfAnotherStore)


def test_a_newer_ledger_stops_the_start(url: str, opener: Opener) -> None:
    opener()
    with make_engine(parse_url(url)).begin() as connection:
        connection.execute(text("UPDATE duemq_ledger_version SET version_num = '9999'"))
    with pytest.raises(LedgerError) as refused:
        play(Rig(url), nothing)
    assert isinstance(refused.value.__cause__, LedgerNewer)


def test_another_stores_ledger_that_appears_later_is_unchanged(tmp_path: Path) -> None:
    def opened(path: Path) -> MigrationLedger:
        return open_ledger(f"sqlite:///{path}", store_id="s-2", store_path="/two")

    async def steps(rig: Rig) -> None:
        path, other = tmp_path / "duemq.ledger.sqlite", tmp_path / "other"
        opened(other)
        path.write_bytes(other.read_bytes())  # the same file with another content
        rig.step()
        await rig.until(lambda: "(/two)" in rig.health.trouble)
        assert opened(path).migrations() == []

    play(Rig(default_url(tmp_path)), steps)


def test_the_newest_record_of_a_key_is_written_last(tmp_path: Path) -> None:
    async def steps(rig: Rig) -> None:
        record = some.level(moved=1)
        for moved in range(2, 50):
            rig.writer.write(replace(record, moved=moved), some.sample(moved))
        await rig.written()
        assert rig.open().run(RUN_ID).levels[0].moved == 49

    play(Rig(default_url(tmp_path)), steps)


def test_merging_unwritten_records_keeps_fields_that_marks_lack(
    tmp_path: Path,
) -> None:
    async def steps(rig: Rig) -> None:
        recorded = some.migration()
        assert (recorded.plan_id, recorded.started_by) != ("", "")
        rig.writer.write(recorded, some.level(routed=7))
        rig.writer.write(replace(recorded, plan_id="", started_by=""), some.level(routed=0))
        await rig.written()
        run = rig.open().run(RUN_ID)
        assert (run.migration.plan_id, run.migration.started_by) == (
            recorded.plan_id,
            recorded.started_by,
        )
        assert run.levels[0].routed == 7

    play(Rig(default_url(tmp_path)), steps)


async def nothing(rig: Rig) -> None:
    """Do nothing."""
