"""Cancel, move and fire: responses match what happens in races, restarts and on full disks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.pending import Verdict
from duemq_common.topics import TIMER_TOPIC
from tests.support.synchronous import Synchronous
from tests.support.timer_rig import TimerRig
from timer_store.dequeue.dequeue_service import RETRY_MS
from timer_store.pending.lookup import PendingTimers

DAY_MS = 86_400_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, max_delay_s=100 * 86_400).open()
    yield rig
    if rig.is_open:
        rig.close()


def put(rig: TimerRig, delay_ms: int, name: str, topic: str = "T", **extra: str) -> int:
    """Send a timer whose body and unique key are `name`; return its log offset."""
    due_ms = rig.clock.now_ms() + delay_ms
    batch = rig.put(due_ms, topic, body=name.encode(), UNIQ_KEY=name, **extra)
    return int(batch.rows[0]["phys_offset"])


def one(*offsets: int) -> Any:
    return np.array(offsets, np.int64)


def pending_timers(rig: TimerRig) -> Any:
    return Synchronous(PendingTimers(rig.timers))


def decide_on(rig: TimerRig, how: str, offsets: Any, later_ms: int) -> Any:
    if how == "move":
        times = np.full(offsets.size, rig.clock.now_ms() + later_ms)
        return pending_timers(rig).move(offsets, times, None)
    return getattr(pending_timers(rig), how)(offsets)


def restart(rig: TimerRig, end: str) -> None:
    if end == "none":
        return
    if end.startswith("persist"):
        rig.persist()
    getattr(rig, end.removeprefix("persist "))()
    rig.open()


ENDS = ["none", "close", "kill", "persist kill"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("delay_ms", [1, 1_000, 90_000, 5 * DAY_MS])
def test_a_cancelled_timer_is_never_delivered(rig: TimerRig, delay_ms: int, end: str) -> None:
    target, other = put(rig, delay_ms, "a"), put(rig, delay_ms, "b")
    assert pending_timers(rig).cancel(one(target)).verdicts.tolist() == [Verdict.DONE]
    assert rig.timers.counts.total == 1
    restart(rig, end)
    assert rig.timers.counts.total == 1
    assert pending_timers(rig).cancel(one(target)).verdicts.tolist() == [Verdict.DELIVERED]
    assert pending_timers(rig).by_offset(one(target)).verdicts.tolist() == [Verdict.CANCELLED]
    rig.advance(delay_ms + 2_000)
    assert rig.bodies() == [b"b"]
    assert pending_timers(rig).cancel(one(other)).verdicts.tolist() == [Verdict.DELIVERED]
    assert rig.timers.counts.total == 0


@pytest.mark.sampled
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("first_ms", "then_ms"),
    [(1, 2), (700, 701), (700, 60_000), (90_000, 2_500), (90_000, 9 * DAY_MS), (5 * DAY_MS, 2)],
)
def test_a_moved_timer_is_delivered_at_its_new_time_and_once(
    rig: TimerRig, first_ms: int, then_ms: int, end: str
) -> None:
    start_ms = rig.clock.now_ms()
    offset = put(rig, first_ms, "a", TAGS="blue", mine="kept")
    decided = pending_timers(rig).move(one(offset), one(start_ms + then_ms), None)
    assert decided.verdicts.tolist() == [Verdict.DONE]
    restart(rig, end)
    assert rig.timers.counts.total == 1
    found = pending_timers(rig).by_offset(one(offset))
    assert found.due_ms.tolist() == [start_ms + then_ms]
    rig.advance(then_ms - 1)
    assert rig.bodies() == []
    rig.advance(1)
    [record] = rig.delivered()
    assert record.store_ms == start_ms + then_ms
    assert (record.body, record.properties["TAGS"], record.properties["mine"]) == (
        b"a",
        "blue",
        "kept",
    )
    rig.advance(first_ms + 3_000)
    assert rig.bodies() == [b"a"]
    assert pending_timers(rig).by_offset(one(offset)).verdicts.tolist() == [Verdict.DELIVERED]


@pytest.mark.sampled
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("delay_ms", [1, 90_000, 5 * DAY_MS])
@pytest.mark.parametrize("how", ["fire", "move"])
def test_a_fired_timer_is_delivered_now_and_once(
    rig: TimerRig, delay_ms: int, how: str, end: str
) -> None:
    offset = put(rig, delay_ms, "a")
    decided = decide_on(rig, how, one(offset), 0)
    assert decided.verdicts.tolist() == [Verdict.DONE]
    assert rig.bodies() == [b"a"]
    restart(rig, end)
    assert rig.timers.counts.total == 0
    rig.advance(delay_ms + 2_000)
    assert rig.bodies() == [b"a"]
    assert pending_timers(rig).by_offset(one(offset)).verdicts.tolist() == [Verdict.DELIVERED]


def test_delivered_timers_and_other_messages_are_reported(rig: TimerRig) -> None:
    offset = put(rig, 5, "a")
    rig.advance(5)
    assert pending_timers(rig).cancel(one(offset)).verdicts.tolist() == [Verdict.DELIVERED]
    assert pending_timers(rig).fire(one(offset)).verdicts.tolist() == [Verdict.DELIVERED]
    assert pending_timers(rig).cancel(one(offset + 1, 1 << 40)).verdicts.tolist() == [
        Verdict.UNKNOWN,
        Verdict.UNKNOWN,
    ]
    assert rig.bodies() == [b"a"]


@pytest.mark.parametrize("decide", ["cancel", "fire", "move"])
def test_a_decision_in_the_millisecond_of_delivery(rig: TimerRig, decide: str) -> None:
    offsets = [put(rig, 50, f"{n}") for n in range(60)]
    rig.clock.advance(50)
    rig.timers.dequeue.config = rig.timers.config.__class__(
        batch_records_max=20, max_delay_s=100 * 86_400
    )
    rig.timers.turn(rig.clock.now_ms())  # 20 of them were delivered
    wanted = one(*offsets)
    decided = decide_on(rig, decide, wanted, 5_000)
    assert np.bincount(decided.verdicts).tolist() == [40, 0, 20]
    rig.work()
    assert len(rig.bodies()) == {"cancel": 20, "fire": 60, "move": 20}[decide]
    rig.advance(10_000)
    assert sorted(rig.bodies()) == sorted(
        b"%d" % n for n in range(20 if decide == "cancel" else 60)
    )


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["none", "kill", "persist kill"])
@pytest.mark.parametrize("decide", ["cancel", "fire", "move"])
def test_a_slot_loaded_in_parts(tmp_path: Path, decide: str, end: str) -> None:
    rig = TimerRig(tmp_path, stage_records_max=16, max_delay_s=100 * 86_400).open()
    offsets = [put(rig, 1_200 + n, f"{n}") for n in range(100)]
    rig.advance(900)
    assert 0 < len(rig.timers.stage) <= 16
    wanted = one(*offsets[::3])
    decided = decide_on(rig, decide, wanted, 5_000)
    assert (decided.verdicts == Verdict.DONE).all()
    restart(rig, end)
    rig.advance(10_000)
    rest = [n for n in range(100) if n % 3]
    expected = rest if decide == "cancel" else list(range(100))
    assert sorted(map(int, rig.bodies())) == expected
    assert rig.timers.counts.total == 0
    rig.close()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("decide", ["cancel", "fire", "move"])
def test_a_timer_that_is_not_in_the_wheel_yet(rig: TimerRig, decide: str, end: str) -> None:
    rig.timers.state.config = rig.timers.config.__class__(
        stop_enqueue=True, max_delay_s=100 * 86_400
    )
    offsets = [put(rig, 2_000, f"{n}") for n in range(4)]
    assert rig.timers.counts.total == 0
    wanted = one(*offsets[1:3])
    decided = decide_on(rig, decide, wanted, 4_000)
    assert decided.verdicts.tolist() == [Verdict.DONE] * 2
    again = pending_timers(rig).cancel(wanted)
    assert again.verdicts.tolist() == [Verdict.DELIVERED] * 2
    restart(rig, end)
    rig.timers.state.config = rig.config
    rig.advance(3_000)
    expected = {"cancel": [0, 3], "fire": [0, 1, 2, 3], "move": [0, 3]}[decide]
    assert sorted(map(int, rig.bodies())) == expected
    rig.advance(3_000)
    assert sorted(map(int, rig.bodies())) == ([0, 3] if decide == "cancel" else [0, 1, 2, 3])
    assert rig.timers.counts.total == 0


@pytest.mark.parametrize("decide", ["cancel", "fire", "move"])
def test_a_full_disk_changes_nothing(
    rig: TimerRig, decide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = put(rig, 3_000, "a")
    file = rig.store.log.writable_file()
    with monkeypatch.context() as patch:

        def full(at: int, data: Any) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        patch.setattr(type(file), "write", lambda self, at, data: full(at, data))
        decided = decide_on(rig, decide, one(offset), 9_000)
    assert decided.verdicts.tolist() == [Verdict.REFUSED]
    assert "disk is full" in decided.remarks[0]
    assert rig.timers.counts.total == 1
    rig.store.check_disk()
    rig.advance(3_000)
    assert rig.bodies() == [b"a"]


@pytest.mark.parametrize("decide", ["move", "fire"])
@pytest.mark.parametrize("keep", [0, 1])
def test_a_crash_between_the_deciding_record_and_its_marker(
    rig: TimerRig, decide: str, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only an Apache broker on this store would be affected."""
    offset = put(rig, 3_000, "a")
    rig.persist()
    puts: list[Any] = []
    real = rig.store.put

    def dying(batch: Any) -> None:
        puts.append(batch)
        if len(puts) > keep:
            raise KeyboardInterrupt
        real(batch)

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            decide_on(rig, decide, one(offset), 9_000)
    rig.kill()
    rig.open()
    rig.advance(2_000)
    assert rig.bodies() == ([b"a"] if keep and decide == "fire" else [])
    rig.advance(2_000)
    assert rig.bodies() == ([] if keep and decide == "move" else [b"a"])
    rig.advance(9_000)
    assert rig.bodies() == [b"a"]


