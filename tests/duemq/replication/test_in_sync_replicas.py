"""Which replicas are in sync, and how many must acknowledge."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from duemq.configuration.ha_server_config import HaServerConfig
from duemq.replication.in_sync_replicas import InSyncReplicas, needed_replicas
from message_store.replication.acknowledgement import Replicated

GAP = 256 << 20


@dataclass
class FakeReplica:
    acknowledged: int | None


@pytest.mark.parametrize(
    ("keys", "in_sync", "needed"),
    [
        ({}, 0, 1),
        ({}, 3, 1),
        ({"in_sync_replicas": 2}, 3, 1),
        ({"in_sync_replicas": 3}, 1, 2),
        ({"in_sync_replicas": 3}, 4, 2),
        ({"all_ack": True}, 0, 1),
        ({"all_ack": True}, 3, 3),
        ({"all_ack": True, "in_sync_replicas": 4}, 1, 1),
        ({"auto_in_sync_replicas": True}, 0, 0),
        ({"auto_in_sync_replicas": True}, 1, 1),
        ({"auto_in_sync_replicas": True, "in_sync_replicas": 3}, 1, 1),
        ({"auto_in_sync_replicas": True, "in_sync_replicas": 3, "in_sync_replicas_min": 2}, 0, 1),
        ({"auto_in_sync_replicas": True, "all_ack": True}, 0, 0),
    ],
)
def test_so_many_replicas_must_acknowledge(keys: dict[str, Any], in_sync: int, needed: int) -> None:
    assert needed_replicas(HaServerConfig(**keys), in_sync) == needed


class Rig:
    """Replicas of a log."""

    def __init__(self, *ends: int | None, log_end: int, **keys: Any) -> None:
        self.replicated = Replicated()
        self.replicated.require(0)
        self.replicas: list[Any] = [FakeReplica(end) for end in ends]
        self.log_end = log_end
        self.config = HaServerConfig(**keys)
        self.in_sync = InSyncReplicas(
            self.replicated, lambda: self.config, lambda: self.replicas, lambda: self.log_end
        )
        self.in_sync.update()


@pytest.mark.parametrize(
    ("ends", "keys", "confirmed"),
    [
        ((), {}, None),
        ((None,), {}, None),
        ((70,), {}, 70),
        ((70, 90, 80), {}, 90),
        ((70, 90, 80), {"in_sync_replicas": 3}, 80),
        ((70, 90, 80), {"all_ack": True}, 70),
        ((70, 90, None), {"in_sync_replicas": 4}, None),
        ((), {"auto_in_sync_replicas": True}, 1_000),
        ((70, 90), {"in_sync_replicas": 4, "auto_in_sync_replicas": True}, 70),
        ((70, 990), {"gap_bytes_max": 100, "all_ack": True}, 990),
        ((900, 901), {"gap_bytes_max": 100}, 901),
        ((900,), {"gap_bytes_max": 100}, None),
    ],
)
def test_what_enough_replicas_have_is_confirmed(
    ends: tuple[int | None, ...], keys: dict[str, Any], confirmed: int | None
) -> None:
    rig = Rig(*ends, log_end=1_000, **keys)
    assert rig.replicated.is_possible == (confirmed is not None)
    assert rig.replicated.offset == (confirmed or 0)


def test_a_replica_that_falls_back_or_leaves_is_not_counted() -> None:
    rig = Rig(1_000, log_end=1_000)
    rig.log_end += GAP
    rig.in_sync.update()
    assert not rig.in_sync.is_in_sync(rig.replicas[0])
    assert not rig.replicated.is_possible
    rig.replicas[0].acknowledged = rig.log_end
    rig.in_sync.update()
    assert rig.replicated.offset == rig.log_end
    rig.replicas.clear()
    rig.in_sync.update()
    assert not rig.replicated.is_possible


def test_below_the_minimum_messages_are_refused() -> None:
    rig = Rig(1_000, log_end=1_000, in_sync_replicas_min=3)
    assert "in-sync replicas not enough: 2" in rig.replicated.refusal
    rig.replicas.append(FakeReplica(0))
    rig.in_sync.update()
    assert rig.replicated.refusal == ""


@pytest.mark.parametrize(
    ("keys", "code", "settings"),
    [
        ({}, 11, "set enableAutoInSyncReplicas=true to"),
        ({"in_sync_replicas_min": 2}, 14, "enableAutoInSyncReplicas=true and minInSyncReplicas=1"),
        (
            {"in_sync_replicas_min": 2, "auto_in_sync_replicas": True},
            14,
            "set minInSyncReplicas=1 to",
        ),
    ],
    ids=["none", "minimum", "minimum with auto"],
)
def test_the_notice_names_the_settings_and_the_code_of_a_master_without_replicas(
    keys: dict[str, Any], code: int, settings: str, caplog: pytest.LogCaptureFixture
) -> None:
    Rig(log_end=100, **keys)
    [notice] = caplog.messages
    assert f"response code {code}," in notice
    assert settings in notice


def test_without_sync_master_nothing_is_required() -> None:
    rig = Rig(log_end=1_000, in_sync_replicas_min=3)
    rig.replicated.required, rig.replicated.refusal = False, ""
    rig.in_sync.update()
    assert rig.replicated.refusal == ""


def test_no_order_of_reports_confirms_what_too_few_have() -> None:
    """The specification is a list: count the replicas that have each offset."""
    for seed in range(300):
        chance = random.Random(seed)
        copies, count = chance.randint(1, 4), chance.randint(1, 5)
        rig = Rig(*[0] * count, log_end=0, in_sync_replicas=copies)
        highest = 0
        for _ in range(30):
            rig.log_end += chance.choice([0, 100])
            one = chance.choice(rig.replicas)
            one.acknowledged = chance.randint(one.acknowledged or 0, rig.log_end)
            rig.in_sync.update()
            ends = [replica.acknowledged or 0 for replica in rig.replicas]
            have = [end for end in ends if sum(e >= end for e in ends) >= max(copies - 1, 1)]
            highest = max([highest, *have])
            assert rig.replicated.offset == highest
