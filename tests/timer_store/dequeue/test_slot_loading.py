"""A large slot is read in a thread: each timer leaves once, whatever happens meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from tests.support.timer_rig import TimerRig
from timer_store.dequeue import slot_loading as loading
from timer_store.pending.lookup import PendingTimers

SECOND_MS = 1_000


class Later:
    """A pool whose work is done when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self._waiting = []

    def submit(self, work):
        future = Future()
        self.begun += 1
        self._waiting.append((work, future))
        return future

    def run(self) -> None:
        """Do what was asked for."""
        while self._waiting:
            work, future = self._waiting.pop()
            future.set_result(work())


@pytest.fixture
def config():
    return {}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch, config):
    monkeypatch.setattr(loading, "LARGE", 1)
    rig = TimerRig(tmp_path, **config).open()
    rig.pool = rig.timers.dequeue.loader.pool = Later()
    yield rig
    rig.pool.run()
    if rig.is_open:
        rig.close()


def begun(rig, count=20):
    """Put timers of one slot, due 10 ms apart, and have its reading begun; return due times."""
    first_ms = rig.clock.now_ms() // SECOND_MS * SECOND_MS + 2 * SECOND_MS
    due = [first_ms + 10 * n for n in range(1, count + 1)]
    rig.offsets = put(rig, due)
    rig.clock.set_ms(first_ms - rig.config.stage_lead_ms + 1)
    rig.work()
    assert rig.pool.begun == 1
    assert not len(rig.timers.stage)
    return due


def put(rig, due):
    batch = rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    return batch.filled["phys_offset"].copy()


def delivered(rig):
    """Let everything leave, nothing early; return the due times of what came, in its order."""
    came = finish(rig)
    assert all(record.store_ms >= int(record.body) for record in rig.delivered())
    return came


def finish(rig):
    rig.pool.run()
    rig.work()
    rig.advance(10 * SECOND_MS)
    assert rig.timers.counts.total == 0
    assert rig.timers.state.rebuilds == 0
    return [int(body) for body in rig.bodies()]


def while_it_is_read(rig, when, deed):
    """Do something after the thread has read the slot, or before."""
    if when == "read":
        rig.pool.run()
    deed()


@pytest.mark.parametrize("when", ["read", "not read"])
def test_what_joins_meanwhile_leaves_in_its_place(rig, when):
    due = begun(rig)
    more = [due[3], due[0] - 5, due[-1] + 5]
    while_it_is_read(rig, when, lambda: put(rig, more))
    assert delivered(rig) == sorted(due + more)


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("when", ["read", "not read"])
@pytest.mark.parametrize("way", ["cancel", "move", "fire"])
def test_what_is_settled_meanwhile_does_not_leave_again(rig, when, way, persisted):
    """Also when a checkpoint has written it down, and nothing else knows of it."""
    due = begun(rig)
    waiting = PendingTimers(rig.timers)
    moved = np.full(3, due[-1] + 7)
    ways = {
        "cancel": (waiting.cancel, due[3:]),
        "move": (lambda at: waiting.move(at, moved, None), due[3:] + due[:3]),
        "fire": (waiting.fire, due),
    }
    decide, wanted = ways[way]

    def deed():
        assert not decide(rig.offsets[:3]).verdicts.any()
        assert not persisted or rig.persist()

    assert rig.timers.next_work_ms(rig.clock.now_ms()) > rig.clock.now_ms()
    while_it_is_read(rig, when, deed)
    if way == "fire":  # they were delivered before their time
        assert finish(rig) == wanted
    else:
        assert delivered(rig) == wanted


@pytest.mark.parametrize("config", [{"stage_records_max": 8}])
@pytest.mark.parametrize("when", ["read", "not read"])
def test_a_slot_in_parts(rig, when):
    """Each part is read in the thread; what joins is staged at once, or comes with its part."""
    due = begun(rig)
    while_it_is_read(rig, when, lambda: put(rig, [due[2] + 1, due[15] + 1]))
    for _ in range(80):
        rig.pool.run()
        rig.work()
        rig.clock.advance(25)
    assert rig.pool.begun > 2
    assert delivered(rig) == sorted([*due, due[2] + 1, due[15] + 1])


def test_a_start_over_does_not_see_what_was_read(rig):
    begun(rig)
    rig.pool.run()
    rig.timers.dequeue.loader.drop()
    rig.timers.dequeue.loader.pool = None
    rig.work()
    assert len(rig.timers.stage) == 20


def test_the_thread_reports_when_it_has_read(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "LARGE", 1)
    rig, told = TimerRig(tmp_path).open(), threading.Event()
    with rig.timers.dequeue.loader.threaded(told.set):
        first_ms = rig.clock.now_ms() // SECOND_MS * SECOND_MS + 2 * SECOND_MS
        put(rig, [first_ms + n for n in range(1, 50)])
        rig.clock.set_ms(first_ms)
        rig.work()
        assert told.wait(30)
        rig.work()
        assert len(rig.timers.stage) == 49
    rig.close()
