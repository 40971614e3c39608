"""Rolls: a timer beyond the roll window is enqueued into a later slot, again and again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from delayed_delivery.pending import Verdict
from tests.support.failing_disk import Disk, SimulatedCrash
from tests.support.synchronous import Synchronous
from tests.support.timer_rig import TimerRig, pending_unit_records
from tests.timer_store.test_model import CrashRig
from timer_store.dequeue import dequeue_service
from timer_store.layout import Rows
from timer_store.pending.lookup import PendingTimers


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    yield rig
    if rig.is_open:
        rig.close()


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


@pytest.mark.parametrize("refused", ["a part of the units", "all, by a full disk"])
def test_a_roll_that_was_incomplete_continues(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    due_ms = rig.clock.now_ms() + 25_000
    rig.put_many([(due_ms, "T", 0, b"%d" % n) for n in range(5)])
    rig.advance(100)
    units = rig.timers.units
    add, refusals = units.add, iter([True])

    def add_less(rows: Rows, **times: int) -> int:
        if not next(refusals, False):
            return add(rows, **times)
        if refused == "a part of the units":
            return add(rows[:2], **times)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(units, "add", add_less)
    rig.advance(6_000)
    monkeypatch.undo()
    assert next(refusals, None) is None
    found = pending_unit_records(rig.timers)
    assert sorted(set(found)) == sorted(found)
    rig.advance(24_000)
    assert sorted(rig.bodies()) == [b"%d" % n for n in range(5)]


def test_a_turn_rolls_a_limited_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequeue_service, "ROLLED_UNITS_MAX", 20)
    rig = TimerRig(tmp_path, roll_window_slots=100).open()
    now_ms = rig.clock.now_ms()
    due = [now_ms + 150_000 + 100 * n for n in range(400)]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    rig.clock.advance(100_000)
    turns: list[int] = []
    while rig.timers.turn(rig.clock.now_ms()):
        turns.append(rig.timers.dequeue.rolled - sum(turns))
    assert sum(turns) == 400
    assert max(turns) <= 20 + 9
    assert rig.timers.counts.total == 400
    rig.advance(90_000)
    assert [record.store_ms for record in rig.delivered()] == due
    rig.close()


def test_a_far_timer_does_not_join_a_slot_that_is_loaded_in_parts(tmp_path: Path) -> None:
    """Such a timer was staged until it was due; its unit was in a slot before the read time."""
    rig = TimerRig(tmp_path, roll_window_slots=3, stage_records_max=5).open()
    start_ms = rig.clock.now_ms()
    for delay_ms in (2_500, 2_500, 2_500, 2_500, 12_000, 12_000):
        rig.put(start_ms + delay_ms)
    rig.advance(1_900)
    assert rig.timers.position.part is not None
    rig.put(start_ms + 11_400, body=b"far")
    assert len(rig.timers.stage) == 4
    rig.advance(5_000)
    rig.close()  # checks that an Apache broker would find each pending timer
    rig.open()
    rig.advance(20_000)
    assert rig.bodies() == [*[b"body"] * 4, b"far", *[b"body"] * 2]
    rig.close()


# The slot of the near timer is not delivered yet when the next slots are loaded, so the slots of
# the rolled timers stay at or after the read time: the next process reads them again.
NEAR_MS, FAR_MS, FAR_COUNT = 9_500, 50_500, 5
SETTINGS = {"precision_ms": 1_000, "roll_window_slots": 10, "stage_lead_ms": 5_000}


def send_near_and_far(rig: TimerRig) -> int:
    """Send one near timer and some far ones; return the due time of the first far one."""
    now_ms = rig.clock.now_ms()
    rig.put(now_ms + NEAR_MS, "T", body=b"near")
    rig.put_many([(now_ms + FAR_MS + n, "T", 0, b"far %d" % n) for n in range(FAR_COUNT)])
    return now_ms + FAR_MS


def roll_before_the_near_timer(rig: TimerRig) -> None:
    """Roll the far timers, while the near one is pending."""
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
def test_a_rolled_timer_is_delivered_once_after_a_restart(
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


@pytest.mark.parametrize("how", ["cancel", "move", "fire"])
@pytest.mark.parametrize("refused", [False, True])
def test_a_timer_that_rolled_and_was_settled_between_two_checkpoints_does_not_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, refused: bool
) -> None:
    disk = Disk(monkeypatch, tmp_path)
    rig = TimerRig(tmp_path, **SETTINGS).open()
    due_ms = send_near_and_far(rig)
    rig.persist()
    roll_before_the_near_timer(rig)
    if refused:
        disk.full = ("timerwheel",)
        assert not rig.persist()
        disk.full = ()
    offsets = np.array([rows["phys_offset"][-2] for rows in rig.timers.units.log.scan()][-1:])
    arguments = (np.array([due_ms + 9]), lambda *_: None) if how == "move" else ()
    decided = getattr(PendingTimers(rig.timers), how)(offsets, *arguments)
    assert decided.verdicts.tolist() == [Verdict.DONE]
    assert rig.persist()
    rig.kill()
    rig.open()
    assert rig.timers.counts.total == FAR_COUNT + (how == "move")
    assert not rig.timers.decisions.is_pending(rig.timers.records.read(offsets)).any()
    rig.advance(50_000)
    assert rig.timers.state.rebuilds == 0
    expected = [b"near", *(b"far %d" % n for n in range(FAR_COUNT) if n != 3)]
    assert sorted(rig.bodies()) == sorted([*expected, *([] if how == "cancel" else [b"far 3"])])
    rig.close()


def test_far_timers_are_found_after_each_restart_with_delayed_deliveries(tmp_path: Path) -> None:
    """The first run rolls timers through windows that the next ones have not loaded yet."""
    rig = TimerRig(tmp_path, roll_window_slots=10, stop_dequeue=True).open()
    now_ms = rig.clock.now_ms()
    far = rig.put(now_ms + 200_000, body=b"far").rows["phys_offset"][:1].copy()
    rig.put_many([(now_ms + n * 1_000, "T", 0, b"near") for n in range(1, 50)])
    rig.advance(60_000)
    assert rig.persist()
    rig.config = replace(rig.config, stage_records_max=35)
    for _ in range(3):
        rig.kill()
        rig.open()
        assert rig.timers.position.staged_ms < now_ms + 40_000
        assert rig.timers.decisions.is_pending(rig.timers.records.read(far)).all()
    other = rig.put(now_ms + 200_000, body=b"other").rows["phys_offset"][:1].copy()
    decided = rig.timers.decisions.cancel(np.concatenate([far, other]))
    assert decided.verdicts.tolist() == [Verdict.DONE, Verdict.DONE]
    rig.kill()
    rig.config = replace(rig.config, stop_dequeue=False)
    rig.open()
    assert rig.timers.state.rebuilds == 0
    rig.advance(200_000)
    assert rig.bodies() == [b"near"] * 49
    rig.close()


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_refused_checkpoint_loses_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """`close` also checks that an Apache broker would find each pending timer once."""
    disk = Disk(monkeypatch, tmp_path)
    rig = TimerRig(tmp_path, **SETTINGS).open()
    due_ms = send_near_and_far(rig)
    roll_before_the_near_timer(rig)
    disk.full = ("timerwheel",)
    assert not rig.persist()
    disk.full = ()
    assert rig.persist()
    getattr(rig, end)()
    rig.open()
    assert rig.notices == []  # the wheel needs no rebuild
    assert_each_is_delivered_once(rig, due_ms)
    rig.close()
