"""A process is killed, the next one goes on from what it had written, then the power is cut.

What the first had written and not waited for is seen by the second as if it were on the disk. It
must be there before a checkpoint relies on it.
"""

from __future__ import annotations

import random

import pytest

from tests.support.failing_disk import Death
from tests.timer_store.test_model import Life, TimersAgainstAList

DELAYS_MS = tuple(range(110, 260, 10))


class LosesAll(random.Random):
    """What was not synced is lost, all of it."""

    def choice(self, seq):
        return seq[-1]

    def random(self):
        return 0.0


@pytest.mark.parametrize("steps", range(0, 24))
def test_each_timer_is_delivered_once(steps):
    life = Life(1, 1_024)
    life.chance = LosesAll()
    try:
        now_ms = life.clock.now_ms()
        life.rig.put_many([(now_ms + delay, "T", 0, b"%d" % delay) for delay in DELAYS_MS])
        later = [(now_ms + 50_000, "U", 0, b"later")] * 60  # in other files of the timer log
        life.rig.put_many(later)
        assert life.rig.persist()
        life.rig.advance(155)
        life.rig.store.flusher.flush()
        life.die(cut=False)
        life.disk.left = steps  # the second process is killed, too, before or behind its sync
        life.disk.spared = ("commitlog/",)
        life.rig.is_open = True
        try:
            life.rig.open()
        except Death:
            life.die(cut=False)
            life.rig.open()
        life.disk.left = None
        life.die(cut=True)
        life.rig.open()
        life.rig.advance(1_000)
        bodies = [int(body) for body in life.rig.bodies()]
        assert sorted(bodies) == list(DELAYS_MS)
    finally:
        life.end()


STEPS = [  # how the model found it: (what, steps, torn, cut, again)
    ("forward", 11, 300, True, 19),
    ("send", 14, 100, True, 2),
    ("restart", 13, 26, True, 23),
    ("forward", 13, 300, False, 7),
    ("forward", 4, 100, True, 2),
    ("send", 8, 26, True, 19),
    ("send", 10, 300, False, 12),
    ("send", 10, 53, False, 21),
    ("send", 1, 53, True, 24),
    ("persist", 6, 300, True, 13),
    ("send", 2, 52, True, 2),
]


def test_a_tombstone_does_not_outlive_its_delivery(monkeypatch):
    """A start knows of a delivery that nobody synced and marks its unit; then the power is cut."""
    monkeypatch.setattr("tests.timer_store.test_model.note", print)
    machine = TimersAgainstAList()
    try:
        machine.begin(seed=179, stage_max=30)
        for what, steps, torn, cut, again in STEPS:
            machine.die_at_a_step(what=what, steps=steps, torn=torn, cut=cut, again=again)
            machine.everything_adds_up()
        machine.rig.advance(5_000)
        machine.everything_adds_up()
    finally:
        machine.teardown()
