"""Checkpoints: a start from one, from a damaged one, and from the log alone is the same."""

from __future__ import annotations

import pytest

from duemq_common.existence import exists
from recurring_schedules.checkpoint import FILE_NAME, ScheduleCheckpoints, load_table, write
from recurring_schedules.plugin import recovered_table
from tests.recurring_schedules.rig import MONDAY_MS, ScheduleRig
from tests.support.inline_loop import run_inline


@pytest.fixture
def opened(rig: ScheduleRig) -> ScheduleRig:
    """A rig with an active, a paused and a deleted schedule."""
    rig.open()
    for name in ("a", "b", "c"):
        rig.create(name, every_ms=10_000)
    rig.call("pause", "b")
    rig.call("delete", "c")
    rig.run_to(MONDAY_MS + 35_000)
    return rig


def state_of(rig: ScheduleRig) -> list[object]:
    table = recovered_table(rig.store)
    assert len(table) == 2
    return [table.record(rig.store, table.find(name)) for name in ("a", "b")]


def test_a_start_reads_the_rest_of_the_log(opened: ScheduleRig) -> None:
    expected = state_of(opened)
    run_inline(opened.checkpoints.persist())
    assert load_table(opened.store).log_offset == opened.store.max_offset
    assert state_of(opened) == expected
    opened.run_to(MONDAY_MS + 55_000)
    assert load_table(opened.store).log_offset < opened.store.max_offset
    assert state_of(opened) == [
        opened.table.record(opened.store, opened.table.find(name)) for name in ("a", "b")
    ]


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"no json\n", b"cut"])
def test_a_damaged_checkpoint_is_not_used(opened: ScheduleRig, damage: bytes) -> None:
    expected = state_of(opened)
    run_inline(opened.checkpoints.persist())
    path = opened.store.config_path(FILE_NAME)
    path.write_bytes(path.read_bytes()[:-1] if damage == b"cut" else damage)
    assert load_table(opened.store).log_offset < opened.store.max_offset
    assert state_of(opened) == expected


def test_a_checkpoint_of_a_log_that_is_not_on_the_disk_is_not_written(
    opened: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(_: int) -> bool:
        return False

    monkeypatch.setattr(opened.store, "wait_durable", wait)
    run_inline(opened.checkpoints.persist())
    assert not exists(opened.store.config_path(FILE_NAME))


def test_a_checkpoint_of_a_log_that_was_truncated_is_not_used(
    opened: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(opened.checkpoints.persist())
    end = load_table(opened.store).log_offset
    monkeypatch.setattr(opened.store, "unchanged_end", lambda _: end - 1)
    assert load_table(opened.store).log_offset < end


def test_a_replica_writes_checkpoints_of_what_it_copies(opened: ScheduleRig) -> None:
    follower = ScheduleCheckpoints(
        opened.store, load_table(opened.store), opened.clock, follows=True
    )
    for end_ms in (60_000, 90_000):
        opened.run_to(MONDAY_MS + end_ms)
        expected = state_of(opened)
        run_inline(follower.persist())
        assert load_table(opened.store).log_offset == opened.store.max_offset
        assert state_of(opened) == expected


def test_a_change_during_the_write_is_in_the_log_after_the_checkpoint(opened: ScheduleRig) -> None:
    store, end = opened.store, opened.store.max_offset
    with opened.table.snapshot() as snapshot:
        opened.call("delete", "a")
        opened.call("resume", "b")
        opened.create("a", every_ms=20_000)
        opened.create("d", every_ms=10_000)
        opened.run_to(MONDAY_MS + 55_000)
        run_inline(write(store.config_path(FILE_NAME), snapshot, end, store.generation))
    assert load_table(store).log_offset == end
    table = recovered_table(store)
    assert len(table) == len(opened.table) == 3
    for name in ("a", "b", "d"):
        expected = opened.table.record(store, opened.table.find(name))
        assert table.record(store, table.find(name)) == expected
