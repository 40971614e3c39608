"""Crashes during compaction, with torn writes and power cuts: no timer is lost, duplicated, early.

The model keeps each message's state with the end of the log at that time. After a power cut that
removes the end of the log, the model drops the states behind it.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_delivery.pending import Verdict
from duemq_common.topics import TIMER_TOPIC
from tests.support.extended import extended
from tests.support.failing_disk import SimulatedCrash
from tests.support.full_timer_disk import FullDisk, PinningRig
from tests.support.naive_model import log_records
from tests.support.synchronous import Synchronous
from tests.timer_store.test_model import CrashRig
from timer_store.pending.lookup import PendingTimers

GONE = -1
SPAN_MS = 600_000  # ten roll windows


class CompactedStore:
    """A store that crashes during compaction, and a model of its content."""

    def __init__(self, seed: int, percent: float = 88.0) -> None:
        patch = pytest.MonkeyPatch()
        self.full = FullDisk(patch)
        self.percent = percent
        self.crash_rig = CrashRig(
            seed, 30, lambda root, clock, **c: PinningRig(root, self.full, clock, **c)
        )
        self.undo, self.putting = patch.undo, 0
        self.states: list[list[tuple[int, int]]] = []  # by message: (log end, due time or GONE)
        self.arrived: dict[int, tuple[int, int]] = {}  # log offset: number, store time

    @property
    def rig(self) -> Any:
        return self.crash_rig.rig

    def remove(self) -> None:
        self.crash_rig.remove()
        self.undo()

    # -- deeds ----------------------------------------------------------------------------------

    def put(self, delays: list[int]) -> None:
        for delay_ms in delays:
            due_ms, number = self.rig.clock.now_ms() + delay_ms, len(self.states)
            self.putting = due_ms
            body = b"<%d %s>" % (number, b"x" * (number % 5 * 100))
            batch = self.rig.put(due_ms, "TU"[number % 2], body=body, UNIQ_KEY=f"K{number}")
            assert batch.rows[0]["status"] == 0
            self.states.append([(self.rig.store.max_offset, due_ms)])

    def fill(self) -> None:
        self.rig.fill(1)

    def compact(self) -> None:
        self.full.percent = self.percent
        try:
            self.rig.compact()
        finally:
            self.full.percent = 50.0

    def persist(self) -> None:
        self.rig.persist()

    def clean(self) -> None:
        self.full.percent = 88.0
        try:
            self.rig.clean()
        finally:
            self.full.percent = 50.0

    def advance(self, step_ms: int) -> None:
        self.rig.advance(step_ms)

    def decide(self, picks: list[int], delay_ms: int) -> None:
        """Cancel some (delay 0), or move them."""
        due_ms = self.rig.clock.now_ms() + delay_ms if delay_ms else GONE
        known = [n for n, states in enumerate(self.states) if states]
        waiting = Synchronous(PendingTimers(self.rig.timers))
        for number in {known[pick % len(known)] for pick in picks} if known else ():
            found, log_end = waiting.by_key("", [f"K{number}"], unique=True), self.log_end()
            blocked_by = self.states[number][-1][1] != GONE and number not in self.deliveries()
            assert found.offsets.size == blocked_by
            if not blocked_by:
                continue
            if delay_ms:
                decided = waiting.move(found.offsets, np.array([due_ms]), lambda *_: None)
            else:
                decided = waiting.cancel(found.offsets)
            assert decided.verdicts.tolist() == [Verdict.DONE]
            self.states[number].append((self.first_end(log_end), due_ms))
        self.rig.work()

    def log_end(self) -> int:
        return int(self.rig.store.max_offset)

    def first_end(self, log_end: int) -> int:
        """Return the end of the first record after `log_end`: it alone decides.

        A decision appends further records, for Apache's brokers; power may be cut between them.
        """
        records = log_records(self.rig.store)
        return next(r.phys_offset + r.total_size for r in records if r.phys_offset >= log_end)

    def crash(self, cut: bool) -> None:
        log_end = self.crash_rig.crash(cut=cut)
        if cut:
            self.states = [[f for f in states if f[0] <= log_end] for states in self.states]
            self.arrived = {
                offset: name for offset, name in self.arrived.items() if offset < log_end
            }
        self.reopen()

    def reopen(self) -> None:
        self.rig.is_open = True
        self.crash_rig.disk.ignored = ("commitlog/",)
        self.rig.open()
        self.crash_rig.disk.ignored = ()
        for record in log_records(self.rig.store):  # was it stored, what death interrupted?
            if record.body.startswith(b"<%d " % len(self.states)):
                end = record.phys_offset + record.total_size
                self.states.append([(end, self.putting)])

    @contextmanager
    def crashing(self, steps: int, torn: int, cut: bool) -> Any:
        """Crash after `steps` changes of the disk; the store is open again after the block."""
        disk = self.crash_rig.disk
        disk.steps_left, disk.torn = steps, torn
        try:
            yield
        except SimulatedCrash:
            self.record_deliveries()
            self.crash(cut)
        finally:
            disk.steps_left = None

    # -- what must hold -------------------------------------------------------------------------

    def record_deliveries(self) -> None:
        """Record the delivered messages while their files exist."""
        for record in log_records(self.rig.store):
            if record.body.startswith(b"<") and record.topic != TIMER_TOPIC:
                self.arrived[record.phys_offset] = number_of(record), record.store_ms

    def deliveries(self) -> set[int]:
        self.record_deliveries()
        return {number for number, _ in self.arrived.values()}

    def check(self) -> None:
        deliveries, now_ms = self.deliveries(), self.rig.clock.now_ms()
        counts = Counter(number for number, _ in self.arrived.values())
        assert [n for n, count in counts.items() if count > 1] == [], "twice"
        due = {n: states[-1][1] for n, states in enumerate(self.states) if states}
        for number, store_ms in self.arrived.values():
            assert due[number] != GONE, "cancelled, and it deliveries"
            assert store_ms >= due[number], "early"
        waiting = {n for n, due_ms in due.items() if due_ms != GONE and n not in deliveries}
        assert [n for n in waiting if due[n] <= now_ms] == [], "missing"
        self.check_counts(waiting)

    def check_counts(self, waiting: set[int]) -> None:
        timers = self.rig.timers
        mine = (r for r in log_records(self.rig.store) if r.topic == TIMER_TOPIC)
        newest = {number_of(r): r.phys_offset for r in mine if r.body.startswith(b"<")}
        assert waiting <= newest.keys(), "lost"
        size = timers.store.log.file_bytes
        assert timers.counts.total == len(waiting)
        assert timers.counts.by_file() == Counter(newest[n] // size * size for n in waiting)
        if waiting:
            assert timers.first_pending_offset <= min(newest[n] for n in waiting)


def number_of(record: Any) -> int:
    return int(record.body[1:].split(b" ")[0])


# -- every write ----------------------------------------------------------------------------------


def scenario(compacted: CompactedStore) -> None:
    """Compact between checkpoints and retention, then compact the copies again."""
    for _ in range(2):
        compacted.compact()
        compacted.persist()
        compacted.clean()
        compacted.put([2 * SPAN_MS, 3 * SPAN_MS + 5])
        compacted.fill()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("torn", "cut"), [(0, False), (60, True), extended(0, True), extended(60, False)]
)
def test_a_crash_at_every_write(torn: int, cut: bool) -> None:
    every = int(os.environ.get("COMPACT_EVERY", "8"))
    steps, done = torn % every, False
    while not done:
        compacted = CompactedStore(steps)
        try:
            compacted.put([SPAN_MS, 2 * SPAN_MS + 1, 90_000])
            compacted.fill()
            compacted.put([SPAN_MS + 7, 6 * SPAN_MS])
            compacted.fill()
            compacted.persist()
            done = True
            with compacted.crashing(steps, torn, cut):
                done = False
                scenario(compacted)
                done = True
            compacted.check()
            scenario(compacted)
            compacted.check()
            assert compacted.rig.timers.compaction.copied > 0
            compacted.advance(8 * SPAN_MS)
            compacted.check()
            assert compacted.rig.timers.counts.total == 0
        finally:
            compacted.remove()
        steps += every
    assert steps > 50


# -- any order ------------------------------------------------------------------------------------

DELAYS = st.sampled_from([1, 99, 100, 101, 5_000, 59_999, 60_000, 61_000, SPAN_MS, 6 * SPAN_MS])
PICKS = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4)
DEEDS = st.one_of(
    st.tuples(st.just("put"), st.lists(DELAYS, min_size=1, max_size=6)),
    st.tuples(st.just("advance"), DELAYS),
    st.tuples(st.just("decide"), PICKS, st.sampled_from([0, 500, SPAN_MS])),
    st.tuples(st.sampled_from(["fill", "fill", "compact", "compact", "persist", "clean"])),
    st.tuples(st.just("crash"), st.booleans()),
)
DEATHS = st.tuples(st.integers(0, 12), st.sampled_from([0, 52, 60, 700]), st.booleans())
ACTS = st.lists(st.tuples(DEEDS, st.none() | DEATHS), max_size=25)


@settings(
    max_examples=int(os.environ.get("COMPACT_MODELS", "8")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 1 << 32), actions=ACTS)
def test_random_steps_and_crashes(
    seed: int, actions: list[tuple[tuple[str | int | list[int], ...], tuple[int, int, bool] | None]]
) -> None:
    compacted = CompactedStore(seed)
    try:
        for (name, *words), death in actions:
            deed = partial(getattr(compacted, name), *words)
            if death is None or name not in ("compact", "persist", "clean", "advance"):
                deed()
            else:
                with compacted.crashing(*death):
                    deed()
            compacted.check()
        compacted.advance(20 * SPAN_MS)
        compacted.check()
        assert compacted.rig.timers.counts.total == 0
    finally:
        compacted.remove()
