"""Reading of a large slot in a thread: each timer is delivered once, whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.timer_rig import TimerRig
from timer_store.dequeue import dequeue_service
from timer_store.pending.lookup import PendingTimers

SECOND_MS = 1_000


class ManualPool:
    """A pool that runs its work when the test calls `run`."""

    def __init__(self) -> None:
        self.submitted = 0
        self._waiting: list[Any] = []

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future = Future[Any]()
        self.submitted += 1
        self._waiting.append((work, future))
        return future

    def run(self) -> None:
        """Run the submitted work."""
        while self._waiting:
            work, future = self._waiting.pop()
            future.set_result(work())


class PooledRig(TimerRig):
    """Rig whose slots are read by a `ManualPool`, with the offsets of its timers."""

    pool: ManualPool
    offsets: npt.NDArray[np.int64]


@pytest.fixture
def config() -> dict[Any, Any]:
    return {}


@pytest.fixture
def rig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, int]
) -> Iterator[PooledRig]:
    monkeypatch.setattr(dequeue_service, "LARGE", 1)
    rig = PooledRig(tmp_path, **config)
    rig.open()
    rig.pool = ManualPool()
    rig.timers.dequeue.loader.pool = rig.pool  # type: ignore[assignment]
    yield rig
    rig.pool.run()
    if rig.is_open:
        rig.close()


def start_reading(rig: PooledRig, count: int = 20) -> list[int]:
    """Put timers into one slot, due 10 ms apart, and start reading it; return the due times."""
    first_ms = rig.clock.now_ms() // SECOND_MS * SECOND_MS + 2 * SECOND_MS
    due = [first_ms + 10 * n for n in range(1, count + 1)]
    rig.offsets = put(rig, due)
    rig.clock.set_ms(first_ms - rig.config.stage_lead_ms + 1)
    rig.work()
    assert rig.pool.submitted == 1
    assert not len(rig.timers.stage)
    return due


def put(rig: PooledRig, due: list[int]) -> npt.NDArray[np.int64]:
    batch = rig.put_many([(due_ms, "T", 0, b"%d" % due_ms) for due_ms in due])
    return batch.filled["phys_offset"].copy()


def delivered(rig: PooledRig) -> list[int]:
    """Deliver everything, check that nothing is early, and return the due times in order."""
    came = finish(rig)
    assert all(record.store_ms >= int(record.body) for record in rig.delivered())
    return came


def finish(rig: PooledRig) -> list[int]:
    rig.pool.run()
    rig.work()
    rig.advance(10 * SECOND_MS)
    assert rig.timers.counts.total == 0
    assert rig.timers.state.rebuilds == 0
    return [int(body) for body in rig.bodies()]


def while_reading(rig: PooledRig, when: str, action: Callable[..., Any]) -> None:
    """Run `action` before or after the thread has read the slot."""
    if when == "read":
        rig.pool.run()
    action()


def test_pages_are_prepared_for_the_records_of_a_large_slot(
    rig: PooledRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dequeue_service, "EXPECT_BYTES", 1_000)
    start_reading(rig)
    end = rig.store.max_offset
    assert rig.store.read_ahead.expected < end
    rig.pool.run()
    rig.work()
    assert rig.store.read_ahead.expected >= end + 20 * 100
    finish(rig)


@pytest.mark.parametrize("when", ["read", "not read"])
def test_timers_put_while_reading_keep_the_order(rig: PooledRig, when: str) -> None:
    due = start_reading(rig)
    more = [due[3], due[0] - 5, due[-1] + 5]
    while_reading(rig, when, lambda: put(rig, more))
    assert delivered(rig) == sorted(due + more)


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("when", ["read", "not read"])
@pytest.mark.parametrize("way", ["cancel", "move", "fire"])
def test_timers_settled_while_reading_are_not_delivered_again(
    rig: PooledRig, when: str, way: str, persisted: bool
) -> None:
    """Also if a checkpoint has been written and no other structure knows about it."""
    due = start_reading(rig)
    waiting = PendingTimers(rig.timers)
    moved = np.full(3, due[-1] + 7)
    ways = {
        "cancel": (waiting.cancel, due[3:]),
        "move": (lambda at: waiting.move(at, moved, None), due[3:] + due[:3]),
        "fire": (waiting.fire, due),
    }
    decide, expected = ways[way]

    def action() -> None:
        assert not decide(rig.offsets[:3]).verdicts.any()
        assert not persisted or rig.persist()

    assert rig.timers.next_work_ms(rig.clock.now_ms()) > rig.clock.now_ms()
    while_reading(rig, when, action)
    if way == "fire":  # delivered before their due time
        assert finish(rig) == expected
    else:
        assert delivered(rig) == expected


@pytest.mark.parametrize("config", [{"stage_records_max": 8}])
@pytest.mark.parametrize("when", ["read", "not read"])
def test_a_slot_in_parts(rig: PooledRig, when: str) -> None:
    """Each part is read in the thread; a new timer is staged at once or with its part."""
    due = start_reading(rig)
    while_reading(rig, when, lambda: put(rig, [due[2] + 1, due[15] + 1]))
    for _ in range(80):
        rig.pool.run()
        rig.work()
        rig.clock.advance(25)
    assert rig.pool.submitted > 2
    assert delivered(rig) == sorted([*due, due[2] + 1, due[15] + 1])


def test_a_restart_of_loading_drops_the_result(rig: PooledRig) -> None:
    start_reading(rig)
    rig.pool.run()
    rig.timers.dequeue.loader.drop()
    rig.timers.dequeue.loader.pool = None
    rig.work()
    assert len(rig.timers.stage) == 20


def test_the_thread_wakes_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequeue_service, "LARGE", 1)
    rig, reported = TimerRig(tmp_path).open(), threading.Event()
    with rig.timers.dequeue.loader.threaded(reported.set):
        first_ms = rig.clock.now_ms() // SECOND_MS * SECOND_MS + 2 * SECOND_MS
        put(rig, [first_ms + n for n in range(1, 50)])
        rig.clock.set_ms(first_ms)
        rig.work()
        assert reported.wait(30)
        rig.work()
        assert len(rig.timers.stage) == 49
    rig.close()


@pytest.mark.parametrize("old", [True, False])
def test_a_small_slot_is_read_in_the_thread_if_its_units_are_old(
    rig: PooledRig, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """Units and records that are not in the page cache must not stop the event loop."""
    monkeypatch.setattr(dequeue_service, "LARGE", 1_000)
    monkeypatch.setattr(dequeue_service, "RECENT_BYTES", 0 if old else 1 << 30)
    prefetched: list[int] = []
    monkeypatch.setattr(
        rig.timers.dequeue.loader, "_prefetch", lambda offsets, _: prefetched.extend(offsets)
    )
    first_ms = rig.clock.now_ms() // SECOND_MS * SECOND_MS + 2 * SECOND_MS
    offsets = put(rig, [first_ms + 10 * n for n in range(1, 6)])
    rig.clock.set_ms(first_ms - rig.config.stage_lead_ms + 1)
    rig.work()
    assert rig.pool.submitted == old
    rig.pool.run()
    rig.work()
    assert len(rig.timers.stage) == 5
    assert prefetched == (offsets.tolist() if old else [])


@pytest.mark.parametrize("config", [{}, {"stage_records_max": 4}])
def test_a_timer_that_is_due_before_the_slot_being_read_is_on_time(rig: PooledRig) -> None:
    """After the clock was set back, it is put into the next slot, which a thread reads."""
    first_ms = rig.clock.now_ms() // SECOND_MS * SECOND_MS + 2 * SECOND_MS
    due = [first_ms + 10 * n for n in range(1, 21)]
    put(rig, due)
    rig.clock.set_ms(first_ms - rig.config.stage_lead_ms)
    rig.work()
    assert rig.timers.position.staged_ms == first_ms
    assert not rig.pool.submitted
    rig.clock.step(-10 * SECOND_MS)
    early_ms = rig.clock.now_ms() + 500
    put(rig, [early_ms])
    rig.work()
    assert rig.pool.submitted
    rig.pool.run()
    rig.advance(500)
    assert [int(body) for body in rig.bodies()] == [early_ms]
    while rig.timers.counts.total:
        rig.pool.run()
        rig.advance(10)
    assert [record.store_ms for record in rig.delivered()] == [early_ms, *due]
