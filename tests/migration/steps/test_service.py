"""Migrations in a running broker, by request 9015."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery import ownership
from delayed_delivery.ownership import Route, StateRecord
from duemq_common.codes import RequestCode
from duemq_migration.ownership.owners import NoOwners
from duemq_migration.steps.service import AGAIN_MS
from duemq_migration.steps.throttle import BATCH_BUSY, PAUSE_FIRST_MS, PAUSE_MS_MAX
from tests.migration.bench import TURNS_MAX, Bench, with_broker
from tests.migration.lateness import delivered
from timer_store.progress import SettledTimers


def test_plan_start_done_rollback(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(20, 5)
        await bench.send(5, 4, "other")
        sent_ms = bench.clock.now_ms()
        plan = (await bench.command("plan", levels=[5], operator="anna"))["plan"]
        assert [(item["level"], item["pending"]) for item in plan["levels"]] == [(5, 20)]
        assert await bench.pending() == (25, 0)
        assert (await bench.command("start", plan_id=plan["plan_id"], dry_run=True))["levels"] == [
            5
        ]
        assert (await bench.command("status"))["levels"] == []
        started = await bench.command("start", plan_id=plan["plan_id"], operator="anna")
        done = await bench.until(5, "done")
        assert (done["migration"], done["moved"]) == (started["migration"], 20)
        assert await bench.pending() == (5, 20)
        await bench.send(3, 5, "new")
        assert await bench.pending() == (5, 23)
        assert (await bench.command("verify"))["right"]
        await bench.command("rollback", operator="anna")
        back = await bench.until(5, "rolled_back")
        assert back["returned"] == 20
        assert await bench.pending() == (28, 0)
        await bench.send(1, 5, "late")
        assert await bench.pending() == (29, 0)
        bench.clock.advance(125_000)
        for _ in range(TURNS_MAX):
            if len(bench.delivered()) == 29:
                break
            await bench.pending()
        bodies = [body for body, _ in bench.delivered()]
        assert len(bodies) == len(set(bodies)) == 29
        assert min(ms for body, ms in bench.delivered() if body == b"m0") >= sent_ms + 120_000

    with_broker(tmp_path, steps)


def test_a_restart_continues_the_migration(tmp_path: Path) -> None:
    async def first(bench: Bench) -> None:
        await bench.send(10, 5)
        await bench.command("start", levels=[5], operator="anna")
        await bench.command("pause", levels=[5], cause="lunch", operator="anna")

    async def second(bench: Bench) -> None:
        found = await bench.level(5)
        assert (found["paused"], found["cause"], found["routed"]) == (True, "lunch", True)
        await bench.send(1, 5, "new")
        pending = await bench.pending()
        await bench.command("resume", operator="anna")
        found = await bench.until(5, "done")
        assert found["cause"] == ""
        assert await bench.pending() == (0, 11)
        assert sum(pending) == 11

    clock = with_broker(tmp_path, first)
    with_broker(tmp_path, second, clock)


def test_a_start_command_interrupted_between_its_records_continues(tmp_path: Path) -> None:
    async def first(bench: Bench) -> None:
        await bench.send(10, 5)
        end = bench.broker.store.queue_bounds("SCHEDULE_TOPIC_XXXX", 4)[1]
        record = Route(migration="run-1", level=5, on=True, fence=end)
        ownership.append(bench.broker.store, record, bench.clock.now_ms())

    async def second(bench: Bench) -> None:
        found = await bench.until(5, "done")
        assert (found["migration"], found["operator"], found["moved"]) == ("run-1", "", 10)
        reported = [entry.record for entry in ownership.read(bench.broker.store)]
        assert reported[1] == StateRecord(
            migration="run-1", level=5, source="planned", target="routing", operator="recovery"
        )
        await bench.send(1, 5, "new")
        assert await bench.pending() == (0, 11)

    clock = with_broker(tmp_path, first)
    with_broker(tmp_path, second, clock)


def test_a_start_command_with_half_of_its_records_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(10, 5)
        store, taken = bench.broker.store, []

        def put(batch: Any) -> None:
            taken.append(batch)
            real(batch) if len(taken) == 1 else batch.refuse(0, 14, "disk is full")

        real = store.put
        with monkeypatch.context() as full:
            full.setattr(store, "put", put)
            assert "disk is full" in await bench.refused("start", levels=[5])
        assert len(taken) > 1
        for _ in range(20):  # until there is room and the service retries
            bench.clock.advance(1_000)
            if (await bench.command("status"))["levels"]:
                break
        found = await bench.until(5, "done", step_ms=200)
        assert found["moved"] == 10

    with_broker(tmp_path, steps)


def test_rules_give_a_topic_another_delay(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.command("start", levels=[5], rules={"T": 1_000})
        await bench.until(5, "done")
        sent_ms = bench.clock.now_ms()
        await bench.send(1, 5)
        bench.clock.advance(1_000)
        for _ in range(TURNS_MAX):
            if bench.delivered():
                break
            await bench.pending()
        assert bench.delivered() == [(b"m0", sent_ms + 1_000)]

    with_broker(tmp_path, steps)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ({"action": "plan", "levels": [7]}, "no level 7 here; there are: 1, 2, 3, 4, 5"),
        ({"action": "start", "levels": [0]}, "no level 0 here"),
        ({"action": "start", "plan_id": "plan-x"}, "has no such plan"),
        ({"action": "start", "plan_id": "../../etc/passwd"}, "has no such plan"),
        ({"action": "pause", "levels": [3]}, "no level 3 here; there are: none"),
        ({"action": "rollback", "levels": [3]}, "no level 3 here"),
        ({"action": "fly"}, "must be one of plan, start"),
        ({"action": "start", "levels": [3], "rules": {"T": -1}}, "must be 0 to"),
        ({"action": "start", "speed": 3}, "is not the JSON of a migration request"),
    ],
)
def test_refused_requests(command: dict[str, Any], why: str, tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        assert why in await bench.refused(**command)
        assert (await bench.command("status"))["levels"] == []

    with_broker(tmp_path, steps)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
def test_a_level_has_priority_over_a_time(name: str, tmp_path: Path) -> None:
    async def send(bench: Bench, body: bytes) -> None:
        response = await bench.client.send("T", body, **{"DELAY": "5", name: "7"})
        assert response.code == 0, response.remark

    async def steps(bench: Bench) -> None:
        sent_ms = bench.clock.now_ms()
        await send(bench, b"before")
        await bench.command("start", levels=[5])
        await bench.until(5, "done", step_ms=1)
        routed_ms = bench.clock.now_ms()
        await send(bench, b"routed")
        assert await bench.pending() == (0, 2)
        bench.clock.set_ms(sent_ms + 119_999)
        for _ in range(100):
            await bench.pending()
        assert bench.delivered() == []
        bench.clock.set_ms(routed_ms + 120_000)
        for _ in range(TURNS_MAX):
            if len(bench.delivered()) == 2:
                break
            await bench.pending()
        assert sorted(body for body, _ in bench.delivered()) == [b"before", b"routed"]

    with_broker(tmp_path, steps)


def test_the_rate_is_kept_and_changes_while_it_runs(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(60, 5)
        await bench.command("start", levels=[5])
        await bench.until(5, "draining", step_ms=1)
        start_ms = bench.clock.now_ms()
        while (await bench.level(5))["moved"] < 30:
            bench.clock.advance(50)
        assert bench.clock.now_ms() - start_ms >= 2_000  # ten per second, after a first few at once
        properties = dict(bench.broker.settings.properties) | {"migrationRate": "0"}
        bench.broker.plugins.reconfigure(properties)
        now_ms = bench.clock.now_ms()
        await bench.until(5, "done", step_ms=10)
        assert bench.clock.now_ms() - now_ms <= 1_000

    with_broker(tmp_path, steps, migrationRate="10")


def test_levels_take_turns_between_pauses(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        for level in (4, 5):
            await bench.send(20, level)
        throttle = bench.service.throttle
        throttle.batch = 1
        await bench.command("start", levels=[4, 5])
        bench.service.owners_or_raise()
        throttle.observe(delivered(0))  # from now on a pause follows each step
        assert throttle.pause_ms == PAUSE_FIRST_MS
        seen = []
        for _ in range(200):
            bench.clock.advance(5)
            moved = [(await bench.level(level))["moved"] for level in (4, 5)]
            assert abs(moved[0] - moved[1]) <= 2, moved
            seen.append(tuple(moved))
        assert len(set(seen)) > 10

    with_broker(tmp_path, steps)


def test_resumed_work_starts_slowly(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(20, 5)
        throttle = bench.service.throttle
        throttle.batch = 1
        await bench.command("start", levels=[5])
        await bench.until(5, "draining", step_ms=1)
        await bench.command("pause", levels=[5])
        throttle.observe(delivered(0))
        throttle.pause_ms = 0
        for _ in range(20):
            bench.clock.advance(100)
            await bench.level(5)
        await bench.command("resume", levels=[5])
        await bench.level(5)
        assert throttle.pause_ms == PAUSE_FIRST_MS

    with_broker(tmp_path, steps)


def test_a_level_pauses_while_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq_migration.steps.service.COUNT_UNITS", 1)

    async def count_while_time_passes(bench: Bench) -> Any:
        requested = asyncio.create_task(bench.command("verify", levels=[5]))
        while not requested.done():
            bench.clock.advance(10)
            await asyncio.sleep(0)
        return await requested

    async def steps(bench: Bench) -> None:
        await bench.send(60, 5)
        await bench.command("start", levels=[5])
        await bench.until(5, "draining", step_ms=1)
        seen = []
        while (await bench.level(5))["state"] == "draining":
            response = await count_while_time_passes(bench)
            assert response["right"], response
            [found] = response["verified"]
            assert found["level_pending"] + found["timers_pending"] == 60
            seen.append(found["transferred"])
            bench.clock.advance(100)
        assert len(set(seen)) > 5
        await bench.until(5, "done")

    with_broker(tmp_path, steps, migrationRate="20")


def test_counting_yields_to_deliveries_and_ends_with_the_broker(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(60, 5)
        service = bench.service
        service.owners_or_raise()
        for _ in range(12):
            service.throttle.count_step(1, bench.clock.now_ms(), bench.clock.now_ms())
            service.throttle.observe(delivered(1_000))  # all of them late
        assert (service.piece(), service.throttle.pause_ms) == (BATCH_BUSY, PAUSE_MS_MAX)
        began_ms = bench.clock.now_ms()

        def pieces() -> Iterator[int]:
            while True:
                yield 1
                done.append(bench.clock.now_ms() - began_ms)

        done: list[int] = []
        counting = asyncio.create_task(service.throttled(pieces()))
        for _ in range(300):
            bench.clock.advance(1)
            await asyncio.sleep(0)
        assert 2 <= len(done) <= 1 + 300 // PAUSE_MS_MAX, done
        service.stop()
        with pytest.raises(NoOwners, match="the broker stops"):
            await counting

    with_broker(tmp_path, steps)


def test_a_count_ends_when_the_owners_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave before the migration is stopped, and close their files."""

    async def steps(bench: Bench) -> None:
        bench.service.owners_or_raise()
        with monkeypatch.context() as left:
            left.setattr(bench.service, "_find", lambda: None)
            with pytest.raises(NoOwners, match="the broker stops"):
                await bench.service.throttled(iter([1, 1]))

    with_broker(tmp_path, steps)


