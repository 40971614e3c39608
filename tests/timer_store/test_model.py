"""State machine of the timer store, compared with a list of messages.

Rules: sends of every kind, clock steps, checkpoints, restarts, crashes between any two changes of
the disk, torn writes, power cuts, full disks, lost files and stopped stages. After each rule no
timer may be early, duplicated or missing after its due time; the order and the counts must be
exact, and retention may not delete a needed log file.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.recovery import checkpoint
from tests.support.failing_disk import Disk, SimulatedCrash, cut_log, lose_units
from tests.support.naive_model import log_records
from tests.support.stores import add_message
from tests.support.timer_rig import TimerRig

PRECISION_MS = 100
WINDOW_SLOTS = 600
WINDOW_MS = PRECISION_MS * WINDOW_SLOTS
HOLD_MS = 1_000  # how long the store keeps its time after a clock step back
RETRY_MS = 100
RETRIED_MS = 2_000  # of a full disk; more of the same retries would take most of the time
LONGEST_MS = 40 * WINDOW_MS
AWAY_MS = 1_440 * WINDOW_MS  # pending timers roll through every window of an outage
FILES = ("timerwheel", "timerlog", "config/duemq.timers.json", "config/timercheck")
STEPS_MS = [1, 7, 99, 100, 101, 450, 999, 1_000, 3_000, 60_000, 61_000, 600_000]
SHRINK = bool(
    os.environ.get("TIMER_SHRINK")
)  # shrinking takes minutes; a failing run prints its steps
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if SHRINK else [])]
delays = st.one_of(
    st.sampled_from([-70_000, -1, 0, 1, 99, 100, 101, 499, 500, 600, 1_000, WINDOW_MS - 1]),
    st.sampled_from([WINDOW_MS, WINDOW_MS + 1, 3 * WINDOW_MS, LONGEST_MS]),
    st.integers(-2_000, 10_000),
    st.integers(0, LONGEST_MS),
)


@dataclass(frozen=True)
class Sent:
    """A message that was acknowledged."""

    number: int
    topic: str
    due_ms: int
    phys_offset: int
    end: int
    held: bool  # not delivered with its put
    exempt: bool = False  # put into the wheel late, so that others may precede it


class CrashRig:
    """Timers in a directory that can crash, lose power and restart."""

    def __init__(
        self, seed: int, stage_records_max: int, make: Callable[..., TimerRig] = TimerRig
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="timers-"))
        self.patch = pytest.MonkeyPatch()
        self.boot = 1
        self.patch.setattr(checkpoint, "_boot_id", lambda: b"boot %d" % self.boot)
        self.disk = Disk(self.patch, self.root)
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.rig = make(
            self.root,
            self.clock,
            precision_ms=PRECISION_MS,
            roll_window_slots=WINDOW_SLOTS,
            stage_records_max=stage_records_max,
            batch_records_max=7,
        )
        self.rig.open()

    def crash(self, *, cut: bool) -> int:
        """Kill the process or cut the power; return the new end of the commit log."""
        store = self.rig.store
        durable, end = store.durable_offset, store.max_offset
        marks = store.mark.read()
        self.rig.kill()
        if cut:
            self.boot += 1
            self.disk.lose_unsynced(self.chance)
            end = self.chance.randint(min(durable, end), end)
            cut_log(self.root, end)
            lose_units(self.root, marks.durable if marks else 0)
        self.disk.restart()
        return end

    def remove(self) -> None:
        self.disk.restart()
        self.disk.full = ()
        if self.rig.is_open:
            self.rig.kill()
        self.patch.undo()
        shutil.rmtree(self.root)


class TimerStoreMachine(RuleBasedStateMachine):
    """Rules that end with an open and idle store."""

    @initialize(seed=st.integers(0, 1 << 32), stage_max=st.sampled_from([1_024, 5, 30]))
    def begin(self, seed: int, stage_max: int) -> None:
        self.crash_rig = CrashRig(seed, stage_max)
        self.sent: dict[int, Sent] = {}
        self.serial = 0
        self.now_max = self.crash_rig.clock.now_ms()
        self.stopped_in = self.stopped_out = False
        self.refused = False

    @property
    def rig(self) -> TimerRig:
        return self.crash_rig.rig

    @property
    def now_ms(self) -> int:
        return self.crash_rig.clock.now_ms()

    # -- sending --------------------------------------------------------------------------------

    def _batch(self, wanted: list[tuple[int, str, str]]) -> tuple[PutBatch, list[tuple[int, str]]]:
        batch, made = PutBatch(max(len(wanted), 1)), []
        for delay_ms, topic, kind in wanted:
            self.serial += 1
            if kind == "TIMER_DELAY_SEC":
                delay_ms = max(delay_ms // 1_000, 0) * 1_000
            elif kind == "TIMER_DELAY_MS":
                delay_ms = max(delay_ms, 0)
            due_ms = self.now_ms + delay_ms
            value = {"TIMER_DELAY_SEC": delay_ms // 1_000, "TIMER_DELAY_MS": delay_ms}
            properties = {kind: str(value.get(kind, due_ms)), "UNIQ_KEY": f"K{self.serial}"}
            body = b"<%d %s>" % (self.serial, b"x" * (self.serial % 7 * 40))
            queue_id = self.serial % 3
            add_message(self.rig.store, batch, topic, queue_id, body, properties=properties)
            made.append((self.serial, topic))
        return batch, made

    def _send(self, wanted: list[tuple[int, str, str]]) -> None:
        batch, made = self._batch(wanted)
        requested_ms = self.now_ms
        self.rig.hook(batch, requested_ms)
        self.rig.store.put(batch)
        for (number, topic), row, want in zip(made, batch.filled, wanted, strict=True):
            if row["status"] == 0:
                held = self.rig.store.topics.name(int(row["topic_index"])) == TIMER_TOPIC
                self._note(number, topic, self._due(want, int(row["store_ms"])), row, held)

    def _due(self, want: tuple[int, str, str], store_ms: int) -> int:
        delay_ms, _, kind = want
        if kind == "TIMER_DELAY_SEC":
            return store_ms + max(delay_ms // 1_000, 0) * 1_000
        if kind == "TIMER_DELAY_MS":
            return store_ms + max(delay_ms, 0)
        return self.now_ms + delay_ms

    def _note(self, number: int, topic: str, due_ms: int, row: Any, held: bool) -> None:
        exempt = self.stopped_in or self.rig.timers.enqueue.lag_units > 0
        offset = int(row["phys_offset"])
        end = offset + int(row["record_size"])
        self.sent[number] = Sent(number, topic, due_ms, offset, end, held, exempt)

    @rule(
        wanted=st.lists(
            st.tuples(
                delays,
                st.sampled_from(["T", "U"]),
                st.sampled_from(["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"]),
            ),
            min_size=1,
            max_size=12,
        )
    )
    def send(self, wanted: list[tuple[int, str, str]]) -> None:
        self._send(wanted)
        self.rig.work()

    @rule(delay_ms=st.integers(1, 2_000), count=st.integers(20, 150))
    def send_many_briefly(self, delay_ms: int, count: int) -> None:
        kinds = ["TIMER_DELIVER_MS", "TIMER_DELAY_MS"]
        self._send([(delay_ms, "TU"[n % 2], kinds[n % 2]) for n in range(count)])
        self.rig.work()

    # -- time -----------------------------------------------------------------------------------

    @rule(step_ms=st.one_of(st.sampled_from(STEPS_MS), st.integers(1, 5_000)))
    def advance(self, step_ms: int) -> None:
        """Advance the clock while the service sleeps as long as it requested."""
        self.rig.advance(step_ms)

    @rule(step_ms=st.sampled_from([*STEPS_MS, AWAY_MS]))
    def jump(self, step_ms: int) -> None:
        """Set the clock forward in one step."""
        self.jump_to(self.now_ms + step_ms)

    def jump_to(self, now_ms: int) -> None:
        self.crash_rig.clock.set_ms(now_ms)
        self.rig.work()

    @rule(step_ms=st.sampled_from([1, 99, 1_000, 1_001, 20_000, 3_600_000]))
    def step_back(self, step_ms: int) -> None:
        self.now_max = max(self.now_max, self.now_ms)
        self.crash_rig.clock.advance(-step_ms)
        self.rig.work()

    # -- starts ---------------------------------------------------------------------------------

    @rule()
    def persist(self) -> None:
        self.rig.persist()

    @rule(asleep_ms=st.sampled_from([0, 0, 1_000, 61_000, 600_000, AWAY_MS]))
    def restart(self, asleep_ms: int) -> None:
        self._unstop()
        self.rig.close()
        self._reopen(asleep_ms)

    @rule(cut=st.booleans(), asleep_ms=st.sampled_from([0, 0, 1_000, 61_000, 600_000]))
    def crash(self, cut: bool, asleep_ms: int) -> None:
        self._unstop()
        self._crash(cut)
        self._reopen(asleep_ms)

    @rule(
        steps=st.integers(0, 14),
        torn=st.sampled_from([0, 1, 26, 52, 53, 100, 300]),
        cut=st.booleans(),
        what=st.sampled_from(["persist", "send", "advance", "restart", "jump"]),
        again=st.integers(0, 25),
    )
    def crash_at_a_step(self, steps: int, torn: int, cut: bool, what: str, again: int) -> None:
        """Crash between two steps, and perhaps once more during the restart."""
        self._unstop()
        acts: dict[str, Callable[[], Any]] = {
            "persist": self.rig.persist,
            "send": lambda: self._send([(500 + n, "T", "TIMER_DELAY_MS") for n in range(30)]),
            "advance": lambda: self.rig.advance(700),
            "jump": lambda: self.jump_to(self.now_ms + WINDOW_MS),
            "restart": self.rig.close,
        }
        self._run_until_crash(acts[what], steps, torn)
        if self.rig.is_open:
            self._crash(cut)
        self.crash_rig.disk.restart()
        if not self._run_until_crash(self._open, again, torn):
            self._crash(cut)
            self._reopen(0)
        self._find_sent()

    def _run_until_crash(self, act: Callable[[], Any], steps: int, torn: int) -> bool:
        """Run an action; return whether it finished before the crash."""
        disk = self.crash_rig.disk
        disk.steps_left, disk.torn = steps, torn
        try:
            act()
        except SimulatedCrash as crash:
            note(f"crash {crash}")
            return False
        finally:
            disk.steps_left = None
        return True

    def _crash(self, cut: bool) -> None:
        end = self.crash_rig.crash(cut=cut)
        if cut:
            self.sent = {n: s for n, s in self.sent.items() if s.end <= end}

    def _reopen(self, asleep_ms: int) -> None:
        self.crash_rig.clock.advance(asleep_ms)
        self._open()
        self._find_sent()

    def _open(self) -> None:
        self.rig.is_open = True  # after a crash in `open`, the opened parts must be closed
        self.crash_rig.disk.ignored = ("commitlog/",)  # the store's own recovery has its own tests
        self.rig.open()
        self.crash_rig.disk.ignored = ()

    def _find_sent(self) -> None:
        """Add messages that were stored although the crash interrupted their send."""
        by_number = {_number(record): record for record in self._all_records()}
        known = set(by_number)
        for number in range(1, self.serial + 1):
            if number not in self.sent and number in known:
                record = by_number[number]
                if record.topic == TIMER_TOPIC:
                    due_ms = record.store_ms + int(record.properties["TIMER_DELAY_MS"])
                    topic = record.properties["REAL_TOPIC"]
                    offset = record.phys_offset
                    end = offset + record.total_size
                    self.sent[number] = Sent(number, topic, due_ms, offset, end, True, True)

    @rule(lost=st.lists(st.sampled_from(FILES), min_size=1, unique=True), end=st.booleans())
    def lose_files(self, lost: list[str], end: bool) -> None:
        self._unstop()
        if end:
            self.rig.close()
        else:
            self._crash(False)
        for name in lost:
            path = self.crash_rig.root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            (path.parent / f"{path.name}.bak").unlink(missing_ok=True)
        self.crash_rig.disk.mark_synced()
        self._reopen(0)

    # -- refusals -------------------------------------------------------------------------------

    @rule(
        full=st.sampled_from([("timerlog",), ("commitlog",), ("timer", "config", "commitlog")]),
        step_ms=st.sampled_from([100, 1_000, 61_000, 600_000]),
    )
    def full_disk(self, full: tuple[str, ...], step_ms: int) -> None:
        """Fill the disk for some time."""
        self._unstop()
        self.crash_rig.disk.full = full
        self._send([(n * 100, "T", "TIMER_DELAY_MS") for n in range(20)])
        self.rig.advance(min(step_ms, RETRIED_MS))
        self.jump_to(self.now_ms + max(step_ms - RETRIED_MS, 0))
        self.rig.persist()
        self.sent = {n: replace(s, exempt=True) for n, s in self.sent.items()}
        self.crash_rig.disk.full = ()
        self.rig.store.check_disk()
        self.rig.advance(RETRY_MS)

    @rule()
    def stop_in(self) -> None:
        self.stopped_in = not self.stopped_in
        self._configure()

    @rule()
    def stop_out(self) -> None:
        self.stopped_out = not self.stopped_out
        self._configure()

    def _unstop(self) -> None:
        self.stopped_in = self.stopped_out = False
        self._configure()

    def _configure(self) -> None:
        timers = self.rig.timers
        config = replace(timers.config, stop_enqueue=self.stopped_in, stop_dequeue=self.stopped_out)
        timers.reconfigure(config)
        self.rig.hook.reconfigure(config)
        self.rig.work()
        if not self.stopped_out:
            self.rig.advance(RETRY_MS)

    # -- what must hold -------------------------------------------------------------------------

    def _all_records(self) -> list[Record]:
        return [r for r in log_records(self.rig.store) if r.body.startswith(b"<")]

    @invariant()
    @precondition(lambda self: hasattr(self, "crash_rig"))
    def store_equals_model(self) -> None:
        records = self._all_records()
        arrived = [record for record in records if record.topic != TIMER_TOPIC]
        self._check_each(arrived)
        self._check_order(arrived)
        self._check_counts({_number(record) for record in arrived})

    def _check_each(self, arrived: list[Record]) -> None:
        counts = Counter(_number(record) for record in arrived)
        assert [n for n, count in counts.items() if count > 1] == [], "twice"
        assert set(counts) <= set(self.sent), "never sent"
        for record in arrived:
            sent = self.sent[_number(record)]
            assert record.topic == sent.topic
            assert record.store_ms >= sent.due_ms or not sent.held, f"{sent} is early"
        if not self.stopped_in and not self.stopped_out:
            missing = [
                s for n, s in self.sent.items() if n not in counts and s.due_ms <= self.now_ms
            ]
            assert missing == [], f"missing at {self.now_ms}"

    def _check_order(self, arrived: list[Record]) -> None:
        """Check that later records have later due times or could not be delivered earlier."""
        held = [(r, self.sent[_number(r)]) for r in arrived if self.sent[_number(r)].held]
        latest: tuple[Record, Sent] | None = None
        for record, sent in held:
            if latest is not None and sent.due_ms < latest[1].due_ms and not sent.exempt:
                assert sent.phys_offset > latest[0].phys_offset, f"{sent} came after {latest[1]}"
            if latest is None or sent.due_ms >= latest[1].due_ms:
                latest = record, sent

    def _check_counts(self, arrived: set[int]) -> None:
        timers = self.rig.timers
        waiting = [s for n, s in self.sent.items() if n not in arrived]
        file_bytes = timers.store.config.commitlog_file_bytes
        by_file = Counter(s.phys_offset // file_bytes * file_bytes for s in waiting)
        if waiting:
            assert timers.first_pending_offset is not None
            needed = min(s.phys_offset for s in waiting)
            assert timers.first_pending_offset <= needed, "retention may delete needed files"
        if timers.enqueue.lag_units == 0:
            assert timers.counts.by_topic() == Counter(s.topic for s in waiting)
            assert timers.counts.by_file() == by_file
            assert timers.counts.total == len(waiting)

    def teardown(self) -> None:
        if hasattr(self, "crash_rig"):
            self.crash_rig.remove()


def _number(record: Record) -> int:
    return int(record.body[1:].split(b" ")[0])


TestTimerStoreMachine = TimerStoreMachine.TestCase
TestTimerStoreMachine.settings = settings(
    max_examples=int(os.environ.get("TIMER_MODELS", "10")),
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
    phases=PHASES,
)
