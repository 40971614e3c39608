"""Configuration timerRollMode=message: a long timer is appended again at each roll."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.failing_disk import Disk
from tests.support.synchronous import Synchronous
from tests.support.timer_rig import TimerRig
from timer_store.dequeue import dequeue_service as delivery
from timer_store.names import TIMER_QUEUE, TIMER_TOPIC
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
        turns: list[Any] = []
        while rig.timers.turn(rig.clock.now_ms()):
            turns.append(rig.timers.dequeue.rolled - sum(turns))
            assert sum(turns) <= 400, "a slot that is loaded again is rolled again"
        assert sum(turns) == 400
        assert max(turns) <= most
        assert rig.timers.counts.total == 400
        rig.advance(90_000)
        assert [record.store_ms for record in rig.delivered()] == due
        rig.close()
