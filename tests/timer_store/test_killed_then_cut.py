"""A power cut after a kill and a restart.

The second process sees what the first had written but not synced. It must sync it before a
checkpoint relies on it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.extended import one_in
from tests.support.failing_disk import SimulatedCrash
from tests.timer_store.test_model import CrashRig, TimerStoreMachine

DELAYS_MS = tuple(range(110, 260, 10))


class LosesAll(random.Random):
    """A random source with which a power cut loses everything that was not synced."""

    def choice(self, seq: Sequence[Any]) -> Any:  # type: ignore[override]
        return seq[-1]

    def random(self) -> float:
        return 0.0


@pytest.mark.sampled
@pytest.mark.parametrize("steps", one_in(3, range(24)))
def test_timers_are_delivered_once(steps: int) -> None:
    crash_rig = CrashRig(1, 1_024)
    crash_rig.chance = LosesAll()
    try:
        now_ms = crash_rig.clock.now_ms()
        crash_rig.rig.put_many([(now_ms + delay, "T", 0, b"%d" % delay) for delay in DELAYS_MS])
        later = [(now_ms + 50_000, "U", 0, b"later")] * 60  # in other files of the timer log
        crash_rig.rig.put_many(later)
        assert crash_rig.rig.persist()
        crash_rig.rig.advance(155)
        crash_rig.rig.store.flusher.flush()
        crash_rig.crash(cut=False)
        crash_rig.disk.steps_left = (
            steps  # the second process is killed, too, before or after its sync
        )
        crash_rig.disk.ignored = ("commitlog/",)
        crash_rig.rig.is_open = True
        try:
            crash_rig.rig.open()
        except SimulatedCrash:
            crash_rig.crash(cut=False)
            crash_rig.rig.open()
        crash_rig.disk.steps_left = None
        crash_rig.crash(cut=True)
        crash_rig.rig.open()
        crash_rig.rig.advance(1_000)
        bodies = [int(body) for body in crash_rig.rig.bodies()]
        assert sorted(bodies) == list(DELAYS_MS)
    finally:
        crash_rig.remove()


STEPS = [  # found by the state machine: (what, steps, torn, cut, again)
    ("advance", 11, 300, True, 19),
    ("send", 14, 100, True, 2),
    ("restart", 13, 26, True, 23),
    ("advance", 13, 300, False, 7),
    ("advance", 4, 100, True, 2),
    ("send", 8, 26, True, 19),
    ("send", 10, 300, False, 12),
    ("send", 10, 53, False, 21),
    ("send", 1, 53, True, 24),
    ("persist", 6, 300, True, 13),
    ("send", 2, 52, True, 2),
]


def test_a_tombstone_does_not_outlive_its_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start finds an unsynced delivery and marks its unit; then the power is cut."""
    monkeypatch.setattr("tests.timer_store.test_model.note", print)
    machine = TimerStoreMachine()
    try:
        machine.begin(seed=179, stage_max=30)
        for what, steps, torn, cut, again in STEPS:
            machine.crash_at_a_step(what=what, steps=steps, torn=torn, cut=cut, again=again)
            machine.store_equals_model()
        machine.rig.advance(5_000)
        machine.store_equals_model()
    finally:
        machine.teardown()
