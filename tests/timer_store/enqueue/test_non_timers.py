"""Markers of clients are applied in bounded turns; those of decisions need none."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayed_delivery.pending import Verdict
from tests.support.timer_rig import TimerRig
from timer_store.enqueue.non_timers import MARKERS_MAX

COUNT = 300


@pytest.mark.finding("3S7")
def test_the_markers_of_a_large_batch_are_applied_in_several_turns(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path).open()
    due_ms = rig.clock.now_ms() + 10_000
    rig.put(due_ms, UNIQ_KEY="U1", body=b"cancelled")
    rig.put(due_ms, UNIQ_KEY="U2", body=b"kept")
    rig.work()
    settle, settled = rig.timers.non_timers.settle, []

    def counted(now_ms: int) -> int:
        settled.append(settle(now_ms))
        return settled[-1]

    rig.timers.non_timers.settle = counted
    markers = [(due_ms, "T", 0, b"0")] * (2 * MARKERS_MAX + 1)
    rig.put_many(markers, UNIQ_KEY="U1", TIMER_DEL_UNIQKEY="T+U1")
    rig.advance(20_000)
    assert settled == [MARKERS_MAX, MARKERS_MAX, 1]
    assert rig.bodies() == [b"kept"]
    rig.close()


def test_the_markers_of_decisions_need_no_turn(tmp_path: Path) -> None:
    """A bulk decision puts hundreds of thousands, before which no checkpoint could be written."""
    rig = TimerRig(tmp_path).open()
    due_ms = rig.clock.now_ms() + 10_000
    batch = rig.put_many([(due_ms, "T", 0, b"0")] * COUNT)
    rig.work()
    assert rig.persist()
    decided = rig.timers.decisions.cancel(batch.filled["phys_offset"].copy())
    assert (decided.verdicts == Verdict.DONE).all()
    assert not rig.timers.enqueue.lag_units
    assert not rig.timers.enqueue.needs_turn
    assert rig.persist()
    assert len(rig.timers.settled_timers) == 0
    rig.advance(20_000)
    assert rig.bodies() == []
    rig.close()
