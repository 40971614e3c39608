"""Migration of stopped stores, Apache's and ours: all levels become timers in a copy."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import StoreLocked, UsageError
from duemq_common.ledger.engine import default_url
from duemq_common.ledger.identity import known_store_id, store_id
from duemq_migration.ledger.reader import MigrationLedger
from duemq_migration.ownership.states import State
from duemq_migration.steps import offline
from duemq_migration.steps.offline import NOT_COPIED, OfflineStopped, migrate_offline
from message_store.store_copy import copy_store
from tests.migration.bench import PLUGINS, Bench
from tests.support.extended import extended
from tests.support.golden_stores import (
    INDEX_ITEMS,
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    copy_golden_store,
    end_ms,
    manifest_lines,
)
from tests.support.running_broker import running, small

GOLDEN = {
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": str(INDEX_ITEMS),
}
QUEUES = 8
VERSION = "4.9.7"
NOW_MS = end_ms(VERSION)
STEP_MS = 5_000


def pending() -> dict[str, int]:
    """Return the pending messages of the manifest: message ID to level."""
    sent = {line["msgId"]: line for line in manifest_lines(VERSION, "sent") if line["level"] > 0}
    received = {line["msgId"] for line in manifest_lines(VERSION, "received")}
    return {key: int(line["level"]) for key, line in sent.items() if key not in received}


def digest(root: Path) -> dict[str, str]:
    """Return the contents of all files except those that any opening changes."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.extended
@pytest.mark.parametrize("name", ["apache-4.9.7-running", extended("apache-4.9.7-clean")])
def test_messages_of_a_golden_store_are_delivered_on_time(name: str, tmp_path: Path) -> None:
    source = copy_golden_store(name, tmp_path / "source")
    before, target = digest(source), tmp_path / "target"
    copy_store(source, target)
    done = migrate_offline(target, [], GOLDEN, operator="anna", now_ms=NOW_MS)
    assert digest(source) == before
    planned = {level.level: level.pending for level in done.plan.levels}
    assert done.moved == planned
    assert sum(done.moved.values()) >= len(pending()) > 40
    ledger = MigrationLedger.open_existing(default_url(target))
    run = ledger.run(done.migration)
    ledger.close()
    assert (run.migration.mode, run.migration.started_by) == ("offline", "anna")
    assert {level.state for level in run.levels} == {State.DONE}
    asyncio.run(_delivered(tmp_path, target))


async def _delivered(tmp_path: Path, target: Path) -> None:
    """Deliver the timers of the target with our broker, and compare with the manifest."""
    clock = FakeClock(end_ms(VERSION))
    settings = small(tmp_path, **GOLDEN) | {"storePathRootDir": str(target)}
    async with running(settings, clock=clock, plugins=PLUGINS) as (broker, client):
        bench, store = Bench(broker, client, clock), broker.store
        levels, timers = await bench.pending()
        assert levels == 0
        assert timers > 0
        [topic] = {line["topic"] for line in manifest_lines(VERSION, "sent") if line["level"] > 0}
        for _ in range(3_000):
            if (await bench.pending())[1] == 0:
                break
            clock.advance(STEP_MS)
        found: dict[str, Any] = {}
        for queue in range(QUEUES):
            first, end = store.queue_bounds(topic, queue)
            for at in range(first, end):
                record = store.read_record(int(store.units(topic, queue, at, 1)[0]["phys_offset"]))
                key = record.properties.get("UNIQ_KEY", "")
                if record.prepared_offset < 0 and key in pending():
                    assert key not in found
                    found[key] = record
        assert found.keys() == pending().keys()
        for record in found.values():
            origin = store.read_record(-record.prepared_offset - 1)
            due_ms = origin.store_ms + broker_delay(broker, origin)
            assert due_ms <= record.store_ms <= max(due_ms, NOW_MS) + STEP_MS
            assert "TIMER_OUT_MS" not in record.properties


