"""Sync state set of a master: what is confirmed, and which replicas belong into it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from duemq.configuration.ha_server_config import HaServerConfig
from duemq.replication.sync_state_set import SyncStateSetReplicas
from message_store.replication.acknowledgement import Replicated

OWN_ID = 1
CATCH_UP_MS = 15_000


@dataclass
class FakeReplica:
    replica_id: int | None
    acknowledged: int | None
    is_learner: bool = False


class Rig:
    """A master whose log ends at 1,000 and was confirmed up to 100, and its replicas."""

    def __init__(self, *required: int, epoch_start: int = 0, **keys: Any) -> None:
        self.required = frozenset(required)
        self.replicated = Replicated()
        self.replicated.require(100)
        self.replicas: list[Any] = []
        self.log_end, self.now_ms, self.changes = 1_000, 0, 0
        config = HaServerConfig(**keys)
        self.set = SyncStateSetReplicas(
            self.replicated,
            OWN_ID,
            lambda: self.required,
            lambda: self.replicas,
            lambda: self.log_end,
            lambda: epoch_start,
            lambda: self.now_ms,
            config=lambda: config,
            catch_up_ms_max=CATCH_UP_MS,
            on_change=self._changed,
        )
        self.set.update()

    def _changed(self) -> None:
        self.changes += 1

    def report(self, replica: FakeReplica, end: int) -> None:
        """Have a replica report, and connect it if it is not."""
        if not any(each is replica for each in self.replicas):
            self.replicas.append(replica)
        replica.acknowledged = end
        self.set.update()


@pytest.mark.parametrize(
    ("required", "replicas", "confirmed"),
    [
        ((1,), [], 1_000),
        ((1,), [(2, 300)], 1_000),  # not in the set
        ((1, 2), [(2, 300)], 300),
        ((1, 2, 3), [(2, 300), (3, 200)], 200),
        ((1, 2, 3), [(2, 300)], 100),  # 3 has no connection: as it was
        ((1, 2), [(2, None)], 100),  # it has not reported
        ((1, 2), [(2, 50)], 100),  # never back
        ((1, 2), [(2, 700), (2, 300)], 300),  # two connections of one id
        ((1, 2), [(2, 300), (2, 700)], 300),
        ((1, 2), [(2, 300), (None, 200)], 300),
        ((), [(2, 300)], 100),  # it is no master (any more)
    ],
)
def test_what_the_whole_set_has_is_confirmed(
    required: tuple[int, ...], replicas: list[tuple[int | None, int | None]], confirmed: int
) -> None:
    rig = Rig(*required)
    rig.replicated.offset = 100
    rig.replicas = [FakeReplica(*each) for each in replicas]
    rig.set.update()
    assert rig.replicated.offset == confirmed


def test_a_learner_is_never_in_the_set() -> None:
    rig = Rig(1, 2)
    rig.report(FakeReplica(2, 0, is_learner=True), 1_000)
    assert rig.replicated.offset == 100
    assert rig.set.caught_up == frozenset()


def test_a_member_stays_for_the_whole_limit_after_it_reported_the_end() -> None:
    rig, replica = Rig(1, 2), FakeReplica(2, 0)
    rig.report(replica, 1_000)
    rig.now_ms = CATCH_UP_MS
    rig.report(replica, 1_000)
    rig.log_end, rig.now_ms = 2_000, 2 * CATCH_UP_MS
    assert rig.set.caught_up == {2}
    rig.now_ms += 1
    assert rig.set.caught_up == set()


@pytest.mark.parametrize(
    ("epoch_start", "end", "joins"),
    [
        (0, 99, False),
        (0, 100, True),  # all that is confirmed
        (600, 599, False),  # the former set may have confirmed more than this master knows
        (600, 600, True),
    ],
)
def test_a_replica_joins_with_what_may_be_confirmed(
    epoch_start: int, end: int, joins: bool
) -> None:
    rig = Rig(1, 2, epoch_start=epoch_start)  # 2 has no connection: nothing is confirmed
    rig.report(FakeReplica(3, 0), end)
    assert rig.set.caught_up == ({3} if joins else set())
    assert rig.changes == joins


def test_a_member_that_lags_leaves_after_a_while() -> None:
    rig = Rig(1, 2)
    member = FakeReplica(2, 0)
    rig.report(member, 1_000)
    assert rig.set.caught_up == {2}
    rig.log_end = 2_000
    rig.now_ms = CATCH_UP_MS
    rig.report(member, 1_500)
    assert rig.set.caught_up == {2}
    rig.now_ms += 1
    assert rig.set.caught_up == frozenset()
    rig.set.update()
    assert rig.changes == 2


def test_a_member_that_follows_a_growing_log_stays() -> None:
    """Each report names the end that the log had at the report before."""
    rig = Rig(1, 2)
    member = FakeReplica(2, 0)
    rig.report(member, 1_000)
    for _ in range(40):
        before, rig.log_end = rig.log_end, rig.log_end + 100
        rig.now_ms += 1_000
        rig.report(member, before)
    assert rig.set.caught_up == {2}
    for _ in range(40):  # now it falls behind
        rig.log_end += 100
        rig.now_ms += 1_000
        rig.report(member, before + 1)
    assert rig.set.caught_up == frozenset()


def test_a_member_whose_connection_ends_leaves_at_once_and_nothing_is_confirmed_without_it() -> (
    None
):
    rig = Rig(1, 2)
    member = FakeReplica(2, 0)
    rig.report(member, 1_000)
    rig.replicas.clear()
    rig.log_end = 1_200
    rig.set.update()
    assert rig.set.caught_up == frozenset()
    assert rig.replicated.offset == 1_000
    rig.required = frozenset({1})  # the controller agreed
    rig.set.update()
    assert rig.replicated.offset == 1_200


@pytest.mark.parametrize(("least", "refused"), [(1, False), (2, False), (3, True)])
def test_a_small_set_refuses_messages(least: int, refused: bool) -> None:
    rig = Rig(1, 2, in_sync_replicas_min=least)
    assert ("minInSyncReplicas is 3" in rig.replicated.refusal) == refused


def test_random_reports_confirm_what_a_plain_count_confirms() -> None:
    chance = random.Random(7)
    for _ in range(200):
        rig = Rig(1, *chance.sample([2, 3, 4], chance.randrange(4)))
        replicas = [FakeReplica(number, 0) for number in (2, 3, 4)]
        confirmed = rig.replicated.offset
        for _ in range(20):
            replica = chance.choice(replicas)
            if chance.random() < 0.2 and replica in rig.replicas:
                rig.replicas.remove(replica)
                rig.set.update()
            else:
                rig.report(replica, min((replica.acknowledged or 0) + 50, rig.log_end))
            others = rig.required - {1}
            ends = {each.replica_id: each.acknowledged or 0 for each in rig.replicas}
            if others <= ends.keys():
                own = [ends[number] for number in others]
                confirmed = max(confirmed, min(own, default=rig.log_end))
            assert rig.replicated.offset == confirmed
