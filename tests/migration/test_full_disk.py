"""A disk that fills up during a migration: the cause is reported, and it continues with room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.migration.bench import Bench, with_broker
from tests.support.failing_disk import Disk

COUNT = 60
WAITS = {
    "timerlog": "the timer log cannot be written: [Errno 28] No space left on device",
    "commitlog": "the store is not writable: ",
}
# A rollback writes nothing into the timer log.
CASES = [("timerlog", "draining"), ("commitlog", "draining"), ("commitlog", "rolling_back")]


async def until_blocked(bench: Bench, state: str) -> dict[str, Any]:
    """Advance the clock until level 5 is blocked."""
    for _ in range(200):
        found = await bench.level(5)
        if found["blocked_by"]:
            return found
        bench.clock.advance(100)
    raise AssertionError(f"it went on: {found}")


async def deliver_all(bench: Bench) -> list[bytes]:
    """Advance the clock beyond all due times; return the delivered messages."""
    bench.clock.advance(130_000)
    for _ in range(2_000):
        if len(bench.delivered()) >= COUNT:
            break
        await bench.pending()
        bench.clock.advance(5)
    return sorted(body for body, _ in bench.delivered())


@pytest.mark.sampled
@pytest.mark.parametrize(("full", "state"), CASES)
def test_it_waits_for_room_on_the_disk(
    full: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, tmp_path / "store")

    async def steps(bench: Bench) -> None:
        await bench.send(COUNT, 5)
        await bench.command("start", levels=[5])
        if state == "rolling_back":
            await bench.until(5, "done", step_ms=100)
            await bench.command("rollback")
        await bench.until(5, state, step_ms=1)
        disk.full = (full,)
        found = await until_blocked(bench, state)
        assert WAITS[full] in found["blocked_by"]
        assert (found["state"], found["paused"]) == (state, False)
        bench.clock.advance(1_000)
        assert (await bench.level(5))["state"] == state
        disk.full = ()
        bench.broker.store.check_disk()  # normally a job every ten seconds
        end = "done" if state == "draining" else "rolled_back"
        found = await bench.until(5, end, step_ms=100)
        assert (found["moved"], found["blocked_by"]) == (COUNT, "")
        response = await bench.command("verify", levels=[5])
        assert response["right"], response
        assert sum(await bench.pending()) == COUNT
        assert await deliver_all(bench) == sorted(b"m%d" % n for n in range(COUNT))

    with_broker(tmp_path, steps, migrationRate="40")


def test_a_level_is_not_drained_before_the_timers_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The record of the only step is in the log, but its units have no room."""
    disk = Disk(monkeypatch, tmp_path / "store")

    async def steps(bench: Bench) -> None:
        await bench.send(COUNT, 5)
        disk.full = ("timerlog",)
        await bench.command("start", levels=[5])
        await until_blocked(bench, "draining")
        for _ in range(20):
            bench.clock.advance(200)
            found = await bench.level(5)
            assert (found["state"], found["moved"]) == ("draining", COUNT)
            assert WAITS["timerlog"] in found["blocked_by"]
        assert caplog.text.count("timers are not enqueued") == 1  # despite several attempts
        disk.full = ()
        await bench.until(5, "done", step_ms=100)
        assert await bench.pending() == (0, COUNT)
        assert await deliver_all(bench) == sorted(b"m%d" % n for n in range(COUNT))

    with_broker(tmp_path, steps, mappedFileSizeConsumeQueue="4000")  # one step takes all messages


def test_an_end_while_the_disk_is_full_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start enqueues transferred messages that had no room in the timer log."""
    disk = Disk(monkeypatch, tmp_path / "store")

    async def first(bench: Bench) -> None:
        await bench.send(COUNT, 5)
        await bench.command("start", levels=[5])
        await bench.until(5, "draining", step_ms=1)
        disk.full = ("timerlog",)
        await until_blocked(bench, "draining")
        assert not (await bench.command("pause", cause="no room"))["remarks"]

    async def second(bench: Bench) -> None:
        found = await bench.level(5)
        assert (found["state"], found["cause"]) == ("draining", "no room")
        assert sum(await bench.pending()) == COUNT
        await bench.command("resume")
        await bench.until(5, "done", step_ms=100)
        assert await deliver_all(bench) == sorted(b"m%d" % n for n in range(COUNT))

    clock = with_broker(tmp_path, first, migrationRate="40")
    disk.full = ()
    with_broker(tmp_path, second, clock)


def test_a_ledger_without_room_is_reported_and_completed_later(
    tmp_path: Path,
) -> None:
    pages_max = [20]

    def limit(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages_max[0]}").close()

    event.listen(Engine, "connect", limit)

    async def steps(bench: Bench) -> None:
        await bench.send(COUNT, 5)
        await bench.command("start", levels=[5])
        done = await bench.until(5, "done", step_ms=100)
        assert done["moved"] == COUNT
        ledger = await bench.ledger_until(lambda ledger: ledger["trouble"], step_ms=100)
        assert "full" in ledger["trouble"]
        pages_max[0] = 10_000
        await bench.ledger_until(
            lambda ledger: not ledger["trouble"] and not ledger["pending"], step_ms=1_000
        )

    try:
        with_broker(tmp_path, steps)
    finally:
        event.remove(Engine, "connect", limit)
