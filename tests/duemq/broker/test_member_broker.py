"""Broker of a group: what its group service reads from it, and its changes of role."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest

from duemq.broker.member_broker import MemberBroker
from tests.support.free_ports import free_ports
from tests.support.running_broker import connected, small

WAIT_S_MAX = 60


def test_replicas_are_unknown_while_no_broker_serves(tmp_path: Path) -> None:
    """An empty set would remove all replicas from the sync state set of a master that closes."""
    assert member_in(tmp_path).caught_up is None


@pytest.mark.finding("3D7")
def test_a_master_whose_sync_failed_returns_as_a_replica_without_the_unsynced_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page cache may have bytes that are not on the disk, and that no later sync writes."""
    member = member_in(tmp_path)
    sync, fails = os.fdatasync, True

    def fail_in_log(fd: int) -> None:
        if fails and "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    async def main() -> None:
        nonlocal fails
        caplog.set_level(logging.INFO)
        run = asyncio.create_task(member.runner.run())
        await member.become_master(1)
        master = member.runner.broker
        assert master is not None
        master.store.fence = lambda: ""  # as with a lease
        await master.parts.topics.ensure("T", queues=1)
        async with connected(master.address) as remote:
            await remote.send("T", b"synced")
        await master.store.flusher.wait(master.store.max_offset, WAIT_S_MAX)
        synced = master.store.flusher.durable
        monkeypatch.setattr(os, "fdatasync", fail_in_log)
        async with connected(master.address) as remote:
            await remote.send("T", b"not synced")
        await master.store.flusher.wait(master.store.max_offset, WAIT_S_MAX)
        assert member.store_failed
        fails = False  # the disk works again
        await member.become_replica(2, "127.0.0.1:1", 2)
        replica = member.runner.broker
        assert replica is not None
        assert replica is not master
        assert any(f"the log ends at {synced} now (" in line for line in caplog.messages)
        kept = [line for line in caplog.messages if f"truncated to {synced}; " in line]
        assert [str(tmp_path / "store" / "truncated") in line for line in kept] == [True]
        assert (replica.store.max_offset, member.store_failed) == (synced, False)
        member.runner.stop()
        assert await run == ""

    asyncio.run(main())


def member_in(root: Path) -> MemberBroker:
    """Return a member of a group without a controller."""
    _, _, port, _ = free_ports(4)  # VIP is 2 below, replicas 1 above
    keys = {
        "enableControllerMode": "true",
        "controllerAddr": "127.0.0.1:1",
        "listenPort": str(port),
        "slaveTimeout": "10",
    }
    return MemberBroker({**small(root), **keys}, plugins=[])
