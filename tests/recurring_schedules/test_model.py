"""Schedules and a naive twin, driven by random steps: kills, closes, clock steps, changes."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from recurring_schedules.definition import Definition
from recurring_schedules.occurrences import next_after
from tests.recurring_schedules.rig import ScheduleRig
from tests.support.inline_loop import run_inline

NAMES = st.sampled_from(["a", "b", "c"])
SPECS = st.sampled_from(
    [
        {"every_ms": 1_000},
        {"every_ms": 7_000, "phase_ms": 300},
        {"cron": "* * * * *", "zone": "Asia/Kathmandu"},
        {"cron": "*/20 * * * * *", "exclude": ("30 * * * *",)},
    ]
)


class NaiveSchedule:
    """What one schedule must deliver: planned times after `cursor_ms`, while it is active."""

    def __init__(self, definition: Definition, now_ms: int) -> None:
        self.definition, self.cursor_ms, self.is_active = definition, now_ms, True

    def due(self, now_ms: int) -> list[int]:
        times = []
        while self.is_active:
            planned_ms = next_after(self.definition, self.cursor_ms)
            if planned_ms is None or planned_ms > now_ms:
                self.cursor_ms = max(self.cursor_ms, now_ms)
                break
            times.append(planned_ms)
            self.cursor_ms = planned_ms
        return times


class ScheduleMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.naive: dict[str, NaiveSchedule] = {}
        self.expected: dict[str, Counter[int]] = {}

    def teardown(self) -> None:
        if self.rig.is_open:
            self.rig.kill()
        shutil.rmtree(self.root)

    @initialize()
    def open(self) -> None:
        self.rig = ScheduleRig(self.root).open()

    def expect(self) -> None:
        for name, schedule in self.naive.items():
            self.expected.setdefault(name, Counter()).update(schedule.due(self.now_ms))

    @property
    def now_ms(self) -> int:
        return self.rig.clock.now_ms()

    @rule(name=NAMES, spec=SPECS)
    def create(self, name: str, spec: dict[str, object]) -> None:
        if name in self.naive:
            return
        definition = Definition(name=name, topic="T", body=b"hello", **spec)
        assert self.rig.create(name, **spec)["created"]
        self.naive[name] = NaiveSchedule(definition, self.now_ms)
        # Times that a former schedule of this name has delivered before the clock was set back.
        self.expect()

    @rule(step_ms=st.integers(0, 90_000))
    def advance(self, step_ms: int) -> None:
        self.rig.run_to(self.now_ms + step_ms)
        self.expect()

    @rule(step_ms=st.integers(-30_000, 60_000))
    def step_clock(self, step_ms: int) -> None:
        self.rig.clock.step(step_ms)
        self.rig.run_to(self.now_ms + 1)  # overdue occurrences are due a millisecond later
        self.expect()

    @rule(outage_ms=st.integers(0, 30_000))
    def kill(self, outage_ms: int) -> None:
        self.rig.kill()
        self.rig.clock.advance(outage_ms)
        self.rig.open()
        self.rig.run_to(self.now_ms + 1)
        self.expect()

    @rule()
    def write_checkpoint(self) -> None:
        run_inline(self.rig.checkpoints.persist())

    @rule()
    def restart(self) -> None:
        self.rig.close()
        self.rig.open()

    @rule(name=NAMES)
    def pause(self, name: str) -> None:
        if name in self.naive:
            self.rig.call("pause", name)
            self.naive[name].is_active = False

    @rule(name=NAMES)
    def resume(self, name: str) -> None:
        if name in self.naive and not self.naive[name].is_active:
            self.rig.call("resume", name)
            schedule = self.naive[name]
            schedule.cursor_ms, schedule.is_active = max(schedule.cursor_ms, self.now_ms), True

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.naive:
            self.rig.call("delete", name)
            del self.naive[name]

    @invariant()
    def each_occurrence_is_delivered_once_and_not_early(self) -> None:
        if not hasattr(self, "rig"):
            return
        for name, expected in self.expected.items():
            occurrences = self.rig.occurrences(name)
            assert Counter(planned_ms for planned_ms, _ in occurrences) == expected
            assert all(stored_ms >= planned_ms for planned_ms, stored_ms in occurrences)

    @invariant()
    def the_oldest_definition_is_known(self) -> None:
        if hasattr(self, "rig"):
            offsets = self.rig.table.definition_offsets()
            assert self.rig.table.oldest_definition() == min(offsets, default=None)


TestSchedules = ScheduleMachine.TestCase
TestSchedules.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
