"""Long outages, long delays and stopped stages: each timer is delivered once, in due order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from delayed_delivery.pending import Verdict
from tests.support.extended import one_in
from tests.support.failing_disk import Disk
from tests.support.timer_rig import TimerRig
from timer_store.config import TimerConfig

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
HOUR_MS = 3_600_000
WINDOW_SLOTS = 300


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, stage_records_max=64, batch_records_max=10).open()
    yield rig
    if rig.is_open:
        rig.close()


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("away_ms", [7 * DAY_MS, 15 * DAY_MS, YEAR_MS])
def test_an_outage_delivers_everything_once_in_due_order(
    rig: TimerRig, end: str, away_ms: int
) -> None:
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


def test_a_stopped_delivery_for_more_than_a_lap_loses_nothing(tmp_path: Path) -> None:
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
def test_delays_of_years(tmp_path: Path, precision_ms: int, part_ms: int) -> None:
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


def test_a_clock_that_was_ahead_delays_nothing(rig: TimerRig) -> None:
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


def test_a_full_timer_log_during_rolls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_damaged_chain_is_rebuilt_while_running(rig: TimerRig) -> None:
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


@pytest.mark.sampled
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_cancel_during_a_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: int, killed: bool
) -> None:
    """Half of the slot's timers have a second unit in the next slot: both are settled."""
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    far = [rig.clock.now_ms() + 20_000 + n for n in range(60)]
    batch = rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in far])
    offsets = batch.filled["phys_offset"].copy()
    add, taken = rig.timers.units.add, list[Any]()

    def half(rows: npt.NDArray[np.void], **times: int) -> int:
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


def test_a_clock_step_back_prolongs_no_pause(rig: TimerRig) -> None:
    """Refused deliveries are retried soon, also after the clock was set back by an hour."""
    due_ms = rig.clock.now_ms() + 1_000
    rig.put_many([(due_ms, "T", 0, b"%d" % n) for n in range(30)])
    rig.store.gate.refusal = "the disk is full"
    rig.clock.advance(10_000_000)
    rig.advance(1_000)
    rig.store.gate.refusal = ""
    rig.clock.advance(-7_200_000)
    rig.advance(100)
    assert len(rig.bodies()) == 30


