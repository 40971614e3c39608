"""Recovery of pops that are in the log but not in the table of consumer offsets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from duemq.pop.revival import reviver
from duemq.registry.consumer_offsets import OffsetManager
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from tests.support.killed_copy import copy_as_killed
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import running, small

OFFSETS = "store/config/consumerOffset.json"


def popped_after_a_kill(tmp_path: Path, *, invisible_ms: int, has_member: bool = True) -> list[str]:
    """Write the table, pop two of three messages, kill; return the bodies of the next pop."""
    clock = FakeClock()

    async def before(root: Path) -> None:
        async with running(small(root), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            for body in (b"a", b"b", b"c"):
                assert (await remote.send("T", body)).code == 0
            broker.parts.persist()
            await client.pop(maxMsgNums=2, invisibleTime=invisible_ms)
            copy_as_killed(root, tmp_path / "killed")

    async def afterwards(root: Path) -> list[str]:
        async with running(small(root), clock=clock) as (_, remote):
            found = await PopClient(remote, clock).pop()
            return [message.body.decode() for message in found]

    asyncio.run(before(tmp_path / "broker"))
    root = tmp_path / "killed"
    if not has_member:
        table = json.loads((root / OFFSETS).read_text())
        del table["pops"], table["crc32"]
        for name in (OFFSETS, f"{OFFSETS}.bak"):
            (root / name).write_text(json.dumps(table))
    return asyncio.run(afterwards(root))


@pytest.mark.parametrize("invisible_ms", [60_000, 500], ids=["pending", "due at once"])
def test_a_pop_that_only_the_log_contains_is_not_repeated(
    tmp_path: Path, invisible_ms: int
) -> None:
    assert popped_after_a_kill(tmp_path, invisible_ms=invisible_ms) == ["c"]


def test_a_start_with_a_full_table_of_offsets_repeats_pops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal of an offset ended the start."""
    commit = OffsetManager.commit

    def refuse(offsets: OffsetManager, group: str, topic: str, *where: int) -> None:
        if topic == "T":
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the table is full")
        commit(offsets, group, topic, *where)

    monkeypatch.setattr(OffsetManager, "commit", refuse)
    assert popped_after_a_kill(tmp_path, invisible_ms=60_000) == ["a", "b", "c"]


def test_messages_that_were_revived_before_a_kill_are_not_revived_again(tmp_path: Path) -> None:
    """The table on the disk is older than the revival, so its progress is lost."""
    clock = FakeClock()

    async def before() -> None:
        async with running(small(tmp_path / "broker"), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            for body in (b"a", b"b", b"c"):
                assert (await remote.send("T", body)).code == 0
            broker.parts.persist()
            messages = await client.pop(invisibleTime=500)
            assert (await client.ack(messages[1])).code == 0
            await advance(broker, clock, 3_000)
            copy_as_killed(tmp_path / "broker", tmp_path / "killed")

    async def afterwards() -> None:
        async with running(small(tmp_path / "killed"), clock=clock) as (broker, remote):
            await advance(broker, clock, 3_000)
            assert broker.store.queue_bounds("%RETRY%g_T", 0) == (0, 2)
            found = await PopClient(remote, clock).pop()
            assert [message.body for message in found] == [b"a", b"c"]

    asyncio.run(before())
    asyncio.run(afterwards())


def test_nothing_is_revived_before_its_acknowledgement_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker starts after all invisible times have ended, and reads one record per turn."""
    monkeypatch.setattr(reviver, "UNITS_MAX", 1)
    clock = FakeClock()

    async def before() -> None:
        async with running(small(tmp_path), clock=clock) as (_, remote):
            client = PopClient(remote, clock)
            for number in range(20):
                assert (await remote.send("T", b"%d" % number)).code == 0
            for _ in range(10):
                for message in await client.pop(maxMsgNums=2, invisibleTime=5_000):
                    assert (await client.ack(message)).code == 0

    async def afterwards() -> None:
        async with running(small(tmp_path), clock=clock) as (broker, _):
            await advance(broker, clock, 3_000)
            assert broker.store.queue_bounds("%RETRY%g_T", 0) == (0, 0)

    asyncio.run(before())
    clock.advance(60_000)
    asyncio.run(afterwards())


def test_recovery_does_not_change_a_table_of_apaches(tmp_path: Path) -> None:
    """The table has no log offset up to which it is complete; Apache's broker recovers no pops."""
    assert popped_after_a_kill(tmp_path, invisible_ms=60_000, has_member=False) == ["a", "b", "c"]


def test_a_persisted_reset_survives_recovery(tmp_path: Path) -> None:
    clock = FakeClock()

    async def main() -> None:
        async with running(small(tmp_path), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            for body in (b"a", b"b"):
                assert (await remote.send("T", body)).code == 0
            await client.pop()
            broker.parts.offsets.commit("g", "T", 0, 0)
        async with running(small(tmp_path), clock=clock) as (_, remote):
            found = await PopClient(remote, clock).pop()
            assert [message.body for message in found] == [b"a", b"b"]

    asyncio.run(main())


def test_recovery_ignores_deliveries_of_older_checkpoints(tmp_path: Path) -> None:
    """After a reset the group pops again; the checkpoint of its first pop is delivered later."""
    clock = FakeClock()

    async def before() -> None:
        async with running(small(tmp_path / "broker"), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            for body in (b"a", b"b", b"c"):
                assert (await remote.send("T", body)).code == 0
            for message in await client.pop(invisibleTime=10_000):
                assert (await client.ack(message)).code == 0
            broker.parts.offsets.commit("g", "T", 0, 0)
            await client.pop(maxMsgNums=1, invisibleTime=600_000)
            broker.parts.persist()
            await advance(broker, clock, 11_000)
            copy_as_killed(tmp_path / "broker", tmp_path / "killed")

    async def afterwards() -> list[bytes]:
        async with running(small(tmp_path / "killed"), clock=clock) as (_, remote):
            return [message.body for message in await PopClient(remote, clock).pop()]

    asyncio.run(before())
    assert asyncio.run(afterwards()) == [b"b", b"c"]


def test_a_pop_of_a_topic_that_was_created_again_is_not_repeated(tmp_path: Path) -> None:
    """The table has the offsets of the deleted topic, whose groups the start resets."""
    clock = FakeClock()

    async def before() -> None:
        async with running(small(tmp_path / "broker"), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            assert (await remote.send("T", b"old")).code == 0
            assert [message.body for message in await client.pop()] == [b"old"]
            broker.parts.persist()
            deleted = await remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert deleted.code == 0
            await broker.parts.topics.ensure("T", queues=1)
            assert (await remote.send("T", b"popped")).code == 0
            assert [message.body for message in await client.pop()] == [b"popped"]
            assert (await remote.send("T", b"new")).code == 0
            copy_as_killed(tmp_path / "broker", tmp_path / "killed")

    async def afterwards() -> list[bytes]:
        async with running(small(tmp_path / "killed"), clock=clock) as (_, remote):
            return [message.body for message in await PopClient(remote, clock).pop()]

    asyncio.run(before())
    assert asyncio.run(afterwards()) == [b"new"]
