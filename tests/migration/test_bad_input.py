"""Faults around a migration: each is reported, the state is kept, and it can continue."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from tests.migration.bench import LEVELS, PLUGINS, TURNS_MAX, Bench, with_broker
from tests.support.running_broker import running, small
from tests.support.wait_until import until

DAY_MS = 86_400_000


def test_a_plan_of_another_store_is_refused(tmp_path: Path) -> None:
    plans: list[Any] = []

    async def make(bench: Bench) -> None:
        plans.append((await bench.command("plan", levels=[5]))["plan"])

    async def use(bench: Bench) -> None:
        why = await bench.refused("start", plan=plans[0])
        assert "it was made for store" in why
        assert "duemq migrate plan" in why
        assert not (await bench.command("status"))["levels"]

    clock = with_broker(tmp_path / "one", make)
    with_broker(tmp_path / "two", use, clock)


def test_an_outdated_plan_is_refused(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        plan = (await bench.command("plan", levels=[5]))["plan"]["plan_id"]
        bench.clock.advance(8 * DAY_MS)
        assert "it is 8 days old" in await bench.refused("start", plan_id=plan)

    with_broker(tmp_path, steps)


def test_a_level_whose_delay_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    async def make(bench: Bench) -> None:
        plan = (await bench.command("plan", levels=[5]))["plan"]["plan_id"]
        properties = dict(bench.broker.settings.properties)
        bench.broker.plugins.reconfigure(properties | {"messageDelayLevel": "1s 5s 10s 1m 3m"})
        why = await bench.refused("start", plan_id=plan)
        assert "meant 120000 ms when it was made and means 180000 ms now" in why
        bench.broker.plugins.reconfigure(properties | {"messageDelayLevel": "1s 5s"})
        assert "no longer exists" in await bench.refused("start", plan_id=plan)
        bench.broker.plugins.reconfigure(properties)
        await bench.command("start", plan_id=plan)
        await bench.until(5, "done")

    with_broker(tmp_path, make)


def test_a_level_removed_while_it_is_drained_keeps_its_due_times(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(30, 5)
        sent_ms = bench.clock.now_ms()
        await bench.command("start", levels=[5])
        await bench.until(5, "draining", step_ms=1)
        properties = dict(bench.broker.settings.properties)
        bench.broker.plugins.reconfigure(properties | {"messageDelayLevel": "1s 5s 10s"})
        assert (await bench.level(5))["moved"] < 30
        now_ms = bench.clock.now_ms()
        await bench.send(1, 5, "clamped")  # level 3 is the highest now
        done = await bench.until(5, "done", step_ms=50)
        assert done["moved"] == 30
        bench.clock.set_ms(sent_ms + 119_999)
        for _ in range(200):
            await bench.pending()
        [clamped] = bench.delivered()
        assert clamped[0] == b"clamped0"
        assert clamped[1] >= now_ms + 10_000
        bench.clock.set_ms(sent_ms + 121_000)
        for _ in range(TURNS_MAX):
            if len(bench.delivered()) == 31:
                break
            await bench.pending()
            bench.clock.advance(5)
        assert len({body for body, _ in bench.delivered()}) == 31
        assert min(ms for body, ms in bench.delivered() if body != b"clamped0") >= sent_ms + 119_999

    with_broker(tmp_path, steps, migrationRate="40")


def test_a_level_is_migrated_once_at_a_time(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(5, 5)
        await bench.command("start", levels=[5])
        await bench.command("pause", levels=[5])
        found = await bench.level(5)
        assert "start does not apply" in await bench.refused("start", levels=[5])
        assert (await bench.level(5))["migration"] == found["migration"]
        await bench.command("start", levels=[4])  # another level may start
        await bench.until(4, "done")
        await bench.command("resume", levels=[5])
        await bench.until(5, "done")

    with_broker(tmp_path, steps)


def test_a_broker_without_timers_reports_it(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        for action in ("plan", "start", "status"):
            assert "timerWheelEnable=false" in await bench.refused(action, levels=[5])
        await bench.send(1, 5)

    with_broker(tmp_path, steps, timerWheelEnable="false")


def test_a_broker_without_the_plugins_reports_it(tmp_path: Path) -> None:
    async def main() -> None:
        settings = small(tmp_path, messageDelayLevel=LEVELS)
        async with running(settings, clock=FakeClock(), plugins=PLUGINS[:2]) as (_, client):
            response = await client.call(RequestCode.MIGRATE, body=b'{"action": "status"}')
            assert "runs without DueMQ's timer store" in str(response.remark)

    asyncio.run(main())


def test_it_waits_for_a_store_that_refuses_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(30, 5)
        await bench.command("start", levels=[5])
        await bench.command("pause", levels=[5])
        await bench.command("resume", levels=[5])
        store = bench.broker.store
        with monkeypatch.context() as full:
            full.setattr(type(store), "_writable", lambda self: "disk is full", raising=False)
            full.setattr(store, "put", _refuse)
            for _ in range(50):
                found = await bench.level(5)
                if found["blocked_by"]:
                    break
                bench.clock.advance(250)
            assert "is not writable" in found["blocked_by"]
            assert found["state"] in ("routing", "draining")
            before = await bench.pending()
            assert "disk is full" in await bench.refused("pause", levels=[5])
        done = await bench.until(5, "done", step_ms=100)
        assert done["moved"] + bench.broker.store.queue_bounds("T", 0)[1] >= 30
        assert sum(before) == 30

    with_broker(tmp_path, steps)


def _refuse(batch: Any) -> None:
    for at in range(batch.count):
        batch.rows[at]["status"] = 1
        batch.remarks[at] = "disk is full"


def test_a_clock_step_back_stops_nothing(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(20, 5)
        plan = (await bench.command("plan", levels=[5]))["plan"]["plan_id"]
        bench.clock.set_ms(bench.clock.now_ms() - 60_000)
        assert "the clock was set back" in await bench.refused("start", plan_id=plan)
        await bench.command("start", levels=[5])
        bench.clock.set_ms(bench.clock.now_ms() - 60_000)
        done = await bench.until(5, "done", step_ms=100)
        assert done["moved"] == 20

    with_broker(tmp_path, steps)


def test_unreadable_records_are_quarantined(tmp_path: Path) -> None:
    async def fill(bench: Bench) -> None:
        await bench.send(5, 5)
        places.extend(
            int(bench.broker.store.units("SCHEDULE_TOPIC_XXXX", 4, at, 1)[0]["phys_offset"])
            for at in range(5)
        )

    async def migrate(bench: Bench) -> None:
        plan = (await bench.command("plan", levels=[5]))["plan"]
        kinds = [item["kind"] for item in plan["obstacles"]]
        assert kinds == ["unreadable"]
        await bench.command("start", levels=[5])
        await bench.until(5, "done")
        bench.clock.advance(130_000)
        for _ in range(TURNS_MAX):
            if len(bench.delivered()) == 4:
                break
            await bench.pending()
            bench.clock.advance(10)
        assert sorted(body for body, _ in bench.delivered()) == [b"m0", b"m1", b"m3", b"m4"]

    places: list[int] = []
    clock = with_broker(tmp_path, fill)
    log_file = tmp_path / "store" / "commitlog" / f"{0:020d}"
    with log_file.open("r+b") as file:  # the third record has no topic any more
        file.seek(places[2])
        record = bytearray(file.read(4))
        size = int.from_bytes(record, "big")
        file.seek(places[2])
        data = bytearray(file.read(size))
        at = data.index(b"REAL_TOPIC")
        data[at : at + 10] = b"REAL_TOPIX"
        file.seek(places[2])
        file.write(data)
    with_broker(tmp_path, migrate, clock)


def test_a_ledger_of_another_store_stops_a_start_and_nothing_else(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.sqlite'}"

    async def first(bench: Bench) -> None:
        await bench.command("start", levels=[5])
        await bench.until(5, "done")

    async def second(bench: Bench) -> None:
        why = await bench.refused("start", levels=[5])
        assert "it belongs to store" in why
        assert "this is store" in why
        status = await bench.command("status")
        assert not status["levels"]
        assert "it belongs to store" in status["ledger"]["trouble"]
        await bench.send(1, 5)

    clock = with_broker(tmp_path / "one", first, migrationLedgerUrl=url)
    with_broker(tmp_path / "two", second, clock, migrationLedgerUrl=url)


def test_a_migration_continues_without_ledger_and_projection(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ledger = store / "duemq.ledger.sqlite"

    async def first(bench: Bench) -> None:
        await bench.send(20, 5)
        await bench.command("start", levels=[5], operator="anna")
        await bench.until(5, "done")

    async def second(bench: Bench) -> None:
        found = await bench.level(5)
        assert (found["state"], found["moved"], found["routed"]) == ("done", 20, True)
        assert (await bench.command("verify"))["right"]
        await bench.command("rollback", levels=[5])
        await bench.until(5, "rolled_back", step_ms=100)
        assert await bench.pending() == (20, 0)
        await asyncio.to_thread(until, ledger.exists, seconds=120, what="ledger of the new process")

    clock = with_broker(tmp_path, first)
    for path in [*store.glob("duemq.ledger.sqlite*"), *store.glob("config/duemq.migration*")]:
        path.unlink()
    with_broker(tmp_path, second, clock)
    assert json.loads((store / "config/duemq.store.json").read_text())["storeId"]


def test_a_store_without_its_id_serves_but_starts_no_migration(tmp_path: Path) -> None:
    async def first(bench: Bench) -> None:
        await bench.command("plan", levels=[5])

    async def second(bench: Bench) -> None:
        await bench.send(1, 5)
        assert await bench.pending() == (1, 0)
        assert "duemq.store.json" in await bench.refused("start", levels=[5])
        assert "has no name" in (await bench.command("status"))["ledger"]["trouble"]

    clock = with_broker(tmp_path, first)
    for path in (tmp_path / "store" / "config").glob("duemq.store.json*"):
        path.write_text("{")
    with_broker(tmp_path, second, clock)
