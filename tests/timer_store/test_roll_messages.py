"""Configuration timerRollMode=message: a long timer is appended again at each roll."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from delivery.quarantine import Reason
from tests.support.failing_disk import Disk, SimulatedCrash
from tests.support.synchronous import Synchronous
from tests.support.timer_rig import TimerRig
from tests.timer_store.test_model import CrashRig
from timer_store.dequeue import dequeue_service as delivery
from timer_store.names import TIMER_QUEUE, TIMER_TOPIC
from timer_store.pending.listing import Query, list_timers
from timer_store.pending.lookup import PendingTimers


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_mode="message", roll_window_slots=10).open()
    yield rig
    if rig.is_open:
        rig.close()


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("ends_ms", [0, 9_800, 15_000, 39_990])
def test_copies_are_delivered_once_at_their_due_time(
    rig: TimerRig, end: str, persist: bool, ends_ms: int
) -> None:
    now_ms = rig.clock.now_ms()
    due = [now_ms + 45_000 + n for n in range(60)]
    rig.put_many([(due_ms, "TU"[due_ms % 2], 0, b"%d" % due_ms) for due_ms in due])
    rig.advance(ends_ms // 2)
    if persist:
        assert rig.persist()
    rig.advance(ends_ms - ends_ms // 2)
    assert rig.timers.counts.by_topic() == {"T": 30, "U": 30}
    getattr(rig, end)()
    rig.open()
    assert rig.timers.counts.by_topic() == {"T": 30, "U": 30}
    rig.advance(due[0] - 1 - rig.clock.now_ms())
    assert rig.bodies() == rig.bodies("U") == []
    rig.advance(1_000)
    arrived = [*rig.delivered(), *rig.delivered("U")]
    assert sorted(int(record.body) for record in arrived) == due
    assert all(record.store_ms == int(record.body) for record in arrived)
    copies = rig.delivered(TIMER_TOPIC, TIMER_QUEUE)
    rolls = {int(c.properties.get("TIMER_ROLL_TIMES", "0")) for c in copies[-60:]}
    most = 4 if end == "close" else 7  # after a kill the read time is that of the checkpoint
    assert min(rolls) >= 4
    assert max(rolls) <= most
    assert rig.timers.counts.total == 0


@pytest.mark.parametrize("how", ["cancel", "move", "fire"])
@pytest.mark.parametrize("end", ["close", "kill"])
def test_rolled_markers_of_decisions_change_no_count(rig: TimerRig, how: str, end: str) -> None:
    due_ms = rig.clock.now_ms() + 45_000
    batch = rig.put_many([(due_ms + n, "T", 0, b"%d" % n) for n in range(5)])
    decided = batch.rows["phys_offset"][:2].copy()
    pending = Synchronous(PendingTimers(rig.timers))
    arguments = (np.full(2, due_ms + 10), None) if how == "move" else ()
    getattr(pending, how)(decided, *arguments)
    left = 5 if how == "move" else 3
    for _ in range(3):
        rig.advance(10_000)
        assert rig.timers.counts.by_topic() == {"T": left}
        assert sum(rig.timers.counts.by_file().values()) == left
    rig.notices.clear()
    getattr(rig, end)()
    rig.open()
    assert rig.notices == []  # the wheel needs no rebuild
    assert rig.timers.counts.total == left
    rig.advance(20_000)
    assert sorted(rig.bodies()) == [b"%d" % n for n in range(2 if how == "cancel" else 0, 5)]
    assert rig.timers.counts.total == 0


def test_a_roll_counts_quarantined_and_lost_timers(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, roll_mode="message", roll_window_slots=10)
    rig.store_changes = {"commitlog_file_bytes": 16_384}
    rig.open()
    due_ms = rig.clock.now_ms() + 45_500
    rows = rig.put_many([(due_ms + n, "T", 0, b"x" * 1_000) for n in range(40)]).rows.copy()
    damaged = int(rows[-1]["phys_offset"])
    file = rig.store.log.file_of(damaged)
    file.write(damaged - file.base + 4, memoryview(bytes(4)))  # its magic code
    rig.store.log.remove_first()
    removed = int((rows["phys_offset"] < rig.store.log.min_offset).sum())
    rig.advance(8_000)
    stats = rig.timers.stats
    assert (stats.lost, stats.quarantined) == (removed, {Reason.UNREADABLE: 1})
    assert rig.timers.counts.total == 40 - removed - 1
    rig.kill()


def test_a_full_disk_delays_the_rolls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, tmp_path)
    rig = TimerRig(tmp_path, roll_mode="message", roll_window_slots=10).open()
    due_ms = rig.clock.now_ms() + 45_000
    rig.put_many([(due_ms + n, "T", 0, b"%d" % n) for n in range(60)])
    disk.full = ("commitlog",)
    rig.advance(20_000)
    disk.full = ()
    rig.store.check_disk()
    rig.advance(30_000)
    assert [record.store_ms for record in rig.delivered()] == [due_ms + n for n in range(60)]
    rig.close()


def test_a_turn_rolls_a_limited_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "ROLLED_UNITS_MAX", 20)
    monkeypatch.setattr(delivery, "ROLLED_MESSAGES_MAX", 7)
    for mode, most in (("index", 20 + 9), ("message", 7 + 6)):
        rig = TimerRig(tmp_path / mode, roll_mode=mode, roll_window_slots=100).open()
        now_ms = rig.clock.now_ms()
        due = [now_ms + 150_000 + 100 * n for n in range(400)]
        rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
        rig.clock.advance(100_000)
        turns: list[int] = []
        while rig.timers.turn(rig.clock.now_ms()):
            turns.append(rig.timers.dequeue.rolled - sum(turns))
        assert sum(turns) == 400
        assert max(turns) <= most
        assert rig.timers.counts.total == 400
        rig.advance(90_000)
        assert [record.store_ms for record in rig.delivered()] == due
        rig.close()


# The slot of the near timer is not delivered yet when the next slots are loaded, so the slots of
# the copied timers stay at or after the read time: the next process reads them again.
NEAR_MS, FAR_MS, FAR_COUNT = 9_500, 50_500, 5
ROLLS = {"roll_mode": "message", "precision_ms": 1_000, "roll_window_slots": 10}
SETTINGS = {**ROLLS, "stage_lead_ms": 5_000}


def send_near_and_far(rig: TimerRig) -> int:
    """Send one near timer and some far ones; return the due time of the first far one."""
    now_ms = rig.clock.now_ms()
    rig.put(now_ms + NEAR_MS, "T", body=b"near")
    rig.put_many([(now_ms + FAR_MS + n, "T", 0, b"far %d" % n) for n in range(FAR_COUNT)])
    return now_ms + FAR_MS


def roll_before_the_near_timer(rig: TimerRig) -> None:
    """Copy the far timers, while the near one is pending."""
    rig.advance(8_000)
    assert rig.timers.dequeue.rolled == FAR_COUNT
    assert rig.bodies() == []


def assert_each_is_delivered_once(rig: TimerRig, due_ms: int) -> None:
    rig.advance(due_ms + FAR_COUNT - rig.clock.now_ms())
    assert rig.bodies() == [b"near", *(b"far %d" % n for n in range(FAR_COUNT))]
    assert [r.store_ms for r in rig.delivered()[1:]] == [due_ms + n for n in range(FAR_COUNT)]
    assert rig.timers.counts.total == 0


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("persist", [True, False])
def test_a_copied_timer_is_not_copied_again_after_a_restart(
    tmp_path: Path, end: str, persist: bool
) -> None:
    """`close` also checks that an Apache broker would find each pending timer once."""
    rig = TimerRig(tmp_path, **SETTINGS).open()
    due_ms = send_near_and_far(rig)
    roll_before_the_near_timer(rig)
    if persist:
        assert rig.persist()
    getattr(rig, end)()
    rig.open()
    assert rig.timers.counts.total == 1 + FAR_COUNT
    assert_each_is_delivered_once(rig, due_ms)
    rig.close()


def test_a_crash_at_any_step_of_the_rolls_delivers_each_timer_once() -> None:
    for steps in range(100):
        crash_rig = CrashRig(steps, 1_024, lambda *files, **_: TimerRig(*files, **SETTINGS))
        try:
            due_ms = send_near_and_far(crash_rig.rig)
            assert crash_rig.rig.persist()
            finished = crash_during_rolls(crash_rig, steps)
            crash_rig.rig.open()
            assert crash_rig.rig.timers.counts.total == 1 + FAR_COUNT
            assert_each_is_delivered_once(crash_rig.rig, due_ms)
        finally:
            crash_rig.remove()
        if finished:
            assert steps > 10
            return
    raise AssertionError("the rolls have too many steps")


def crash_during_rolls(crash_rig: CrashRig, steps: int) -> bool:
    """Roll and write a checkpoint, with a crash at a step; return whether all steps were done."""
    crash_rig.disk.steps_left = steps
    try:
        roll_before_the_near_timer(crash_rig.rig)
        assert crash_rig.rig.persist()
        return True
    except SimulatedCrash:
        return False
    finally:
        crash_rig.disk.steps_left = None
        crash_rig.crash(cut=False)


def test_a_slot_that_is_copied_in_parts_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the slot is copied, then the disk is full: the copied timers stay settled."""
    disk = Disk(monkeypatch, tmp_path)
    monkeypatch.setattr(delivery, "ROLLED_MESSAGES_MAX", 2)
    rig = TimerRig(tmp_path, **SETTINGS).open()
    due_ms = send_near_and_far(rig)
    while not rig.timers.dequeue.rolled:
        rig.clock.advance(100)
        rig.timers.turn(rig.clock.now_ms())
    disk.full = ("commitlog",)
    rig.timers.turn(rig.clock.now_ms())
    found = [timer["due_ms"] for timer in list_timers(rig.timers, Query()).timers]
    assert found == [due_ms - FAR_MS + NEAR_MS, *(due_ms + n for n in range(FAR_COUNT))]
    disk.full = ()
    rig.store.check_disk()
    assert_each_is_delivered_once(rig, due_ms)
    rig.close()


@pytest.mark.parametrize(("mode", "full"), [("index", "timerwheel"), ("message", "timerlog")])
@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_refused_checkpoint_loses_no_tombstone_and_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, full: str, end: str
) -> None:
    """`close` also checks that an Apache broker would find each pending timer once."""
    disk = Disk(monkeypatch, tmp_path)
    rig = TimerRig(tmp_path, **SETTINGS | {"roll_mode": mode}).open()
    due_ms = send_near_and_far(rig)
    roll_before_the_near_timer(rig)
    disk.full = (full,)
    assert not rig.persist()
    disk.full = ()
    assert len(rig.timers.settled_timers) == (FAR_COUNT if mode == "message" else 0)
    assert rig.persist()
    assert len(rig.timers.settled_timers) == 0
    getattr(rig, end)()
    rig.open()
    assert rig.notices == []  # the wheel needs no rebuild
    assert_each_is_delivered_once(rig, due_ms)
    rig.close()