def test_a_turn_waits_when_the_owners_leave_during_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the broker, with an error, at a stop or a change of role."""
    persisted: list[int] = []

    async def steps(bench: Bench) -> None:
        await bench.send(10, 5)
        await bench.command("start", levels=[5])
        await bench.command("pause", levels=[5])
        service = bench.service
        service.stop()  # the turns are those of the test
        await bench.command("resume", levels=[5])

        async def persist() -> None:
            persisted.append(bench.clock.now_ms())
            left.setattr(service, "_find", lambda: None)

        with monkeypatch.context() as left:
            left.setattr("duemq_migration.steps.service.RETURNED_MAX", 0)
            left.setattr(service.owners_or_raise().keeper, "persist", persist)
            assert await service.turn() == bench.clock.now_ms() + AGAIN_MS
            assert len(persisted) == 1

    with_broker(tmp_path, steps)


def test_a_pause_does_not_wait_for_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = asyncio.Event()

    async def steps(bench: Bench) -> None:
        await bench.send(10, 5)
        await bench.command("start", levels=[5])
        await bench.until(5, "draining", step_ms=1)
        service = bench.broker.plugins.plugins["migration"].parts.service  # type: ignore[attr-defined]
        real = service.verify

        async def verify(level: int) -> Any:
            await counted.wait()
            return await real(level)

        monkeypatch.setattr(service, "verify", verify)
        requested = asyncio.create_task(bench.command("verify", levels=[5]))
        assert (await bench.command("pause", cause="now"))["levels"] == [5]
        assert not requested.done()
        counted.set()
        assert (await requested)["right"]

    with_broker(tmp_path, steps, migrationRate="1")


@pytest.mark.parametrize(
    ("action", "state", "paused"),
    [("pause", "verifying", True), ("rollback", "rolled_back", False)],
)
def test_a_count_does_not_undo_a_command_that_was_given_during_it(
    action: str, state: str, paused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(10, 5)
        service, commands = bench.service, 0
        real = service.verify

        async def verify(level: int) -> Any:
            nonlocal commands
            found = await real(level)
            assert found.is_right
            await bench.command(action, levels=[5], operator="anna")
            commands += 1
            return found

        monkeypatch.setattr(service, "verify", verify)
        await bench.command("start", levels=[5], operator="anna")
        for _ in range(TURNS_MAX):
            found = await bench.level(5)
            if commands and found["state"] == state:
                break
            await bench.written()
            bench.clock.advance(10)
        assert (found["state"], found["paused"], commands) == (state, paused, 1)

    with_broker(tmp_path, steps)


def test_metrics_and_broker_status(tmp_path: Path) -> None:
    async def steps(bench: Bench) -> None:
        await bench.send(7, 5)
        await bench.command("start", levels=[5])
        await bench.until(5, "done")
        await bench.send(2, 5)
        registry = bench.broker.metrics
        level = {"level": "5"}
        assert registry.get_sample_value("duemq_migration_moved_total", level) == 7
        state = level | {"state": "done"}
        assert registry.get_sample_value("duemq_migration_state", state) == 1
        assert registry.get_sample_value("duemq_migration_routed_total") == 2
        response = await bench.client.call(RequestCode.GET_VIEW, {"view": "migration.runtime"})
        assert json.loads(bytes(response.body)) == {"migration_5": "done,7,0"}

    with_broker(tmp_path, steps)


def test_returning_is_limited_until_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each returned timer uses memory until a checkpoint contains it."""
    monkeypatch.setattr("duemq_migration.steps.service.RETURNED_MAX", 5)
    counts: list[int] = []
    add = SettledTimers.add_returned

    def counted(settled_timers: SettledTimers, *arguments: Any) -> None:
        add(settled_timers, *arguments)
        counts.append(settled_timers.returned_count)

    monkeypatch.setattr(SettledTimers, "add_returned", counted)

    async def steps(bench: Bench) -> None:
        await bench.send(60, 5)
        await bench.command("start", levels=[5])
        await bench.until(5, "done")
        await bench.command("rollback")
        back = await bench.until(5, "rolled_back", step_ms=5)
        assert back["returned"] == 60
        assert await bench.pending() == (60, 0)

    with_broker(tmp_path, steps, migrationRate="20")  # 5 at once, 20 until the next checkpoint
    assert 5 <= max(counts) < 10