def test_a_time_beyond_the_limit_is_refused_and_the_timer_stays(rig: TimerRig) -> None:
    offset = put(rig, 3_000, "a")
    decided = pending_timers(rig).move(one(offset), one(rig.clock.now_ms() + 101 * DAY_MS), None)
    assert decided.verdicts.tolist() == [Verdict.REFUSED]
    assert "timerMaxDelaySec" in decided.remarks[0]
    rig.advance(3_000)
    assert rig.bodies() == [b"a"]


def test_a_full_slot_refuses_moved_timers(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, slot_timers_max=3).open()
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + 5_001 + n, "T", 0, b"full") for n in range(2)])
    ours = np.array([put(rig, 9_001, name) for name in "012"])
    rig.work()
    decided = pending_timers(rig).move(ours, np.full(3, now_ms + 5_500), None)
    assert decided.verdicts.tolist() == [Verdict.DONE, Verdict.REFUSED, Verdict.REFUSED]
    assert "timerCongestNumEachSlot is 3" in decided.remarks[1]
    inside = pending_timers(rig).by_offset(ours[:1]).offsets
    assert pending_timers(rig).move(inside, one(now_ms + 5_400), None).verdicts.tolist() == [
        Verdict.DONE
    ]
    rig.advance(10_000)
    assert rig.bodies() == [b"full", b"full", b"0", b"1", b"2"]
    rig.close()


