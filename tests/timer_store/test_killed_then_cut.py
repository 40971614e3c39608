"""A process is killed, the next one goes on from what it had written, then the power is cut.

What the first had written and not waited for is seen by the second as if it were on the disk. It
must be there before a checkpoint relies on it.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from tests.timer_store.faults import Death
from tests.timer_store.test_model import Life

DELAYS_MS = tuple(range(110, 260, 10))


class LosesAll(random.Random):
    """What was not synced is lost, all of it."""

    def choice(self, seq):
        return seq[-1]

    def random(self):
        return 0.0


@pytest.mark.parametrize("steps", range(0, 24))
def test_each_timer_comes_once(steps):
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


class LosesTheLog(random.Random):
    """What was written is on the disk, but of the commit log only what was synced."""

    synced = 0

    def choice(self, seq):
        return seq[0]

    def random(self):
        return 1.0

    def randint(self, a, b):
        return max(a, self.synced)


@pytest.mark.parametrize("steps", range(0, 24, 2))
def test_a_tombstone_does_not_outlive_its_delivery(steps):
    """The second process knows of deliveries that nobody synced: it marks their units."""
    life = Life(1, 1_024)
    life.chance = chance = LosesTheLog()
    try:
        now_ms = life.clock.now_ms()
        life.rig.put_many([(now_ms + delay, "T", 0, b"%d" % delay) for delay in DELAYS_MS])
        assert life.rig.persist()
        life.rig.advance(155)
        assert life.rig.bodies()
        chance.synced = life.rig.store.durable_offset  # a store that dies in its start knows less
        life.die(cut=False)
        life.disk.left = steps
        life.disk.spared = ("commitlog/",)
        life.rig.is_open = True
        with suppress(Death):
            life.rig.open()
        life.disk.left = None
        life.die(cut=True)
        life.rig.open()
        life.rig.advance(1_000)
        assert sorted(int(body) for body in life.rig.bodies()) == list(DELAYS_MS)
    finally:
        life.end()
