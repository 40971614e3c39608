"""Copies of definitions before retention removes their log files; the pin without a plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.topics import SCHEDULES_TOPIC
from recurring_schedules.names import JOURNAL_QUEUE, PLUGIN
from recurring_schedules.plugin import recovered_table
from recurring_schedules.renewal import TURN_DEFINITIONS, DefinitionRenewal
from recurring_schedules.stored_pin import stored_pin
from tests.recurring_schedules.rig import MONDAY_MS, ScheduleRig
from tests.support.full_timer_disk import FILE_BYTES, FullDisk
from tests.support.inline_loop import run_inline

EVERY_MS = 10_000
FORCED_PERCENT = 88.0


class RetainedRig(ScheduleRig):
    """Rig whose schedules and timers exclude log files from retention, as in a broker."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.store_changes = {"commitlog_file_bytes": FILE_BYTES}

    def open(self) -> ScheduleRig:
        super().open()
        retention = self.store.retention
        retention.add_pin(self.table.oldest_definition, owner=PLUGIN)
        retention.add_pin(lambda: self.timers.first_pending_offset, owner="timer_store")
        self.renewal = DefinitionRenewal(self.store, self.table, self.clock)
        return self

    def fill(self) -> None:
        """Write three log files of other messages."""
        for _ in range(3 * 16):
            self.put_many([(1, "U", 0, b"x" * 900)])
        assert self.persist()

    def clean(self) -> int:
        """Return the number of files that retention removes."""
        self.store.flush()
        return sum(self.store.retention.clean() for _ in range(5))

    def renew(self) -> None:
        while self.renewal.turn():
            pass

    def states(self) -> dict[str, tuple[str, int, int]]:
        return {
            name: (record.state, record.planned_ms, record.next_ms)
            for name in ("a", "b")
            for record in [self.table.record(self.store, self.table.find(name))]
        }


@pytest.fixture
def retained(tmp_path: Path) -> RetainedRig:
    """A rig with an active, a paused and a deleted schedule in the first log file."""
    rig = RetainedRig(tmp_path)
    rig.open()
    for name in ("a", "b", "c"):
        rig.create(name, every_ms=EVERY_MS)
    rig.run_to(MONDAY_MS + 25_000)
    rig.call("pause", "b")
    rig.call("delete", "c")
    rig.fill()
    return rig


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_definitions_do_not_keep_old_log_files(
    retained: RetainedRig, disk: FullDisk, has_checkpoint: bool
) -> None:
    rig = retained
    rig.run_to(MONDAY_MS + 35_000)
    assert rig.persist(), "the pin of the timers"
    states = rig.states()
    disk.percent = FORCED_PERCENT
    assert rig.clean() == 0, "the definitions pin the first file"
    rig.renew()
    assert rig.renewal.renewed == 2
    assert rig.states() == states
    assert rig.clean() >= 2
    if has_checkpoint:
        run_inline(rig.checkpoints.persist())
    rig.kill()
    rig.open()
    assert rig.states() == states
    rig.run_to(MONDAY_MS + 60_000)
    rig.call("resume", "b")
    rig.run_to(MONDAY_MS + 80_000)
    assert rig.planned("a") == [
        MONDAY_MS + n * EVERY_MS for n in range(3, 9)
    ]  # earlier ones are removed
    assert rig.planned("b") == [MONDAY_MS + n * EVERY_MS for n in (7, 8)]
    rig.kill()


def test_definitions_are_not_copied_without_need(retained: RetainedRig, disk: FullDisk) -> None:
    assert not retained.renewal.turn()
    assert retained.renewal.renewed == 0
    disk.percent = FORCED_PERCENT
    retained.put(retained.clock.now_ms() + 5_000)
    retained.store.retention.add_pin(lambda: retained.store.min_offset, owner="other")
    assert not retained.renewal.turn(), "another pin keeps the file"
    assert retained.renewal.renewed == 0
    retained.kill()


def test_a_turn_copies_few_definitions(retained: RetainedRig, disk: FullDisk) -> None:
    for number in range(2 * TURN_DEFINITIONS):
        retained.create(f"n{number}", every_ms=EVERY_MS)
    retained.fill()
    retained.run_to(retained.clock.now_ms() + EVERY_MS)
    assert retained.persist()
    disk.percent = FORCED_PERCENT
    assert retained.renewal.turn()
    assert retained.renewal.renewed == TURN_DEFINITIONS
    retained.renew()
    assert retained.renewal.renewed == 2 * TURN_DEFINITIONS + 2
    retained.kill()


# -- the pin of schedules that do not run ---------------------------------------------------------


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_the_stored_pin_keeps_what_a_start_needs(
    retained: RetainedRig, has_checkpoint: bool
) -> None:
    store = retained.store
    first = int(store.units(SCHEDULES_TOPIC, JOURNAL_QUEUE, 0, 1)[0]["phys_offset"])
    if not has_checkpoint:
        assert stored_pin(store) == first
        retained.kill()
        return
    retained.call("delete", "a")
    run_inline(retained.checkpoints.persist())
    [oldest] = recovered_table(store).definition_offsets()
    assert stored_pin(store) == oldest > first
    retained.call("delete", "b")
    run_inline(retained.checkpoints.persist())
    assert stored_pin(store) is None
    retained.create("d", every_ms=EVERY_MS)
    pin = stored_pin(store)
    assert isinstance(pin, int)
    assert oldest < pin <= min(retained.table.definition_offsets())
    retained.kill()


def test_a_store_without_schedules_has_no_stored_pin(rig: ScheduleRig) -> None:
    rig.open()
    assert stored_pin(rig.store) is None
    rig.close()


@pytest.mark.parametrize("action", ["pause", "delete"])
def test_a_definition_and_its_occurrence_do_not_keep_the_file_of_each_other(
    tmp_path: Path, disk: FullDisk, action: str
) -> None:
    """A compaction copies the occurrence, which the schedule cancels nevertheless."""
    rig, day_ms = RetainedRig(tmp_path), 86_400_000
    rig.open()
    rig.create("a", every_ms=2 * day_ms)
    rig.fill()
    disk.percent = FORCED_PERCENT
    assert rig.timers.compaction.begin_if_needed()
    while rig.timers.compaction.running:
        rig.clock.advance(10)
        rig.work()
    assert rig.persist()
    rig.renew()
    assert rig.clean() == 3
    disk.percent = 50.0
    assert rig.table.rows["pending"][0] < rig.store.min_offset
    rig.call(action, "a")
    assert rig.timers.counts.total == 0
    rig.kill()
    rig.open()
    rig.run_to(MONDAY_MS + 5 * day_ms)
    assert rig.planned("a") == []
    rig.kill()