def test_a_moved_timer_is_found_by_all_its_records(rig: TimerRig) -> None:
    offset = put(rig, 60_000, "a")
    for step in range(5):
        found = pending_timers(rig).by_offset(one(offset))
        later = found.due_ms + 1_000 * (step + 1)
        assert pending_timers(rig).move(found.offsets, later, None).verdicts.tolist() == [
            Verdict.DONE
        ]
    rig.close()
    rig.open()
    found = pending_timers(rig).by_key("T", ["a", "absent"], unique=True)
    assert (found.name_index.tolist(), found.verdicts.tolist()) == (
        [0],
        [Verdict.DONE, Verdict.UNKNOWN],
    )
    assert pending_timers(rig).cancel(found.offsets).verdicts.tolist() == [Verdict.DONE]
    gone = pending_timers(rig).by_key("T", ["a"], unique=True).verdicts.tolist()
    assert (
        gone == pending_timers(rig).by_offset(one(offset)).verdicts.tolist() == [Verdict.CANCELLED]
    )
    rig.advance(100_000)
    assert rig.bodies() == []


def test_found_by_key_topic_and_time(rig: TimerRig) -> None:
    start_ms = rig.clock.now_ms()
    for n in range(50):
        put(rig, 1_000 * (n + 1), f"t{n}", KEYS=f"all k{n % 5}")
        put(rig, 1_000 * (n + 1), f"u{n}", topic="U", KEYS="all")
    assert pending_timers(rig).by_key("T", ["k3"], unique=False).offsets.size == 10
    assert pending_timers(rig).by_key("U", ["k3"], unique=False).offsets.size == 0
    assert pending_timers(rig).by_key("", ["all"], unique=False).offsets.size == 100
    assert pending_timers(rig).by_key("T", ["k3"], unique=True).verdicts.tolist() == [
        Verdict.UNKNOWN
    ]
    rig.advance(10_000)
    pieces = pending_timers(rig).pieces("T", start_ms, start_ms + 20_001)
    assert sum(piece.offsets.size for piece in pieces) == 10
    assert pending_timers(rig).pieces("absent") == []
    for piece in pieces:
        assert (pending_timers(rig).cancel(piece.offsets).verdicts == Verdict.DONE).all()
    rig.advance(60_000)
    assert (len(rig.bodies("T")), len(rig.bodies("U"))) == (40, 50)


