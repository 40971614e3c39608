"""What a start has to read of the commit log to know which timers are settled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.store import MessageStore
from tests.support.inline_loop import run_inline
from tests.support.stores import add_message, open_store, put_one, records_of
from tests.support.timer_log_room import timer_log_room
from tests.support.timer_rig import TimerRig
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.store import TimerStore

DUE = {"TIMER_OUT_MS": "9000000000000", "REAL_TOPIC": "T", "REAL_QID": "0"}


@pytest.mark.parametrize(
    ("topic", "properties", "is_read"),
    [(SCHEDULE_TOPIC, {"DELAY": "1"}, False), (TIMER_TOPIC, DUE, True)],
    ids=["without timers", "with one"],
)
def test_a_log_without_timers_is_not_read_through(
    topic: str,
    properties: dict[str, str],
    is_read: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_store(tmp_path) as store:
        put_one(store, topic, properties=properties)
        scan, scanned = store.scan, []

        def counted(*span: int) -> Any:
            scanned.append(span)
            return scan(*span)

        monkeypatch.setattr(store, "scan", counted)
        timers = TimerStore(store, store.clock, TimerConfig())
        timers.open()
        assert bool(scanned) is is_read
        timers.close()


def test_what_is_settled_is_not_gone_through_for_each_piece(tmp_path: Path) -> None:
    """A start that enqueues the queue again skips what is settled: pieces times all would be slow.

    Seen with 1 M moved messages in 1 GB of log: four minutes.
    """
    rig = TimerRig(tmp_path).open()
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + 60_000, "T", 0, b"x") for _ in range(1_000)])
    enqueue = rig.timers.enqueue

    def least_s(settled: int) -> float:
        """Return the least processor time of some runs, which other processes do not lengthen."""
        enqueue.skip, times = (1 << 40) + np.arange(settled), []
        for _ in range(3):
            rig.timers.position.queue_offset = 0
            begin = time.thread_time()
            while enqueue.catch_up(50, now_ms):
                pass
            times.append(time.thread_time() - begin)
            assert not enqueue.lag_units
        return min(times)

    few, many = least_s(100), least_s(5_000_000)
    assert many < 20 * few, "50,000 times as many"
    rig.kill()


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_starts_on_a_full_disk_repeat_no_delivery(tmp_path: Path, starts: int) -> None:
    """The timer log has no room, so each start leaves the queue to the next one."""
    rig = TimerRig(tmp_path).open()
    now_ms = rig.clock.now_ms()
    for number in (20, 1, 2, 30):
        rig.put(now_ms + number * 1_000, body=b"%d" % number)
    rig.advance(1_500)
    assert rig.bodies() == [b"1"]
    rig.kill()
    for _ in range(starts):
        with timer_log_room(0):
            rig.open()
        assert rig.timers.enqueue.lag_units
        rig.kill()
    rig.open()
    assert rig.timers.counts.total == 3
    rig.advance(40_000)
    assert rig.bodies() == [b"1", b"2", b"20", b"30"]
    rig.close()


# -- an Apache broker was the master since the checkpoint -----------------------------------------

COUNT, FAR_MS = 6, 3_600_000


def copy_as_apache(store: MessageStore, record: Record, topic: str, **more: str) -> None:
    """Append a copy of a timer's record, as an Apache master that delivers or rolls it."""
    batch = PutBatch(1, 1)
    properties = record.properties | {"TIMER_ENQUEUE_MS": "1"} | more
    add_message(store, batch, topic, 0, record.body, properties=properties)
    batch.rows[0]["born_ms"] = record.born_ms
    store.put(batch)


def with_timers(tmp_path: Path) -> TimerRig:
    """Return a closed store whose checkpoint has timers, one of them delivered."""
    rig = TimerRig(tmp_path).open()
    now_ms = rig.clock.now_ms()
    for n in range(COUNT):
        due_ms = now_ms + 500 + FAR_MS * (n > 0)
        rig.put(due_ms, body=b"%d" % n, UNIQ_KEY=f"U{n}")
    rig.work()
    rig.advance(1_000)
    assert rig.bodies() == [b"0"]
    rig.close()
    return rig


@pytest.mark.parametrize("ends", ["stays", "is killed"])
@pytest.mark.parametrize(
    ("work", "pending"),
    [
        ("delivers", {2, 3, 4, 5}),
        ("rolls", {1, 2, 3, 4, 5}),
        ("rolls and delivers", {2, 3, 4, 5}),
        ("cancels", {2, 3, 4, 5}),
    ],
)
def test_an_epoch_of_an_apache_master_repeats_and_loses_nothing(
    tmp_path: Path, work: str, pending: set[int], ends: str
) -> None:
    """This store was closed meanwhile and has the checkpoint of its own epoch."""
    rig = with_timers(tmp_path)
    with open_store(tmp_path, rig.clock) as store:
        [timer] = [r for r in records_of(store, TIMER_TOPIC) if r.body == b"1"]
        if "rolls" in work:
            copy_as_apache(store, timer, TIMER_TOPIC, TIMER_ROLL_TIMES="1")
        if "delivers" in work:
            copy_as_apache(store, timer, "T", TIMER_DEQUEUE_MS="2")
        if work == "cancels":
            named = f"T+{timer.properties.get('UNIQ_KEY', '')}"
            copy_as_apache(store, timer, TIMER_TOPIC, TIMER_DEL_UNIQKEY=named)
        came = [r.body for r in records_of(store, "T")]
    rig.open()
    if ends == "is killed":
        rig.kill()
        rig.open()
    assert rig.timers.counts.total == len(pending)
    rig.advance(2 * FAR_MS)
    assert sorted(rig.bodies()) == sorted([*came, *(b"%d" % n for n in pending)])
    assert rig.timers.counts.total == 0
    rig.kill()


@pytest.mark.parametrize("starts", [1, 2])
def test_an_adoption_on_a_full_disk_repeats_nothing(tmp_path: Path, starts: int) -> None:
    """Apache's deliveries name no origins, so no checkpoint may forget that they were found."""
    rig = with_timers(tmp_path)
    with open_store(tmp_path, rig.clock) as store:
        [timer] = [r for r in records_of(store, TIMER_TOPIC) if r.body == b"4"]
        copy_as_apache(store, timer, "T", TIMER_DEQUEUE_MS="2")
    for _ in range(starts):
        with open_store(tmp_path, rig.clock) as store, timer_log_room(0):
            timers = TimerStore(store, rig.clock, rig.config)
            timers.open()
            assert timers.enqueue.lag_units
            assert not run_inline(CheckpointWriter(timers).persist(last=True))
            timers.close()
    rig.open()
    assert rig.timers.counts.total == COUNT - 2
    rig.advance(2 * FAR_MS)
    assert sorted(rig.bodies()) == [b"%d" % n for n in range(COUNT)]
    rig.close()


def test_a_message_that_is_sent_back_is_no_delivery(tmp_path: Path) -> None:
    """It has the properties of the delivered message, in another topic."""
    rig = with_timers(tmp_path)
    with open_store(tmp_path, rig.clock) as store:
        [delivered] = records_of(store, "T")
        assert "TIMER_DEQUEUE_MS" in delivered.properties
        copy_as_apache(store, delivered, "%RETRY%g")
    rig.notices.clear()
    rig.open()
    assert not any("rebuilt" in text for text in rig.notices)
    assert rig.timers.counts.total == COUNT - 1
    rig.kill()
