"""State machine of levels and timers with migrations in both directions.

It is compared with a list of messages. Rules: sends with and without a route, clock steps,
transfers, returns, copies back, cancels, moves, fires, checkpoints of either side, kills, crashes
between any two writes, power cuts and lost files. After each rule every due message was delivered
once, none is early, and every pending one has one owner. A power cut loses the end of the log with
its sends, transfers, returns and decisions, and any unsynced part of the other files.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delayed_delivery.pending import Verdict
from duemq_common.clock import FakeClock
from duemq_common.errors import OwnershipRefused
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.record import Record
from message_store.recovery import checkpoint
from tests.support.failing_disk import Disk, SimulatedCrash, cut_log, lose_units
from tests.support.migration_rig import MigrationRig
from tests.support.naive_model import log_records

DELAYS_MS = {1: 1_000, 2: 5_000, 3: 10_000, 4: 60_000, 5: 120_000}
FILES = (
    "timerwheel",
    "timerlog",
    "config/duemq.timers.json",
    "config/delayOffset.json",
    "consumequeue",
)
STEPS_MS = [1, 50, 999, 1_000, 1_000, 4_000, 9_000, 59_000]
SHRINK = bool(
    os.environ.get("MIGRATION_SHRINK")
)  # shrinking takes minutes; a failing run prints its steps
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if SHRINK else [])]
levels = st.sampled_from([1, 3, 4, 4, 5, 5])
losses = st.one_of(st.just(set()), st.just(set()), st.sets(st.sampled_from(FILES), max_size=4))  # type: ignore[var-annotated]
counts = st.sampled_from([1, 3, 10, 200])
STEPS = 50


@dataclass(frozen=True)
class Sent:
    """A message that was acknowledged, with its current due time."""

    topic: str
    due_ms: int
    level: int


class MigrationMachine(RuleBasedStateMachine):
    """Rules that end with an open and idle store."""

    @initialize(stage_max=st.sampled_from([1_024, 5, 30]), seed=st.integers(0, 1 << 32))
    def begin(self, stage_max: int, seed: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="migration-"))
        self.patch = pytest.MonkeyPatch()
        self.boot, self.chance = 1, random.Random(seed)
        self.patch.setattr(checkpoint, "_boot_id", lambda: b"boot %d" % self.boot)
        self.disk = Disk(self.patch, self.root)
        self.rig = MigrationRig(
            self.root,
            FakeClock(),
            precision_ms=100,
            roll_window_slots=6_000,
            stage_records_max=stage_max,
            batch_records_max=7,
        )
        self.rig.open()
        self.sent: dict[int, Sent] = {}
        self.cancelled: set[int] = set()
        self.facts: dict[
            int, list[tuple[int, Sent, bool]]
        ] = {}  # (end of the log, state, cancelled)
        self.serial = 0
        self.send([(n % 3 + 3, "TU"[n % 2]) for n in range(20)])

    # -- what happens ---------------------------------------------------------------------------

    @rule(wanted=st.lists(st.tuples(levels, st.sampled_from("TU")), min_size=1, max_size=12))
    def send(self, wanted: list[tuple[int, str]]) -> None:
        messages = []
        for level, topic in wanted:
            self.serial += 1
            body = b"<%d %s>" % (self.serial, b"x" * (self.serial % 5 * 30))
            messages.append((level, topic, self.serial % 4, body))
        first = self.serial - len(wanted) + 1
        batch = self.rig.send(messages, UNIQ_KEY=f"K{first}")
        for at, (level, topic) in enumerate(wanted):
            row = batch.rows[at]
            assert row["status"] == 0
            due_ms = int(row["store_ms"]) + DELAYS_MS[level]
            self.sent[first + at] = Sent(topic, due_ms, level)
            self._record(first + at, int(row["phys_offset"]) + int(row["record_size"]))
        self.rig.work()

    def _record(self, number: int, log_end: int) -> None:
        """Record the state of a message, valid if the log keeps what precedes `log_end`."""
        now = (log_end, self.sent[number], number in self.cancelled)
        self.facts.setdefault(number, []).append(now)

    @rule(step_ms=st.sampled_from(STEPS_MS))
    def advance(self, step_ms: int) -> None:
        self.rig.advance(step_ms)

    @rule(level=levels, count=counts)
    def drain(self, level: int, count: int) -> None:
        self.rig.drain.step(level, count)
        self.rig.work()

    @rule(level=levels, count=counts)
    def give_back(self, level: int, count: int) -> None:
        self.rig.return_units.step(level, count)
        self.rig.work()

    @rule(
        level=levels,
        steps=st.lists(
            st.tuples(
                st.sampled_from(["send", "over", "over", "back", "timers", "levels", "kill"]),
                counts,
            ),
            min_size=3,
            max_size=9,
        ),
    )
    def consecutive_steps(self, level: int, steps: list[tuple[str, int]]) -> None:
        """Several steps of one level, a combination that random rules seldom give."""
        for name, count in steps:
            if name == "send":
                self.send([(level, "T")] * min(count, 12))
            elif name == "over":
                self.rig.drain.step(level, count)
            elif name == "back":
                self.rig.return_units.step(level, count)
            elif name == "timers":
                self.rig.persist_timers()
            elif name == "levels":
                self.rig.persist_levels()
            else:
                self.rig.notices.clear()
                self.rig.kill()
                self.rig.open()
                self._check_no_rebuild()
            self.rig.work()

    @rule(level=levels)
    def route(self, level: int) -> None:
        if level not in self.rig.router.levels:
            self.rig.route(level)

    @rule(level=levels, count=counts)
    def routed_return(self, level: int, count: int) -> None:
        self.rig.routed_return.step(level, count)
        self.rig.work()

    @rule(
        chosen=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=5),
        action=st.sampled_from(["cancel", "fire", "move", "move"]),
        delay_ms=st.sampled_from([1, 100, 5_000, 70_000]),
    )
    def decide(self, chosen: list[int], action: str, delay_ms: int) -> None:
        waiting = self._pending_records()
        if not waiting:
            return
        numbers = sorted({sorted(waiting)[n % len(waiting)] for n in chosen})
        for number in numbers:
            [record] = waiting[number]
            self._decide(number, record, action, delay_ms)
        self.rig.work()

    def _decide(self, number: int, record: Record, action: str, delay_ms: int) -> None:
        rig, offsets = self.rig, np.array([record.phys_offset])
        before = rig.store.max_offset
        due_ms = rig.clock.now_ms() + delay_ms
        done = 0
        for port in (rig.pending_levels, rig.pending_timers):
            found = port.by_offset(offsets)
            if not found.offsets.size:
                continue
            if action == "cancel":
                decided = port.cancel(found.offsets)
            elif action == "fire":
                decided = port.fire(found.offsets)
            else:
                decided = port.move(found.offsets, np.array([due_ms]), rig.run_hooks)
            assert decided.verdicts.tolist() == [Verdict.DONE], decided
            done += 1
        assert done == 1, f"{done} services decided about {number}"
        if action == "cancel":
            self.cancelled.add(number)
        else:
            now = rig.clock.now_ms() if action == "fire" else due_ms
            self.sent[number] = replace(self.sent[number], due_ms=now)
        decided = next(rig.store.scan(before))[0]
        self._record(number, int(decided["phys_offset"]) + int(decided["record_size"]))

    @rule()
    def checkpoint_timers(self) -> None:
        self.rig.persist_timers()

    @rule()
    def checkpoint_levels(self) -> None:
        assert self.rig.persist_levels()

    # -- ends -----------------------------------------------------------------------------------

    @rule(lost=losses, step_ms=st.sampled_from([0, 1, 2_000]))
    def kill(self, lost: set[str], step_ms: int) -> None:
        self.rig.kill()
        self._open_again(lost, step_ms)
        if not lost:
            self._check_no_rebuild()

    @rule()
    def close(self) -> None:
        self.rig.close()
        self._open_again(set(), 0)
        self._check_no_rebuild()

    @rule(
        what=st.sampled_from(
            ["drain", "give_back", "routed_return", "timers", "levels", "advance"]
        ),
        level=levels,
        count=counts,
        left=st.integers(0, 12),
        torn=st.sampled_from([0, 0, 30, 100]),
        lost=losses,
    )
    def crash(
        self, what: str, level: int, count: int, left: int, torn: int, lost: set[str]
    ) -> None:
        """Crash at a write of one of these actions."""
        rig = self.rig
        work: dict[str, Callable[[], Any]] = {
            "drain": lambda: rig.drain.step(level, count),
            "give_back": lambda: rig.return_units.step(level, count),
            "routed_return": lambda: rig.routed_return.step(level, count),
            "timers": rig.persist_timers,
            "levels": rig.persist_levels,
            "advance": lambda: rig.advance(2_000),
        }
        self.disk.steps_left, self.disk.torn = left, torn
        with suppress(SimulatedCrash, OwnershipRefused):
            work[what]()
        self.disk.crashed = True
        rig.kill()
        self.disk.restart()
        self._open_again(lost, 0)

    @rule(lost=losses)
    def cut_power(self, lost: set[str]) -> None:
        store = self.rig.store
        durable, end = store.durable_offset, store.max_offset
        marks, names = store.mark.read(), self._level_names()
        self.rig.kill()
        self.boot += 1
        self.disk.lose_unsynced(self.chance)
        end = self.chance.randint(min(durable, end), end)
        cut_log(self.root, end)
        lose_units(self.root, marks.durable if marks else 0)
        self._lose_names(names)
        self.disk.restart()
        for number, versions in list(self.facts.items()):
            kept = [version for version in versions if version[0] <= end]
            self.facts[number] = kept
            self.cancelled.discard(number)
            if not kept:
                del self.sent[number], self.facts[number]
                continue
            _, self.sent[number], cancelled = kept[-1]
            if cancelled:
                self.cancelled.add(number)
        self._open_again(lost, 0)

    def _level_names(self) -> list[int]:
        """Return the positions of the last letters of DELAY in the records of levels."""
        found = []
        for record in log_records(self.rig.store):
            if record.topic == SCHEDULE_TOPIC:
                at = re.search(rb"DELA[Yy]\x01", record.property_text)
                assert at is not None
                text_pos = record.phys_offset + record.total_size - len(record.property_text)
                found.append(text_pos + at.start() + 4)
        return found

    def _lose_names(self, places: list[int]) -> None:
        """Restore some of these letters, which are changed in place and not synced."""
        for path in (self.root / "commitlog").iterdir():
            base, data = int(path.name), bytearray(path.read_bytes())
            for at in places:
                if 0 <= at - base < len(data) and data[at - base] and self.chance.random() < 0.3:
                    data[at - base] ^= 0x20
            path.write_bytes(data)

    def _open_again(self, lost: set[str], step_ms: int) -> None:
        for name in lost:
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
                path.with_name(path.name + ".bak").unlink(missing_ok=True)
        self.rig.clock.advance(step_ms)
        self.rig.notices.clear()
        self.rig.open()

    def _check_no_rebuild(self) -> None:
        """Check that the timers were recovered from their last checkpoint, as no file was lost."""
        assert not [text for text in self.rig.notices if "rebuilt" in text], self.rig.notices

    # -- what must hold -------------------------------------------------------------------------

    def _records(self) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {}
        for record in log_records(self.rig.store):
            if record.body.startswith(b"<"):
                found.setdefault(int(record.body[1:].split(b" ")[0]), []).append(record)
        return found

    def _pending_records(self) -> dict[int, list[Record]]:
        """Return the pending records by message, found by both services."""
        found: dict[int, list[Record]] = {}
        for number, records in self._records().items():
            mine = [record for record in records if self._owners(record)]
            if mine:
                found[number] = mine
        return found

    def _owners(self, record: Record) -> int:
        """Return how many services own a record."""
        rig, owners = self.rig, 0
        if record.topic == SCHEDULE_TOPIC:
            level = rig.levels.levels.get(record.queue_id + 1)
            owners += level is not None and level.cursor.is_pending(record.queue_offset)
        if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            rows = rig.timers.records.read(np.array([record.phys_offset]))
            owners += int(rig.timers.decisions.is_pending(rows)[0])
        return owners

    @invariant()
    @precondition(lambda self: hasattr(self, "sent"))
    def store_equals_model(self) -> None:
        rig, now_ms = self.rig, self.rig.clock.now_ms()
        assert not rig.failures
        arrived: Counter[int] = Counter()
        held = {SCHEDULE_TOPIC, TIMER_TOPIC}
        records = self._records()
        assert set(records) == set(self.sent)
        for number, mine in records.items():
            sent = self.sent[number]
            for record in mine:
                if record.topic not in held:
                    arrived[number] += 1
                    assert record.topic == sent.topic
                    assert record.store_ms >= sent.due_ms, f"{number} came early"
            owners = sum(self._owners(record) for record in mine)
            if number in self.cancelled:
                assert (arrived[number], owners) == (0, 0), f"{number} was cancelled"
            elif sent.due_ms <= now_ms:
                assert (arrived[number], owners) == (1, 0), f"{number} is due"
            else:
                assert (arrived[number], owners) == (0, 1), f"{number} waits"
        waiting = len(self.sent) - len(self.cancelled) - arrived.total()
        assert rig.level_pending + rig.timers.counts.total == waiting
        for level in rig.levels.levels:
            found = rig.verify(level)
            assert found.is_right, found
            assert found.level_pending.count == rig.levels.levels[level].cursor.pending

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.disk.restart()
            if self.rig.is_open:
                self.rig.kill()
            self.patch.undo()
            shutil.rmtree(self.root)


TestMigrationMachine = MigrationMachine.TestCase
TestMigrationMachine.settings = settings(
    max_examples=int(os.environ.get("MIGRATION_MODELS", "4")),
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
    phases=PHASES,
    deadline=None,
)