@pytest.mark.finding("3C1")
def test_a_marker_identifies_its_target_as_apaches_does(rig: TimerRig) -> None:
    offset = put(rig, 90_000, "a", KEYS="k")
    due_ms = rig.clock.now_ms() + 90_000
    pending_timers(rig).cancel(one(offset))
    units = rig.store.units(TIMER_TOPIC, 0, 1, 10)
    markers = [rig.store.read_record(int(unit["phys_offset"])) for unit in units]
    common = {
        "TAGS": "_RECALL_TAG_",
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
        "TIMER_OUT_MS": str((due_ms - 1) // 1_000 * 1_000),
    }
    assert [marker.properties for marker in markers] == [
        common | {"TIMER_DEL_UNIQKEY": "T+a", "UNIQ_KEY": "a", "KEYS": "k"},
        common | {"TIMER_DEL_UNIQKEY": "a"},  # as 5.4 and later compare it
    ]
    for marker in markers:
        assert (marker.prepared_offset, marker.body) == (-(offset + 1), b"0")


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("end", ENDS)
def test_a_marker_of_a_client_cancels_its_target_only(
    tmp_path: Path, index: bool, end: str
) -> None:
    rig = TimerRig(tmp_path)
    rig.store_changes = {"index_enable": index}
    rig.open()
    due_ms = rig.clock.now_ms() + 5_000
    for topic, name in (("T", "a"), ("T", "b"), ("U", "a")):
        put(rig, 5_000, name, topic)
    put(rig, 9_000, "c")
    for topic, name in (("T", "a"), ("T", "c"), ("T", "absent"), ("nowhere", "a")):
        rig.put(due_ms, topic, body=b"0", UNIQ_KEY=name, TIMER_DEL_UNIQKEY=f"{topic}+{name}")
    rig.work()
    assert rig.timers.counts.total == 3
    if index:
        gone = pending_timers(rig).by_key("T", ["a"], unique=True).verdicts.tolist()
        assert gone == [Verdict.CANCELLED]
    restart(rig, end)
    rig.advance(20_000)
    assert rig.bodies("T") == [b"b", b"c"]
    assert rig.bodies("U") == [b"a"]
    if index:
        gone = pending_timers(rig).by_key("T", ["a", "c"], unique=True).verdicts.tolist()
        assert gone == [Verdict.CANCELLED, Verdict.DELIVERED]
    rig.close()


@pytest.mark.parametrize("index", [True, False])
def test_a_recall_of_apache_5_5_names_its_target_by_the_key_alone(
    tmp_path: Path, index: bool
) -> None:
    rig = TimerRig(tmp_path)
    rig.store_changes = {"index_enable": index}
    rig.open()
    due_ms = rig.clock.now_ms() + 5_000
    for topic, name in (("T", "a"), ("T", "b"), ("U", "a")):
        put(rig, 5_000, name, topic)
    recall = {"UNIQ_KEY": "a", "TIMER_DEL_UNIQKEY": "a", "TAGS": "_RECALL_TAG_"}
    for changes in ({}, {"UNIQ_KEY": "b"}, {"TIMER_DEL_UNIQKEY": "b", "TAGS": "T"}):
        rig.put(due_ms, "T", body=b"0", **(recall | changes))
    rig.advance(20_000)
    assert (rig.bodies("T"), rig.bodies("U")) == ([b"b"], [b"a"])
    rig.close()


def test_a_late_marker_is_reported_and_has_no_effect(rig: TimerRig) -> None:
    put(rig, 300, "a")
    rig.advance(300)
    rig.put(rig.clock.now_ms() + 100, "T", body=b"0", UNIQ_KEY="a", TIMER_DEL_UNIQKEY="T+a")
    rig.work()
    assert rig.bodies() == [b"a"]
    assert pending_timers(rig).by_key("T", ["a"], unique=True).verdicts.tolist() == [
        Verdict.DELIVERED
    ]


def test_decisions_come_after_timers_that_can_be_delivered_now(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = list[bool]()

    def is_due(now_ms: int) -> bool:
        woken.clear()
        due = bool(pending_timers(rig).wake_due(now_ms))
        assert woken == [True] * due
        return due

    put(rig, 5_000, "a")
    monkeypatch.setattr(rig.timers, "wake", lambda: woken.append(True))
    due_ms = rig.clock.now_ms() + 5_000
    rig.advance(4_999)
    assert [is_due(due_ms - 1), is_due(due_ms)] == [False, True]
    rig.timers.reconfigure(type(rig.config)(stop_dequeue=True))
    assert not is_due(due_ms)
    rig.timers.reconfigure(rig.config)
    rig.store.read_only = "full"
    rig.advance(1)  # the delivery is refused, and pauses
    assert [is_due(due_ms), is_due(due_ms + RETRY_MS)] == [False, True]
    rig.store.read_only = ""
    rig.advance(RETRY_MS)
    assert rig.bodies() == [b"a"]
    assert not is_due(rig.clock.now_ms())
