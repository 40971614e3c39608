"""Retention keeps the log that undecided checkpoints need, across restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.pop.checkpoints import PopCheckpoint
from duemq.pop.undecided_pops import MINUTE_MS, MINUTES_MAX, UndecidedPops
from duemq_common.clock import FakeClock
from tests.duemq.test_retention import clean, expiring
from tests.support.fakes import FakeStore, put
from tests.support.killed_copy import copy_as_killed
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import BrokerClient, running

HOUR_MS = 3_600_000


def checkpoint(offset: int, minute: int) -> PopCheckpoint:
    return PopCheckpoint("T", "g", 0, offset, minute * MINUTE_MS, 0, (offset,), "b")


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore(FakeClock())
    put(store, "T", *[b"x"] * 2_000)
    return store


@pytest.fixture
def undecided(store: FakeStore) -> UndecidedPops:
    return UndecidedPops(store)


def log_offset(store: FakeStore, offset: int) -> int:
    units = store.units("T", 0, offset, 1)
    return int(units[0]["phys_offset"])


def test_the_pin_of_a_minute_remains_until_all_its_checkpoints_are_decided(
    store: FakeStore, undecided: UndecidedPops
) -> None:
    assert undecided.first_needed() is None
    for offset, minute in [(7, 1), (5, 3), (3, 1), (6, 1)]:
        undecided.add(checkpoint(offset, minute))
    assert undecided.first_needed() == log_offset(store, 3)
    undecided.decided(2 * MINUTE_MS - 2)
    assert undecided.first_needed() == log_offset(store, 3)
    undecided.decided(2 * MINUTE_MS - 1)
    assert undecided.first_needed() == log_offset(store, 5)
    undecided.decided(4 * MINUTE_MS)
    assert undecided.first_needed() is None


def test_a_checkpoint_of_removed_messages_needs_no_pin(undecided: UndecidedPops) -> None:
    undecided.add(checkpoint(5_000, 1))
    assert undecided.first_needed() is None


def test_a_full_table_merges_minutes_and_keeps_the_lowest_offset(
    store: FakeStore, undecided: UndecidedPops
) -> None:
    for minute in range(MINUTES_MAX + 50):
        undecided.add(checkpoint(1_999 - minute, minute))
    assert len(undecided.table()) == MINUTES_MAX
    undecided.decided((MINUTES_MAX - 1) * MINUTE_MS)
    assert undecided.first_needed() == log_offset(store, 1_999 - MINUTES_MAX - 49)


@pytest.mark.sampled
@pytest.mark.parametrize("is_persisted", [True, False])
@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_retention_keeps_the_messages_of_undecided_checkpoints(
    tmp_path: Path, is_acknowledged: bool, is_persisted: bool
) -> None:
    """A kill during the invisible time; the persisted table may be older than the pop."""
    clock = FakeClock()

    async def before(root: Path) -> None:
        async with running(expiring(root), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            assert (await remote.send("T", b"popped")).code == 0
            await fill(remote)  # the checkpoint is in another file
            broker.parts.persist()
            [message] = await client.pop(invisibleTime=HOUR_MS)
            if is_acknowledged:
                assert (await client.ack(message)).code == 0
            if is_persisted:
                broker.parts.persist()
            assert_kept(broker)
            copy_as_killed(root, tmp_path / "killed")

    async def afterwards(root: Path) -> None:
        async with running(expiring(root), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            await advance(broker, clock, HOUR_MS // 2, by_ms=60_000)
            assert_kept(broker)
            await advance(broker, clock, HOUR_MS, by_ms=60_000)
            assert broker.parts.pop is not None
            assert broker.parts.pop.first_needed() is None
            found = [each.body for each in await client.pop()]
            assert found == ([] if is_acknowledged else [b"popped"])

    asyncio.run(before(tmp_path / "broker"))
    asyncio.run(afterwards(tmp_path / "killed"))


async def fill(remote: BrokerClient) -> None:
    for _ in range(8):
        assert (await remote.send("Other", b"x" * 30_000)).code == 0


def assert_kept(broker: Broker) -> None:
    clean(broker.store)
    assert broker.store.min_offset == 0