@pytest.mark.sampled
@pytest.mark.parametrize("step_ms", [HOUR_MS, 3 * DAY_MS])
@pytest.mark.parametrize("when", ["running", "killed"])
def test_a_kill_after_the_clock_passed_several_windows_rebuilds_nothing(
    tmp_path: Path, step_ms: int, when: str
) -> None:
    """A timer was rolled through many windows while an earlier one was not delivered yet."""
    rig = TimerRig(tmp_path, roll_window_slots=WINDOW_SLOTS, max_delay_s=10**8).open()
    now_ms = rig.clock.now_ms()
    due = [now_ms + 400_000, now_ms + step_ms - 500, now_ms + step_ms + 10_000]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    rig.persist()
    if when == "killed":
        rig.kill()
    rig.clock.advance(step_ms)
    if when == "killed":
        rig.open()  # writes a checkpoint before the first delivery
    else:
        rig.timers.dequeue.load(rig.clock.now_ms())
        rig.persist()
    rig.advance(1_000)
    assert len(rig.bodies()) == 2
    for _ in range(2):
        rig.kill()
        rig.open()
        assert (rig.notices, rig.timers.counts.total, len(rig.bodies())) == ([], 1, 2)
    rig.advance(20_000)
    assert [int(body) for body in rig.bodies()] == due
    rig.close()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("ends", "how", "which"),
    one_in(2, product([False, True], ["cancel", "fire", "move"], [0, 1, 2])),
)
def test_a_decision_while_delivery_has_stopped_for_several_windows(
    tmp_path: Path, which: int, how: str, ends: bool
) -> None:
    """Slots are loaded, although the first timer is not delivered: a later one is still found."""
    config = {"roll_window_slots": WINDOW_SLOTS, "max_delay_s": 10**6}
    rig = TimerRig(tmp_path, stop_dequeue=True, **config).open()
    start_ms = rig.clock.now_ms()
    due = [start_ms + 10_000, start_ms + HOUR_MS, start_ms + 3 * HOUR_MS]
    rows = rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due]).rows[:3]
    rig.advance(2 * HOUR_MS)
    offset = np.array([rows[which]["phys_offset"]])
    decisions = rig.timers.decisions
    if how == "move":
        decided = decisions.move(offset, np.array([rig.clock.now_ms() + 5_000]))
    else:
        decided = getattr(decisions, how)(offset)
    assert decided.verdicts.tolist() == [Verdict.DONE]
    if ends:
        rig.persist()
        rig.kill()
        rig.open()
    assert rig.notices == []
    assert rig.timers.counts.total == 2 + (how == "move")
    rig.timers.reconfigure(TimerConfig(log_file_bytes=2_600, **config))
    rig.advance(2 * HOUR_MS)
    left = [at for at in range(3) if at != which or how != "cancel"]
    assert sorted(map(int, rig.bodies())) == sorted(due[at] for at in left)
    assert rig.timers.counts.total == 0
    rig.close()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("slots", "step_ms", "end", "when"),
    one_in(
        4,
        product(
            [{}, {"precision_ms": 100, "roll_window_slots": 60}],
            [HOUR_MS, -HOUR_MS],
            ["close", "kill"],
            ["running", "running, loaded", "closed"],
        ),
    ),
)
def test_a_start_after_a_clock_step_recovers_from_the_checkpoint(
    tmp_path: Path, slots: dict[str, int], step_ms: int, end: str, when: str
) -> None:
    """The clock is set by an hour: nothing is early, lost, repeated, or enqueued again."""
    rig = TimerRig(tmp_path, batch_records_max=3, **slots).open()
    begin_ms = rig.clock.now_ms()
    due = [begin_ms + ms for ms in (1_000, 1_500, 10_000, 400_000, HOUR_MS, 2 * HOUR_MS) * 3]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    rig.advance(1_200)
    rig.persist()
    for _ in range(2):
        if when == "closed":
            getattr(rig, end)()
        rig.clock.set_ms(rig.clock.now_ms() + step_ms)
        if when == "running, loaded":
            rig.timers.dequeue.load(rig.clock.now_ms())
            rig.persist()
        if not rig.is_open:
            rig.open()
        rig.put(begin_ms + 900_000, body=b"%d" % (begin_ms + 900_000))
        due.append(begin_ms + 900_000)
        rig.work()
        for _ in range(2):
            if rig.is_open:
                getattr(rig, end)()
            rig.open()
            assert rig.notices == []
    rig.advance(5 * HOUR_MS)
    assert sorted(map(int, rig.bodies())) == sorted(due)
    assert all(record.store_ms >= int(record.body) for record in rig.delivered())
    rig.close()


def test_a_damaged_timer_log_is_still_rebuilt_after_a_clock_step(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, precision_ms=100, roll_window_slots=60).open()
    due = [rig.clock.now_ms() + ms for ms in (10_000, HOUR_MS - 500, HOUR_MS + 20_000)]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    rig.clock.advance(HOUR_MS)
    rig.timers.dequeue.load(rig.clock.now_ms())
    rig.persist()
    rig.work()
    rig.kill()
    for path in (tmp_path / "timerlog").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    rig.open()
    assert any("rebuilt" in text for text in rig.notices)
    rig.advance(30_000)
    assert [int(body) for body in rig.bodies()] == due
    rig.is_sound = False
    rig.close()


def test_rolls_blocked_by_an_earlier_lap_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = TimerRig(tmp_path, max_delay_s=200 * 86_400).open()
    start_ms = rig.clock.now_ms()
    due = [start_ms + n * DAY_MS // 8 for n in range(1, 1_000)]
    rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    assert rig.persist()
    rig.kill()
    rig.clock.advance(90 * DAY_MS)
    rig.open()
    rig.advance(1_000)
    assert sorted(map(int, rig.bodies())) == [d for d in due if d <= rig.clock.now_ms()]
    notices = [r.message for r in caplog.records if "rolled later" in r.message]
    assert len(notices) == 1
    rig.close()
