"""Checkpoints of a replica: a promotion starts from the last one, and delivers what is left."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from duemq_common.topics import TIMER_TOPIC
from message_store.kernels import registry
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.message_store.replication.test_raw_append import feed, log_of
from tests.support.naive_model import log_records
from tests.support.stores import add_message, open_store, records_of
from tests.support.timer_log_room import timer_log_room
from tests.support.timer_rig import TimerRig
from timer_store.checkpoint import standby as standby_module
from timer_store.checkpoint.standby import Standby

SECOND_MS = 1_000
LOAD_S_MAX = 60
SIZES = [700, 90, 4_000]


class Replica:
    """A store that is fed a master's log."""

    def __init__(self, root: Path, master: TimerRig) -> None:
        self.root, self._master = root, master
        master_clock = master.clock
        self.store: MessageStore = open_store(root, master_clock)
        self.store.__enter__()
        self.store.read_only = "this broker is a replica"
        names = ((TIMER_TOPIC, 1), ("T", 4), ("U", 4))
        for name, queues in names:
            self.store.topics.set_routing(name, write_queues=queues, read_queues=queues, perm=6)
        self.standby = Standby(self.store, master_clock, master.config)

    def copy(self, until: int | None = None) -> None:
        """Copy what the master has appended, up to a log offset."""
        end = self.store.max_offset
        feed(self.store, log_of(self._master.store)[end:until], end, SIZES)
        self.store.flush()

    def refresh(self) -> bool:
        """Write a checkpoint."""
        return asyncio.run(self.standby.refresh())

    def promoted(self) -> TimerRig:
        """Close the store; return the new master, opened."""
        self.store.__exit__(None, None, None)
        window_slots = self._master.config.roll_window_slots
        return TimerRig(self.root, self._master.clock, roll_window_slots=window_slots).open()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path / "master").open()
    yield rig
    if rig.is_open:
        rig.kill()


def put(master: TimerRig, first: int, count: int) -> None:
    now_ms = master.clock.now_ms()
    for number in range(first, first + count):
        master.put(now_ms + number * SECOND_MS, body=b"%d" % number)


