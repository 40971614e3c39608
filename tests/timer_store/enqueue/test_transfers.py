"""Checkpoints that are written while a transfer is blocked: later records apply exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from duemq_common.topics import DECISION_TOPIC, OWNERSHIP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.plugin import SCHEDULE_QUEUES
from schedule_service.tags_code_rule import LevelRule
from tests.message_store.replication.test_raw_append import feed, log_of
from tests.migration.steps.test_drain import DELAYS_MS, fill
from tests.support.migration_rig import LEVELS, MigrationRig
from tests.support.stores import open_store
from tests.support.timer_log_room import UNLIMITED, timer_log_room
from timer_store.checkpoint.standby import Standby

SIZES = [700, 90, 4_000]
STANDBY_LOG = "timer_store.checkpoint.standby"


class Pair:
    """Master with levels, timers and migrations, and a replica that writes checkpoints."""

    def __init__(self, root: Path) -> None:
        self.master = MigrationRig(root / "master").open()
        clock, self.root = self.master.clock, root / "replica"
        rules = (LevelRule(SCHEDULE_TOPIC, LevelHistory([LevelText(0, LEVELS)]).tables),)
        self.store = open_store(self.root, clock, rules)
        self.store.__enter__()
        self.store.read_only = "this broker is a replica"
        queues = {SCHEDULE_TOPIC: SCHEDULE_QUEUES, DECISION_TOPIC: 1, TIMER_TOPIC: 1}
        for name, count in {**queues, OWNERSHIP_TOPIC: 1, "T": 4, "U": 4}.items():
            self.store.topics.set_routing(name, write_queues=count, read_queues=count, perm=6)
        self.standby = Standby(self.store, clock, self.master.timer_config)

    def copy(self) -> None:
        """Copy what the master has appended."""
        end = self.store.max_offset
        feed(self.store, log_of(self.master.store)[end:], end, SIZES)
        self.store.flush()

    def checkpoint(self, room_units: int = UNLIMITED) -> None:
        """Copy, and write a checkpoint on a disk with room for some units."""
        self.copy()
        with timer_log_room(room_units):
            assert asyncio.run(self.standby.refresh())

    def promoted(self) -> MigrationRig:
        """Kill the master; return the replica as the new master."""
        self.master.kill()
        self.store.__exit__(None, None, None)
        return MigrationRig(self.root, self.master.clock).open()


def transfer(pair: Pair, level: int, count: int) -> None:
    assert pair.master.drain.step(level, count).moved == count


def give_back(pair: Pair, level: int, count: int) -> None:
    assert pair.master.return_units.step(level, count).moved == count


def blocked(pair: Pair) -> None:
    """Write a checkpoint that lacks the second transfer."""
    transfer(pair, 5, 10)
    give_back(pair, 4, 15)
    pair.checkpoint(room_units=0)


def blocked_within(pair: Pair) -> None:
    """Write two checkpoints that lack the end of the second transfer; its middle is returned."""
    transfer(pair, 5, 50)
    pair.checkpoint(room_units=9)  # the first file of the log is full then
    give_back(pair, 5, 45)
    pair.checkpoint(room_units=0)


def transferred_again(pair: Pair) -> None:
    """Transfer the returned messages again, which the checkpoint lacks."""
    transfer(pair, 5, 10)
    give_back(pair, 4, 15)
    assert pair.master.persist_timers()  # with the tombstones of the returned messages
    transfer(pair, 4, 5)
    pair.checkpoint(room_units=0)


def returned_again(pair: Pair) -> None:
    transferred_again(pair)
    give_back(pair, 4, 10)
    pair.checkpoint(room_units=0)


def delivered_before(pair: Pair) -> None:
    """Return messages of a second whose first messages are delivered."""
    transfer(pair, 5, 10)
    pair.master.advance(DELAYS_MS[4] - 10)
    assert pair.master.return_units.step(4, 30).moved == 20  # 20 of the 40 are delivered
    pair.checkpoint(room_units=0)


CASES = [blocked, blocked_within, transferred_again, returned_again, delivered_before]


@pytest.mark.sampled
@pytest.mark.parametrize("later_ms", [0, 59_997, 60_100], ids=["none due", "some due", "all due"])
@pytest.mark.parametrize("again", [False, True], ids=["promoted", "next checkpoint"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_return_during_a_blocked_transfer_applies_once(
    case: Callable[[Pair], None],
    again: bool,
    later_ms: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, STANDBY_LOG)
    pair = Pair(tmp_path)
    due = fill(pair.master, 40, (4,))
    due |= fill(pair.master, 70, (5,))
    transfer(pair, 4, 40)
    pair.checkpoint()
    case(pair)
    pair.master.advance(later_ms)
    due |= fill(pair.master, 1, (3,))
    if again:
        pair.checkpoint()
    pair.master.work()
    pair.copy()
    owners = pair.master.level_pending, pair.master.timers.counts.total
    delivered = Counter(record.body for record in pair.master.delivered())
    new = pair.promoted()
    assert [*(r.getMessage() for r in caplog.records if r.name == STANDBY_LOG), *new.notices] == []
    assert (new.level_pending, new.timers.counts.total) == owners
    assert Counter(record.body for record in new.delivered()) == delivered
    for level in (4, 5):
        assert new.verify(level).is_right
    new.advance(200_000)
    assert Counter(record.body for record in new.delivered()) == Counter(due.keys())
    assert all(record.store_ms >= due[record.body] for record in new.delivered())
    assert (new.level_pending, new.timers.counts.total) == (0, 0)
    new.close()