def broker_delay(broker: Any, origin: Any) -> int:
    plugin = broker.plugins.plugins["schedule_service"]
    return int(plugin.history.delays_ms[origin.queue_id + 1])


def test_a_copy_is_another_store(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "commitlog").mkdir(parents=True)
    (source / "commitlog" / "0").write_text("x")
    name = store_id(source / "config")
    left = ("lock", "duemq.ledger.sqlite", "duemq.ledger.sqlite-wal", "config/duemq.store.json.bak")
    kept = ("abort", "config/delayOffset.json", "config/duemq.migration.json")
    (source / "config" / "duemq.plans").mkdir()
    for file in (*left, *kept, "config/duemq.plans/plan-1.json"):
        (source / file).write_text("x")
    copy_store(source, target, left_out=NOT_COPIED)
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert files == {"commitlog/0", *kept}
    assert store_id(target / "config") != name == known_store_id(source / "config")


def test_a_dry_run_counts_and_changes_no_message(tmp_path: Path) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    done = migrate_offline(root, [18], GOLDEN, operator="", now_ms=NOW_MS, dry_run=True)
    assert [level.level for level in done.plan.levels] == [18]
    assert not done.moved
    assert not (root / "duemq.ledger.sqlite").exists()


@pytest.mark.finding("B11")
def test_it_is_recorded_with_the_current_time(tmp_path: Path) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path / "store")
    now_ms = NOW_MS + 7 * 3_600_000
    done = migrate_offline(root, [18], GOLDEN, operator="anna", now_ms=now_ms)
    day = f"{datetime.fromtimestamp(now_ms // 1_000, UTC):%Y%m%d-%H%M%S}"
    assert day in done.migration
    assert day in done.plan.plan_id
    assert done.plan.made_ms == now_ms
    ledger = MigrationLedger.open_existing(default_url(root))
    run = ledger.run(done.migration)
    ledger.close()
    times = [run.migration.started_ms, run.migration.ended_ms]
    times += [event.at_ms for event in run.events] + [level.updated_ms for level in run.levels]
    assert all(ms is not None and now_ms <= ms < now_ms + 600_000 for ms in times), times


def test_a_stopped_migration_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    monkeypatch.setattr(offline, "difference", lambda found: "they differ")
    monkeypatch.setattr(
        "duemq_migration.steps.verification.Verified.is_right", property(lambda found: False)
    )
    with pytest.raises(OfflineStopped, match="the same command"):
        migrate_offline(root, [18], GOLDEN, operator="", now_ms=NOW_MS)
    monkeypatch.undo()
    assert (
        migrate_offline(root, [18], GOLDEN, operator="", now_ms=NOW_MS).moved[18] == 0
    )  # verified in this run
    assert migrate_offline(root, [18], GOLDEN, operator="", now_ms=NOW_MS).moved == {
        18: 0
    }  # nothing remains to be done


def test_refused_migrations(tmp_path: Path) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    with pytest.raises(UsageError, match="is not a store"):
        migrate_offline(tmp_path / "nothing", [], GOLDEN, operator="", now_ms=NOW_MS)
    with pytest.raises(UsageError, match="no level 19 here; there are 1 to 18"):
        migrate_offline(root, [19], GOLDEN, operator="", now_ms=NOW_MS)
    with pytest.raises(UsageError, match="is below the store"):
        copy_store(root, root / "copy")
    with pytest.raises(UsageError, match="is not empty"):
        copy_store(root, tmp_path)

    async def while_a_broker_runs() -> None:
        settings = small(tmp_path, **GOLDEN) | {"storePathRootDir": str(root)}
        clock = FakeClock(end_ms(VERSION))
        async with running(settings, clock=clock, plugins=PLUGINS):
            with pytest.raises(StoreLocked):
                await asyncio.to_thread(
                    migrate_offline, root, [], GOLDEN, operator="", now_ms=NOW_MS
                )

    asyncio.run(while_a_broker_runs())
