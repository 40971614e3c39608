"""Markers of clients are applied in bounded turns; those of decisions need none."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.pending import Verdict
from tests.support.bad_records import damage
from tests.support.timer_rig import TimerRig
from timer_store.dequeue.dequeue_service import RETRY_MS
from timer_store.enqueue.non_timers import HELD_TURNS_MAX, MARKERS_MAX

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


def test_a_timer_that_is_due_is_delivered_after_the_markers_that_may_name_it(
    tmp_path: Path,
) -> None:
    """The last marker names it; the turns before apply markers that name nothing."""
    rig = TimerRig(tmp_path).open()
    due_ms = rig.clock.now_ms() + 10_000
    rig.put(due_ms, UNIQ_KEY="U1", body=b"cancelled")
    rig.put(due_ms, UNIQ_KEY="U2", body=b"kept")
    rig.work()
    rig.clock.advance(9_999)
    rig.put_many([(due_ms, "T", 0, b"0")] * MARKERS_MAX, UNIQ_KEY="U0", TIMER_DEL_UNIQKEY="T+U0")
    rig.put(due_ms, UNIQ_KEY="U1", TIMER_DEL_UNIQKEY="T+U1")
    rig.clock.advance(1)
    rig.work()
    assert rig.bodies() == [b"kept"]
    rig.close()


def test_more_markers_than_the_turns_apply_prevent_no_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TimerRig(tmp_path).open()
    due_ms = rig.clock.now_ms() + 10_000
    rig.put(due_ms, UNIQ_KEY="U1", body=b"kept")
    rig.work()
    monkeypatch.setattr("timer_store.enqueue.non_timers.MARKERS_MAX", 1)
    markers = [(due_ms, "T", 0, b"0")] * (2 * HELD_TURNS_MAX)
    rig.put_many(markers, UNIQ_KEY="U0", TIMER_DEL_UNIQKEY="T+U0")
    rig.clock.advance(10_000)
    turns = 0
    while not rig.bodies():
        assert rig.timers.turn(rig.clock.now_ms())
        turns += 1
    assert turns == HELD_TURNS_MAX
    assert rig.timers.enqueue.markers
    rig.advance(20_000)
    assert not rig.timers.enqueue.markers
    rig.close()


def test_a_timer_that_was_due_before_the_markers_does_not_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TimerRig(tmp_path).open()
    due_ms = rig.clock.now_ms() + 10_000
    rig.put(due_ms, UNIQ_KEY="U1", body=b"kept")
    rig.work()
    monkeypatch.setattr("timer_store.enqueue.non_timers.MARKERS_MAX", 1)
    rig.clock.advance(10_001)
    markers = [(due_ms + 10_000, "T", 0, b"0")] * 8
    rig.put_many(markers, UNIQ_KEY="U0", TIMER_DEL_UNIQKEY="T+U0")
    assert rig.timers.turn(rig.clock.now_ms())
    assert rig.bodies() == [b"kept"]
    assert rig.timers.enqueue.markers
    rig.advance(20_000)
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


def test_a_cancel_is_applied_later_if_no_file_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a refusal is not one of the whole store, and no timer is delivered before the cancel."""
    rig = TimerRig(tmp_path).open()
    due_ms = rig.clock.now_ms() + 10_000
    for name in ("U1", "U2"):
        rig.put(due_ms, UNIQ_KEY=name, body=name.encode())
    rig.work()
    append, refused = rig.store.appender.append, list[int]()

    def out_of_descriptors(*args: Any) -> int:
        if len(refused) < 2 and rig.timers.enqueue.markers:
            refused.append(rig.clock.now_ms())
            raise OSError(errno.EMFILE, "Too many open files")
        return append(*args)

    monkeypatch.setattr(rig.store.appender, "append", out_of_descriptors)
    rig.put(due_ms, UNIQ_KEY="U1", TIMER_DEL_UNIQKEY="T+U1")
    rig.clock.advance(10_000)
    assert not rig.timers.turn(rig.clock.now_ms())
    assert (len(refused), rig.bodies(), rig.store.refusal) == (1, [], "")
    assert rig.timers.next_work_ms(rig.clock.now_ms()) == rig.clock.now_ms() + RETRY_MS
    assert not rig.persist()
    rig.advance(20_000)
    assert (len(refused), rig.bodies()) == (2, [b"U2"])
    assert rig.persist()
    rig.close()


def test_a_cancel_without_a_possible_record_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = TimerRig(tmp_path).open()
    due_ms = rig.clock.now_ms() + 10_000
    for name in ("U1", "U2", "U3"):
        rig.put(due_ms, UNIQ_KEY=name, body=name.encode() * 50)
    rig.work()
    damage(rig.store, 0, b"U1" * 50)
    for name in ("U1", "U2"):
        rig.put(due_ms, UNIQ_KEY=name, TIMER_DEL_UNIQKEY=f"T+{name}")
    rig.advance(20_000)
    assert rig.bodies() == [b"U3" * 50]
    assert "is not cancelled: its record in the commit log is damaged" in caplog.text
    rig.close()
