"""Counting for a plan, and its obstacles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from duemq_migration.ownership.owners import Owners
from duemq_migration.plans.counting import PlanCount
from duemq_migration.plans.plan import Obstacle, ObstacleKind, Plan
from message_store.store import MessageStore
from tests.migration.steps.test_drain import fill
from tests.support.migration_rig import MigrationRig

HOUR_S = 3_600


def plan_of(rig: MigrationRig, *levels: int, rate_per_s: int = 0) -> Plan:
    """Count the levels of a rig."""
    owners = Owners(
        store=rig.store,
        levels=rig.levels,
        timers=rig.timers,
        queues=rig.queues,
        history=rig.history,
        keeper=rig.keeper,
    )
    count = PlanCount(owners, levels, rig.clock.now_ms(), rate_per_s)
    assert all(size > 0 for size in count.pieces())
    return count.plan(plan_id="p", store_id="s", made_by="anna")


def obstacle(plan: Plan, kind: ObstacleKind) -> Obstacle:
    """Return the only obstacle of a plan and check its kind."""
    [found] = plan.obstacles
    assert found.kind is kind
    return found


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = MigrationRig(tmp_path).open()
    yield rig
    rig.close()


def test_pending_messages_are_counted_exactly(rig: MigrationRig) -> None:
    due = fill(rig, 90, (3, 4, 5))
    rig.advance(9_995)
    plan = plan_of(rig, 3, 4, 5)
    left = {level.level: level for level in plan.levels}
    gone = len(rig.delivered())
    assert 0 < gone < 30
    assert {n: level.pending for n, level in left.items()} == {3: 30 - gone, 4: 30, 5: 30}
    mine = [due_ms for body, due_ms in due.items() if body.startswith(b"4/")]
    assert (left[4].first_due_ms, left[4].last_due_ms) == (min(mine), max(mine))
    units = rig.queues.units(4, 0, 30)
    assert left[4].pending_bytes == units["size"].sum()
    assert (left[4].delay_ms, left[4].unit_bytes, left[4].overdue) == (60_000, 30 * 52, 0)
    assert plan.obstacles == []


def test_a_disk_without_room_blocks(rig: MigrationRig, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(rig, 20, (4,))
    percent = rig.store.config.disk_warning_percent
    total = 100_000
    monkeypatch.setattr(MessageStore, "disk_bytes", _disk(total, percent, room=1_039))
    found = obstacle(plan_of(rig, 4), ObstacleKind.NO_ROOM)
    assert found.blocks
    assert found.text == "1,040 bytes of timer units, room for 1,039: free disk space"
    monkeypatch.setattr(MessageStore, "disk_bytes", _disk(total, percent, room=1_040))
    assert plan_of(rig, 4).obstacles == []


def _disk(total: int, percent: int, *, room: int) -> tuple[int, int]:
    used = total * percent // 100 - room
    return used, total - used


def test_the_next_files_of_retention_are_reported(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path)
    rig.store_changes["commitlog_file_bytes"] = 16_384
    rig.open()
    fill(rig, 300, (4,))
    files = rig.store.log.files
    assert len(files) > 2
    old_s = rig.clock.now_ms() / 1_000 - (rig.store.config.file_reserved_hours + 1) * HOUR_S
    for number, file in enumerate(files):
        os.utime(file.path, (0, old_s if number == 0 else old_s + 2 * HOUR_S))
    units = [rig.queues.units(4, at, 1)[0] for at in range(300)]
    count = sum(int(unit["phys_offset"]) < files[1].base for unit in units)
    assert 0 < count < 300
    found = obstacle(plan_of(rig, 4), ObstacleKind.NEAR_RETENTION)
    assert (found.level, found.count, found.blocks) == (4, count, False)
    rig.close()


def test_messages_due_during_the_run_are_reported(rig: MigrationRig) -> None:
    fill(rig, 20, (3,))
    assert plan_of(rig, 3).obstacles == []
    found = obstacle(plan_of(rig, 3, rate_per_s=1), ObstacleKind.DUE_WHILE_RUNNING)
    assert (found.level, found.count, found.blocks) == (3, 20, False)


def test_records_that_cannot_be_renamed_are_reported_and_delivered(
    rig: MigrationRig,
) -> None:
    rig.send([(4, "T", 0, b"a")], **{"__CRC32#": "0123456789"})
    rig.send([(4, "T", 0, b"b")], **{"DELAy": "x"})
    rig.send([(4, "T", 0, b"c")])
    found = obstacle(plan_of(rig, 4), ObstacleKind.HAS_CRC)
    assert (found.level, found.count, found.blocks) == (4, 2, False)
    assert rig.drain.step(4, 10).moved == 3
    assert rig.timers.transfers.records.unnamed == 2
    assert rig.verify(4).is_right
    rig.advance(60_000)
    assert sorted(r.body for r in rig.delivered()) == [b"a", b"b", b"c"]


def test_messages_due_beyond_the_roll_window_stay_with_their_level(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path, roll_window_slots=90).open()
    due = fill(rig, 10, (5,))
    rig.advance(20_000)
    fill(rig, 10, (5,))
    found = obstacle(plan_of(rig, 5), ObstacleKind.BEYOND_WINDOW)
    assert (found.level, found.count, found.blocks) == (5, 20, False)
    step = rig.drain.step(5, 100)
    assert step.moved == 0
    assert "beyond the roll window of 90 s" in step.blocked_by
    rig.advance(15_000)  # the first ten are inside the window now
    assert rig.drain.step(5, 100).moved == 10
    assert "beyond the roll window" in rig.drain.step(5, 100).blocked_by
    assert (rig.level_pending, rig.timers.counts.total) == (10, 10)
    rig.advance(130_000)
    assert len(rig.delivered()) == 2 * len(due)
    rig.close()
