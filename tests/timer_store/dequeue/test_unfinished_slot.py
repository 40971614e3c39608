"""A store that is closed in the middle of a second: who opens it next delivers nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.support.timer_rig import TimerRig, assert_each_once_for_apache, waiting_units

NO_PLACES = np.empty(0, np.int64)


@pytest.fixture
def rig(tmp_path: Path):
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    yield rig
    if rig.is_open:
        rig.close()


def put(rig: TimerRig, *delays_ms: int) -> None:
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + delay_ms, "T", 0, b"%d" % delay_ms) for delay_ms in delays_ms])


def came(rig: TimerRig) -> list[int]:
    return sorted(map(int, rig.bodies()))


DELAYS_MS = tuple(range(2_050, 3_000, 100))


@pytest.mark.parametrize("after_ms", [2_000, 2_050, 2_500, 2_950, 3_000])
def test_what_was_delivered_of_a_second_is_settled_in_it(rig, after_ms):
    put(rig, *DELAYS_MS)
    rig.advance(after_ms)
    left = sum(delay_ms > after_ms for delay_ms in DELAYS_MS)
    assert rig.timers.counts.total == left
    rig.close()  # asserts what an Apache broker finds
    rig.open()
    assert rig.notices == []
    assert rig.timers.counts.total == left
    rig.advance(2_000)
    assert came(rig) == list(DELAYS_MS)
    assert rig.timers.state.rebuilds == 0


def test_a_slot_of_which_a_part_is_loaded(tmp_path):
    rig = TimerRig(tmp_path, stage_records_max=4).open()
    put(rig, *DELAYS_MS)
    rig.advance(2_250)
    assert rig.timers.position.part is not None
    assert 0 < rig.timers.counts.total < len(DELAYS_MS)
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert came(rig) == list(DELAYS_MS)
    assert rig.notices == []
    rig.close()


def test_what_was_overdue_when_it_was_put(rig):
    """It waits in the slot that is read, whatever its time says."""
    put(rig, 2_900)
    rig.advance(2_100)
    put(rig, 5, 200)
    rig.advance(100)
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert sorted(came(rig)) == [5, 200, 2_900]


@pytest.mark.parametrize("after_ms", range(1_000, 13_000, 500))
def test_timers_that_were_put_on_in_that_second(rig, after_ms):
    """The window is 10 slots: what is due later is put on from a slot inside of it."""
    delays_ms = list(range(2_050, 25_000, 300))
    put(rig, *delays_ms)
    rig.advance(after_ms)
    rig.close()
    rig.open()
    rig.advance(25_000)
    assert came(rig) == delays_ms
    assert rig.notices == []


def test_cancelled_and_fired_ones_are_taken_off_once(rig):
    put(rig, *DELAYS_MS)
    at = np.array([record.phys_offset for record in rig.delivered("rmq_sys_wheel_timer")])
    rig.advance(2_100)
    rig.timers.decisions.cancel(at[[3, 8]])
    rig.timers.decisions.fire(at[[4, 9]])
    rig.timers.decisions.move(at[[5]], np.array([rig.clock.now_ms() + 5_000]))
    rig.advance(400)
    rig.close()
    rig.open()
    rig.advance(10_000)
    wanted = [delay_ms for n, delay_ms in enumerate(DELAYS_MS) if n not in (3, 8)]
    assert came(rig) == wanted
    assert rig.notices == []


def test_a_checkpoint_that_is_being_written_when_the_end_comes(rig):
    async def both() -> list[bool]:
        return await asyncio.gather(rig.keeper.persist(), rig.keeper.leave())

    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    assert asyncio.run(both()) == [True, True]
    assert_each_once_for_apache(rig.timers)


def test_a_kill_between_that_checkpoint_and_the_next_start(rig):
    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    assert rig.persist(last=True)
    rig.kill()
    rig.open()
    assert rig.notices == []
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert came(rig) == list(DELAYS_MS)


@pytest.mark.parametrize("after_ms", range(1_000, 13_000, 500))
@pytest.mark.parametrize("end", ["persist", "between", "late"])
def test_a_kill_while_others_were_rolled_rebuilds_nothing(rig, after_ms, end, monkeypatch):
    """Units that were put on get tombstones a checkpoint later, and are not counted until then."""
    delays_ms = list(range(2_050, 25_000, 300))
    put(rig, *delays_ms)
    rig.advance(after_ms)
    if end == "between":  # the two checkpoints of the end
        with monkeypatch.context() as patch:
            patch.setattr(rig.timers.dequeue, "take_passed", lambda: NO_PLACES)
            assert asyncio.run(rig.keeper.leave())
    else:
        assert rig.persist()
    if end == "late":
        rig.advance(700)
    rig.kill()
    rig.open()
    assert rig.notices == []
    rig.advance(25_000)
    assert came(rig) == delays_ms
    assert rig.timers.state.rebuilds == 0


def test_without_it_an_apache_broker_would_find_them(rig):
    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    assert rig.persist(last=True)
    with pytest.raises(AssertionError, match="what has left"):
        assert_each_once_for_apache(rig.timers)


def test_a_turn_that_was_cut_short_changes_no_unit(rig, monkeypatch, caplog):
    """What was taken for delivery and did not leave is neither staged nor delivered."""

    def fail(*_):
        raise MemoryError

    put(rig, *DELAYS_MS)
    rig.advance(2_250)
    left = rig.timers.counts.total
    with monkeypatch.context() as patch:
        patch.setattr(rig.timers.deliverer, "deliver_batch", fail)
        with pytest.raises(MemoryError):
            rig.advance(400)
    assert asyncio.run(rig.keeper.leave())
    assert "the last second again" in caplog.text
    assert waiting_units(rig.timers).size == len(DELAYS_MS) > left
    rig.kill()
    rig.open()
    rig.advance(2_000)
    assert came(rig) == list(DELAYS_MS)


def test_a_large_slot_is_looked_at_in_parts(rig, monkeypatch):
    monkeypatch.setattr("timer_store.log.units.PART_UNITS", 3)
    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert came(rig) == list(DELAYS_MS)
    assert rig.notices == []
