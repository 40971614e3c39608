"""The last unit of the timer log, from which an Apache broker continues in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from duemq_common.topics import TIMER_TOPIC
from tests.support.timer_rig import TimerRig
from timer_store import layout
from timer_store.names import TIMER_QUEUE


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    yield rig
    if rig.is_open:
        rig.close()


def units(rig: TimerRig) -> npt.NDArray[np.void]:
    return np.concatenate([rows.copy() for rows in rig.timers.units.log.scan()])


def last_in_queue(rig: TimerRig) -> int:
    return rig.delivered(TIMER_TOPIC, TIMER_QUEUE)[-1].phys_offset


@pytest.mark.parametrize("count", [1, 48, 49, 50])
def test_the_last_unit_refers_to_the_last_record_after_rolls(rig: TimerRig, count: int) -> None:
    due_ms = rig.clock.now_ms() + 45_000
    rig.put_many([(due_ms - n * 1_000, "T", 0, b"%d" % n) for n in range(count)])
    rig.advance(21_500)
    waiting = rig.timers.counts.total
    assert rig.persist(last=True)
    last = units(rig)[-1]
    assert last["phys_offset"] == last_in_queue(rig)
    rolling_marker = layout.MAGIC_ROLL | layout.MAGIC_DELETE
    assert last["magic"] & rolling_marker != rolling_marker, "Apache would put its record on"
    rig.close()
    rig.open()
    assert rig.notices == []
    assert rig.timers.counts.total == waiting
    rig.advance(30_000)
    assert sorted(map(int, rig.bodies())) == list(range(count))


def test_a_correct_log_end_is_kept(rig: TimerRig) -> None:
    rig.put_many([(rig.clock.now_ms() + 5_000 + n, "T", 0, b"x") for n in range(5)])
    assert rig.persist(last=True)
    assert rig.persist(last=True)
    assert units(rig).size == 5


def test_an_empty_store_gets_no_unit(rig: TimerRig) -> None:
    assert rig.persist(last=True)
    assert rig.timers.units.log.end == 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_timer_in_the_slot_of_that_unit_stays_pending(rig: TimerRig, killed: bool) -> None:
    """The unit refers to the timer's record and is settled, but the timer is not."""
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + 13_000, "T", 0, b"rolls"), (now_ms + 3_500, "T", 0, b"last")])
    rig.advance(1_500)  # the first timer rolled: its unit follows that of the last record
    assert rig.persist(last=True)
    waits, mark = (unit for unit in units(rig) if unit["phys_offset"] == last_in_queue(rig))
    assert waits["slot_ms"] // 1_000 == mark["slot_ms"] // 1_000, "both in one slot"
    if killed:
        rig.kill()
    else:
        rig.close()
    rig.open()
    assert rig.notices == []
    rig.advance(20_000)
    assert rig.bodies() == [b"last", b"rolls"]
    assert rig.timers.state.rebuilds == 0, "nothing was missing in its slot"
