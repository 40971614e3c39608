"""A store closed in the middle of a slot: the next opener delivers nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.extended import one_in
from tests.support.inline_loop import run_inline
from tests.support.timer_rig import TimerRig, assert_each_once_for_apache, pending_unit_records

NO_UNITS = np.empty((2, 0), np.int64)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    yield rig
    if rig.is_open:
        rig.close()


def put(rig: TimerRig, *delays_ms: int) -> None:
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + delay_ms, "T", 0, b"%d" % delay_ms) for delay_ms in delays_ms])


def delivered(rig: TimerRig) -> list[int]:
    return sorted(map(int, rig.bodies()))


DELAYS_MS = tuple(range(2_050, 3_000, 100))


@pytest.mark.parametrize("after_ms", [2_000, 2_050, 2_500, 2_950, 3_000])
def test_delivered_timers_of_a_slot_are_settled(rig: TimerRig, after_ms: int) -> None:
    put(rig, *DELAYS_MS)
    rig.advance(after_ms)
    left = sum(delay_ms > after_ms for delay_ms in DELAYS_MS)
    assert rig.timers.counts.total == left
    rig.close()  # checks what an Apache broker would find
    rig.open()
    assert rig.notices == []
    assert rig.timers.counts.total == left
    rig.advance(2_000)
    assert delivered(rig) == list(DELAYS_MS)
    assert rig.timers.state.rebuilds == 0


def test_a_partly_loaded_slot(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, stage_records_max=4).open()
    put(rig, *DELAYS_MS)
    rig.advance(2_250)
    assert rig.timers.position.part is not None
    assert 0 < rig.timers.counts.total < len(DELAYS_MS)
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert delivered(rig) == list(DELAYS_MS)
    assert rig.notices == []
    rig.close()


def test_a_timer_that_was_overdue_at_the_put(rig: TimerRig) -> None:
    """It is in the slot being read, although its due time is earlier."""
    put(rig, 2_900)
    rig.advance(2_100)
    put(rig, 5, 200)
    rig.advance(100)
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert sorted(delivered(rig)) == [5, 200, 2_900]


@pytest.mark.sampled
@pytest.mark.parametrize("after_ms", range(1_000, 13_000, 500))
def test_timers_that_rolled_in_the_slot(rig: TimerRig, after_ms: int) -> None:
    """The window is 10 slots: later timers roll from a slot inside the window."""
    delays_ms = list(range(2_050, 25_000, 300))
    put(rig, *delays_ms)
    rig.advance(after_ms)
    rig.close()
    rig.open()
    rig.advance(25_000)
    assert delivered(rig) == delays_ms
    assert rig.notices == []


def test_cancelled_and_fired_timers_are_counted_once(rig: TimerRig) -> None:
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
    expected = [delay_ms for n, delay_ms in enumerate(DELAYS_MS) if n not in (3, 8)]
    assert delivered(rig) == expected
    assert rig.notices == []


def test_closing_while_a_checkpoint_is_written(rig: TimerRig) -> None:
    async def both() -> tuple[bool, bool]:
        return await asyncio.gather(rig.keeper.persist(), rig.keeper.persist_last())

    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    assert run_inline(both()) == [True, True]  # type: ignore[comparison-overlap]
    assert_each_once_for_apache(rig.timers)


def test_a_kill_after_that_checkpoint(rig: TimerRig) -> None:
    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    assert rig.persist(last=True)
    rig.kill()
    rig.open()
    assert rig.notices == []
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert delivered(rig) == list(DELAYS_MS)


@pytest.mark.sampled
@pytest.mark.parametrize("after_ms", one_in(4, range(1_000, 13_000, 500)))
@pytest.mark.parametrize("end", ["persist", "between", "late"])
def test_a_kill_while_timers_rolled_needs_no_rebuild(
    rig: TimerRig, after_ms: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolled units get tombstones at the next checkpoint, and are not counted until then."""
    delays_ms = list(range(2_050, 25_000, 300))
    put(rig, *delays_ms)
    rig.advance(after_ms)
    if end == "between":  # the two checkpoints at the end
        with monkeypatch.context() as patch:
            patch.setattr(rig.timers.dequeue, "take_rolled_units", lambda: NO_UNITS)
            assert run_inline(rig.keeper.persist_last())
    else:
        assert rig.persist()
    if end == "late":
        rig.advance(700)
    rig.kill()
    rig.open()
    assert rig.notices == []
    rig.advance(25_000)
    assert delivered(rig) == delays_ms
    assert rig.timers.state.rebuilds == 0


def test_without_settling_apache_would_deliver_them_again(rig: TimerRig) -> None:
    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    assert rig.persist(last=True)
    with pytest.raises(AssertionError, match="what has left"):
        assert_each_once_for_apache(rig.timers)


def test_an_interrupted_turn_changes_no_unit(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Timers taken for delivery but not delivered are neither staged nor settled."""

    def fail(*_: npt.NDArray[np.void] | int) -> None:
        raise MemoryError

    put(rig, *DELAYS_MS)
    rig.advance(2_250)
    left = rig.timers.counts.total
    with monkeypatch.context() as patch:
        patch.setattr(rig.timers.deliverer, "deliver_batch", fail)
        with pytest.raises(MemoryError):
            rig.advance(400)
    assert run_inline(rig.keeper.persist_last())
    assert "the last second again" in caplog.text
    assert pending_unit_records(rig.timers).size == len(DELAYS_MS) > left
    rig.kill()
    rig.open()
    rig.advance(2_000)
    assert delivered(rig) == list(DELAYS_MS)


def test_a_large_slot_is_settled_in_parts(rig: TimerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timer_store.log.units.PART_UNITS", 3)
    put(rig, *DELAYS_MS)
    rig.advance(2_500)
    rig.close()
    rig.open()
    rig.advance(2_000)
    assert delivered(rig) == list(DELAYS_MS)
    assert rig.notices == []
