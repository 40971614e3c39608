"""Long outages, long delays and stopped stages: each timer is delivered once, in due order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from delivery.pending import Verdict
from tests.support.failing_disk import Disk
from tests.support.timer_rig import TimerRig

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


@pytest.fixture
def rig(tmp_path: Path):
    rig = TimerRig(tmp_path, stage_records_max=64, batch_records_max=10).open()
    yield rig
    if rig.is_open:
        rig.close()


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("away_ms", [7 * DAY_MS, 15 * DAY_MS, YEAR_MS])
def test_an_outage_delivers_everything_once_in_due_order(rig, end, away_ms):
    """More timers are overdue than the stage holds, and new ones are put meanwhile."""
    start_ms = rig.clock.now_ms()
    due = [start_ms + 1 + n * 7_000_003 % (3 * DAY_MS) for n in range(300)]
    due += [start_ms + 5_000] * 100
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    rig.advance(1_000)
    assert rig.persist()
    getattr(rig, end)()
    rig.clock.advance(away_ms)
    rig.work = lambda: None  # deliver nothing yet
    rig.open()
    now_ms = rig.clock.now_ms()
    soon = [now_ms + 1 + 13 * n for n in range(50)]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in soon])
    rig.timers.turn(now_ms)
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in soon])
    del rig.work
    rig.work()
    assert sorted(map(int, rig.bodies())) == sorted(d for d in due if d <= now_ms)
    assert all(a <= b for a, b in pairwise(map(int, rig.bodies())))
    rig.advance(3 * DAY_MS)
    assert [int(body) for body in rig.bodies()] == sorted(due + soon + soon)
    assert all(record.store_ms >= int(record.body) for record in rig.delivered())
    assert rig.timers.counts.total == 0


def test_a_stopped_delivery_for_more_than_a_lap_loses_nothing(tmp_path):
    """Slots of the previous lap are kept: nothing overwrites them."""
    rig = TimerRig(tmp_path, precision_ms=100, stop_dequeue=True, max_delay_s=10**8).open()
    start_ms = rig.clock.now_ms()
    due = [start_ms + n * 3_600_000 for n in range(1, 100)]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    later = []
    for _ in range(10):  # a lap has 33.6 hours
        rig.clock.advance(8 * 3_600_000)
        rig.work()
        later.append(rig.clock.now_ms() + 500)
        rig.put(later[-1], body=b"%d" % later[-1])
    rig.persist()
    rig.kill()
    rig.open()
    assert rig.bodies() == []
    rig.timers.reconfigure(type(rig.config)(precision_ms=100, log_file_bytes=2_600))
    rig.advance(60_000)
    rig.advance(100 * 3_600_000)
    assert sorted(map(int, rig.bodies())) == sorted(due + later)
    assert rig.timers.counts.total == 0
    rig.close()


@pytest.mark.parametrize(("precision_ms", "part_ms"), [(100, YEAR_MS // 10), (1_000, YEAR_MS)])
def test_delays_of_years(tmp_path, precision_ms, part_ms):
    rig = TimerRig(tmp_path, precision_ms=precision_ms, max_delay_s=10**9).open()
    due_ms = rig.clock.now_ms() + 3 * part_ms + 4_321
    rig.put(due_ms)
    rig.advance(part_ms)
    rig.close()
    rig.clock.advance(part_ms)
    rig.open()
    rig.advance(due_ms - 1 - rig.clock.now_ms())
    assert rig.bodies() == []
    rig.advance(1)
    assert [record.store_ms for record in rig.delivered()] == [due_ms]
    rig.close()


def test_a_clock_that_was_ahead_delays_nothing(rig):
    rig.clock.advance(YEAR_MS)
    rig.put(rig.clock.now_ms() + 10, body=b"far")
    rig.advance(1_000)
    rig.clock.advance(-YEAR_MS)
    due_ms = rig.clock.now_ms() + 5_000
    rig.put(due_ms, body=b"1")
    rig.advance(4_999)
    assert rig.bodies() == [b"far"]
    rig.advance(1)
    rig.put(rig.clock.now_ms() + 300, body=b"2")
    rig.advance(300)
    assert rig.bodies() == [b"far", b"1", b"2"]
    assert rig.timers.counts.total == 0


def test_a_full_timer_log_during_rolls(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, tmp_path)
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    now_ms = rig.clock.now_ms()
    far = [now_ms + 20_000 + n for n in range(100)]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in far])
    rig.put_many([(now_ms + 12_000, "T", 0, b"near")])
    disk.full = ("timerlog",)
    rig.advance(15_000)
    disk.full = ()
    rig.advance(1_000)
    assert rig.bodies()[0] == b"near"
    rig.advance(far[0] - 1 - rig.clock.now_ms())
    assert rig.bodies() == [b"near"]
    rig.advance(1_000)
    assert [int(body) for body in rig.bodies()[1:]] == far
    assert [record.store_ms for record in rig.delivered()[1:]] == far
    assert rig.timers.counts.total == 0
    rig.close()


def test_a_damaged_chain_is_rebuilt_while_running(rig):
    """Zeros in the timer log of a running broker: nothing is lost or duplicated."""
    now_ms = rig.clock.now_ms()
    due = [now_ms + 100 + 20 * n for n in range(200)]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    rig.advance(1_000)
    assert rig.persist()
    for file in rig.timers.units.log.files[1:]:
        file.write(0, bytes(52 * 20))
    rig.advance(2_000)
    rig.put(rig.clock.now_ms() + 9_000, body=b"%d" % (now_ms + 12_000))
    rig.kill()
    rig.open()
    rig.advance(20_000)
    assert [int(body) for body in rig.bodies()] == [*due, now_ms + 12_000]
    assert rig.timers.counts.total == 0


@pytest.mark.parametrize("killed", [False, True], ids=["lives on", "killed"])
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_cancel_during_a_roll(tmp_path, monkeypatch, checkpoints, killed):
    """Half of the slot's timers have a second unit in the next slot: both are settled."""
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    far = [rig.clock.now_ms() + 20_000 + n for n in range(60)]
    batch = rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in far])
    offsets = batch.filled["phys_offset"].copy()
    add, taken = rig.timers.units.add, []

    def half(rows, **times):
        if rows.size < 10:
            return add(rows, **times)
        if taken:
            return 0
        taken.append(add(rows[: rows.size // 2], **times))
        return taken[0]

    monkeypatch.setattr(rig.timers.units, "add", half)
    rig.advance(9_990)
    assert 0 < taken[0] < len(far), "the roll is in the middle"
    gone = [0, 1, taken[0] - 1, taken[0], 59]
    decided = rig.timers.decisions.cancel(offsets[gone])
    assert decided.verdicts.tolist() == [Verdict.DONE] * len(gone)
    for _ in range(checkpoints):
        rig.put(rig.clock.now_ms() + 50_000, "U")
        rig.work()
        assert rig.persist()
    monkeypatch.undo()
    if killed:
        rig.kill()
        rig.open()
    rig.advance(30_000)
    assert [int(body) for body in rig.bodies()] == [d for n, d in enumerate(far) if n not in gone]
    assert rig.timers.counts.by_topic().get("T", 0) == 0
    rig.close()


def test_a_clock_step_back_prolongs_no_pause(rig):
    """Refused deliveries are retried soon, also after the clock was set back by an hour."""
    due_ms = rig.clock.now_ms() + 1_000
    rig.put_many([(due_ms, "T", 0, b"%d" % n) for n in range(30)])
    rig.store.gate.refusal = "the disk is full"
    rig.advance(10_000_000)
    rig.store.gate.refusal = ""
    rig.clock.advance(-7_200_000)
    rig.advance(100)
    assert len(rig.bodies()) == 30
