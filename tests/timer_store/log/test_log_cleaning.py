"""Deletion of timer log files, which happens only when they have no pending units."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.failing_disk import Disk
from tests.support.timer_rig import LOG_FILE_BYTES, TimerRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_window_slots=600).open()
    yield rig
    if rig.is_open:
        rig.close()


def files(rig: TimerRig) -> list[int]:
    return [int(path.name) for path in sorted((rig.root / "timerlog").iterdir())]


def put(rig: TimerRig, count: int, delay_ms: int) -> None:
    due_ms = rig.clock.now_ms() + delay_ms
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms)] * count)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_files_are_deleted_after_the_delivery_of_their_timers(rig: TimerRig, end: str) -> None:
    put(rig, 200, 5_000)
    rig.advance(31_000)
    assert len(files(rig)) == 5
    assert rig.persist()
    assert files(rig) == [4 * LOG_FILE_BYTES], "the one that is written stays"
    put(rig, 200, 5_000)
    getattr(rig, end)()
    rig.open()
    assert rig.notices == []
    assert rig.timers.counts.total == 200
    rig.advance(10_000)
    assert len(rig.bodies()) == 400


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_file_with_a_pending_timer_stays_until_the_timer_is_rolled(
    rig: TimerRig, end: str
) -> None:
    put(rig, 60, 1_000)
    put(rig, 1, 700_000)  # rolls after 100 s, into file 1
    put(rig, 100, 1_000)
    rig.advance(40_000)
    rig.persist()
    assert files(rig)[0] == LOG_FILE_BYTES
    rig.advance(70_000)
    rig.persist()
    rig.advance(31_000)
    rig.persist(last=True)
    assert files(rig) == [3 * LOG_FILE_BYTES]
    getattr(rig, end)()
    rig.open()
    assert rig.notices == []
    assert rig.timers.counts.total == 1
    rig.advance(600_000)
    assert len(rig.bodies()) == 161


def test_deliveries_outside_of_a_checkpoint_delete_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, tmp_path)
    rig = TimerRig(tmp_path).open()
    put(rig, 200, 5_000)
    rig.persist()
    rig.advance(31_000)
    put(rig, 1, 90_000)
    disk.full = ("timerwheel",)
    assert not rig.persist()
    assert len(files(rig)) == 5
    disk.full = ()
    rig.clock.advance(31_000)
    assert rig.persist()
    assert len(files(rig)) == 1
    rig.close()


def test_units_of_settled_timers_keep_no_file(rig: TimerRig) -> None:
    put(rig, 60, 5_000)
    put(rig, 60, 500_000)
    units = np.concatenate([rows.copy() for rows in rig.timers.units.log.scan()])
    rig.timers.decisions.cancel(units["phys_offset"][60:].copy())
    rig.advance(31_000)
    rig.persist()
    assert len(files(rig)) == 3, "the units do not show it yet"
    rig.persist(last=True)
    assert len(files(rig)) == 1
    rig.kill()
    rig.open()
    assert rig.timers.counts.total == 0


def test_settled_units_at_the_end_of_a_chain_keep_no_file(rig: TimerRig) -> None:
    """The slot is needed, but not its oldest units."""
    due_ms = rig.clock.now_ms() + 50_000
    first = rig.put_many([(due_ms, "T", 0, b"first")] * 60)
    rig.put_many([(due_ms, "T", 0, b"second")] * 60)
    rig.timers.decisions.cancel(first.filled["phys_offset"].copy())
    rig.persist()
    assert rig.persist(last=True)
    assert files(rig)[0] == LOG_FILE_BYTES
    rig.kill()
    rig.open()
    assert rig.notices == []
    rig.advance(60_000)
    assert rig.bodies() == [b"second"] * 60


def test_a_rebuilt_log_is_checked_from_its_start(rig: TimerRig) -> None:
    put(rig, 200, 5_000)
    rig.advance(10_000)
    rig.persist()
    assert len(files(rig)) == 1
    put(rig, 10, 5_000)
    rig.timers.dequeue.broken = RuntimeError("a chain is broken")
    rig.work()
    assert rig.timers.state.rebuilds == 1
    put(rig, 200, 60_000)
    rig.persist()
    assert rig.timers.units.log.min_pos == files(rig)[0]
    rig.kill()
    rig.open()
    assert rig.timers.counts.total == 210
    rig.advance(70_000)
    assert len(rig.bodies()) == 410