@pytest.mark.finding("3D6")
def test_a_stop_does_not_wait_for_kernels(
    master: TimerRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Replica(tmp_path / "replica", master)
    put(master, 1, 5)
    replica.copy()
    loading, loaded = threading.Event(), threading.Event()

    def load(task: str) -> None:
        loading.set()
        assert loaded.wait(LOAD_S_MAX)

    monkeypatch.setattr(registry, "load", load)

    async def main() -> None:
        refresh = asyncio.create_task(replica.standby.refresh())
        await asyncio.to_thread(loading.wait)
        replica.standby.stop()
        assert not await refresh
        assert not loaded.is_set()
        loaded.set()

    asyncio.run(main())
    assert replica.standby.written == 0
    replica.promoted().kill()


def test_a_promotion_starts_from_the_last_checkpoint(master: TimerRig, tmp_path: Path) -> None:
    replica = Replica(tmp_path / "replica", master)
    put(master, 1, 20)
    replica.copy()
    assert replica.refresh()
    master.advance(7 * SECOND_MS)  # delivered at the master: settled in the checkpoint
    put(master, 30, 5)
    replica.copy()
    assert replica.refresh()
    put(master, 40, 5)  # after the checkpoint
    master.advance(2 * SECOND_MS)
    replica.copy()
    pending, delivered = master.timers.counts.total, master.bodies()
    master.kill()
    new = replica.promoted()
    assert not any("rebuilt" in text for text in new.notices)
    assert new.bodies() == delivered
    assert new.timers.counts.total == pending
    new.advance(60 * SECOND_MS)
    expected = [b"%d" % number for number in (*range(1, 21), *range(30, 35), *range(40, 45))]
    assert sorted(new.bodies()) == sorted(expected)
    new.close()


def test_without_a_checkpoint_a_promotion_rebuilds(master: TimerRig, tmp_path: Path) -> None:
    """The twin of the test above: it would pass with any start that rebuilds nothing."""
    replica = Replica(tmp_path / "replica", master)
    put(master, 1, 20)
    replica.copy()
    master.kill()
    new = replica.promoted()
    assert any("rebuilt from the commit log: no checkpoint" in text for text in new.notices)
    new.close()


def test_a_replica_rolls_timers_as_time_passes(tmp_path: Path) -> None:
    master = TimerRig(tmp_path / "master", roll_window_slots=10).open()
    replica = Replica(tmp_path / "replica", master)
    due_ms = master.clock.now_ms() + 300 * SECOND_MS + 500
    for _ in range(40):
        put(master, 1, 2)
        master.put(due_ms, body=b"far")
        master.advance(5 * SECOND_MS)
        replica.copy()
        assert replica.refresh()
    position, bodies = master.timers.position, master.bodies()
    master.kill()
    new = replica.promoted()
    assert not any("rebuilt" in text for text in new.notices)
    assert position.read_ms - new.timers.position.read_ms <= 5 * SECOND_MS
    assert new.timers.dequeue.rolled <= 40
    assert new.bodies() == bodies
    new.advance(102 * SECOND_MS)
    assert new.bodies() == [*bodies, *[b"far"] * 40]
    assert new.timers.state.rebuilds == 0
    new.close()


def test_an_equal_log_gets_no_second_checkpoint(master: TimerRig, tmp_path: Path) -> None:
    replica = Replica(tmp_path / "replica", master)
    put(master, 1, 3)
    replica.copy()
    assert replica.refresh()
    assert not replica.refresh()
    assert replica.standby.written == 1
    replica.store.__exit__(None, None, None)


def test_a_marker_that_its_master_has_not_applied_cancels(master: TimerRig, tmp_path: Path) -> None:
    replica = Replica(tmp_path / "replica", master)
    due_ms = master.clock.now_ms() + 5 * SECOND_MS
    for key in ("a", "b"):
        master.put(due_ms, body=key.encode(), UNIQ_KEY=key)
    replica.copy()
    assert replica.refresh()
    master.timers.reconfigure(replace(master.config, stop_enqueue=True))
    master.put(due_ms, body=b"marker", TIMER_DEL_UNIQKEY="T+a")
    replica.copy()
    master.kill()
    assert not replica.refresh()  # a replica appends no cancel: the last checkpoint stays
    new = replica.promoted()
    new.advance(20 * SECOND_MS)
    assert new.bodies() == [b"b"]
    new.close()


def test_a_record_for_quarantine_keeps_the_last_checkpoint(
    master: TimerRig, tmp_path: Path
) -> None:
    replica = Replica(tmp_path / "replica", master)
    put(master, 1, 2)
    replica.copy()
    assert replica.refresh()
    master.timers.reconfigure(replace(master.config, stop_enqueue=True))
    batch = PutBatch(1)
    add_message(master.store, batch, TIMER_TOPIC, 0, b"no time", properties={})
    master.store.put(batch)
    replica.copy()
    end = replica.store.max_offset
    assert not replica.refresh()
    assert replica.store.max_offset == end
    replica.store.__exit__(None, None, None)


@pytest.mark.sampled
@pytest.mark.parametrize("sent_after", [0, 1], ids=["the decision ends the log", "more follows"])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("what", ["move", "fire", "cancel"])
def test_a_checkpoint_between_two_records_of_a_decision(
    what: str,
    count: int,
    sent_after: int,
    master: TimerRig,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A move and a fire append a second record about each timer: it is settled only once."""
    caplog.set_level(logging.INFO, standby_module.log.name)
    replica = Replica(tmp_path / "replica", master)
    assert replica.refresh()
    put(master, 30, 2 * count)
    begin = master.store.max_offset
    records = records_of(master.store, TIMER_TOPIC)[:count]
    offsets = np.array([record.phys_offset for record in records])
    if what == "move":
        master.timers.decisions.move(offsets, np.full(count, master.clock.now_ms() + 90_000))
    else:
        getattr(master.timers.decisions, what)(offsets)
    put(master, 70, sent_after)
    ends = [record.phys_offset + record.total_size for record in log_records(master.store)]
    for end in [end for end in ends if end >= begin]:
        replica.copy(end)
        assert replica.refresh()
    replica.copy()
    pending, delivered = master.timers.counts.total, master.bodies()
    master.kill()
    new = replica.promoted()
    assert [*(r.getMessage() for r in caplog.records if "replica" in r.msg), *new.notices] == []
    assert (new.timers.counts.total, new.bodies()) == (pending, delivered)
    new.advance(100 * SECOND_MS)
    assert len(new.bodies()) == 2 * count + sent_after - count * (what == "cancel")
    new.close()


def test_it_ends_with_the_role(master: TimerRig, tmp_path: Path) -> None:
    replica = Replica(tmp_path / "replica", master)
    put(master, 1, 3)
    replica.copy()

    async def follow() -> None:
        running = asyncio.create_task(replica.standby.run())
        while not replica.standby.written:
            master.clock.advance(standby_module.EVERY_MS)
            await asyncio.sleep(0)
        replica.standby.stop()
        await running

    asyncio.run(follow())
    replica.store.__exit__(None, None, None)


def test_a_timer_delivered_before_it_could_be_enqueued_stays_delivered(
    master: TimerRig, tmp_path: Path
) -> None:
    """The timer log of the replica has no room for two checkpoints."""
    replica = Replica(tmp_path / "replica", master)
    put(master, 30, 1)
    replica.copy()
    assert replica.refresh()
    put(master, 20, 1)
    put(master, 1, 3)
    master.advance(2 * SECOND_MS)  # two of the three are delivered
    for _ in range(2):
        put(master, 20, 1)
        replica.copy()
        with timer_log_room(0):
            assert replica.refresh()
    master.kill()
    new = replica.promoted()
    assert new.notices == []
    new.advance(60 * SECOND_MS)
    expected = [b"1", b"2", b"3", b"20", b"20", b"20", b"30"]
    assert sorted(new.bodies(), key=int) == expected
    new.close()
