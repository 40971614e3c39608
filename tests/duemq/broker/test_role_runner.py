"""Brokers of changing roles in one process."""

from __future__ import annotations

import asyncio
import errno
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from duemq.broker.broker import Broker
from duemq.broker.role_runner import RoleRunner
from duemq.replication.controller.requests import GroupName
from duemq.replication.controller.service import GroupService
from duemq.replication.epoch_file import EpochFile
from duemq.replication.membership import Membership
from duemq.replication.role import ReplicationRole
from tests.support.running_broker import connected, small

WAITING = ReplicationRole(is_replica=True, own_id=2)
MASTER = ReplicationRole(is_replica=False, own_id=2, epoch=1)
DEMOTED = ReplicationRole(is_replica=True, own_id=2, epoch=2, master_address="127.0.0.1:1")
SERVICE_NOT_AVAILABLE = 14
WAIT_S_MAX = 60


class Alone:
    """The service of a group whose only member is this broker; its lease is always valid."""

    required_ids = frozenset({WAITING.own_id})
    group = GroupName("DefaultCluster", "test")

    def holds(self, epoch: int) -> bool:
        return True

    def view(self) -> dict[str, object]:
        return {}

    def notify(self) -> None: ...

    def check_in_sync(self) -> None: ...


def broker_in(root: Path, role: ReplicationRole) -> Broker:
    """Return a broker of a role, not entered."""
    properties = small(root)
    membership = Membership(
        role,
        EpochFile(root / "epochs"),
        cast(GroupService, Alone()),
        truncate=lambda offset: None,
        is_learner=False,
        catch_up_ms_max=1_000,
    )
    return Broker(properties, membership=membership)


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[RoleRunner]:
    runner = RoleRunner(partial(broker_in, root), WAITING)
    work = asyncio.create_task(runner.run())
    yield runner
    runner.stop()
    assert await work == ""


async def send_in_role(runner: RoleRunner, role: ReplicationRole, body: bytes) -> int:
    """Change the role and return the code of the answer to a send."""
    runner.assign(role)
    await runner.serves()
    assert runner.broker is not None
    async with connected(runner.broker.address) as remote:
        return (await remote.send("T", body, DELAY="1")).code


def test_only_the_master_accepts_messages_and_the_store_follows_the_role(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as runner:
            assert await send_in_role(runner, WAITING, b"a") == SERVICE_NOT_AVAILABLE
            assert await send_in_role(runner, MASTER, b"b") == 0
            assert runner.broker is not None
            assert runner.broker.config.broker_id == 0
            end = runner.broker.store.max_offset
            assert await send_in_role(runner, DEMOTED, b"c") == SERVICE_NOT_AVAILABLE
            assert runner.broker.config.broker_id == DEMOTED.own_id
            assert runner.broker.store.max_offset == end

    asyncio.run(main())


@pytest.mark.finding("3D6")
def test_the_same_master_elected_again_keeps_its_store_open(tmp_path: Path) -> None:
    again = ReplicationRole(is_replica=False, own_id=2, epoch=4)

    async def main() -> None:
        async with running(tmp_path) as runner:
            assert await send_in_role(runner, MASTER, b"a") == 0
            broker = runner.broker
            assert broker is not None
            end = broker.store.max_offset
            assert await send_in_role(runner, again, b"b") == 0
            assert runner.broker is broker
            assert runner.role == again
            assert EpochFile(tmp_path / "epochs").epochs.entries == ((1, 0), (4, end))
            await broker.parts.topics.ensure("New", queues=1)
            assert broker.parts.topics.version.state_version == again.epoch

    asyncio.run(main())


@pytest.mark.finding("3D6")
def test_a_replica_whose_master_is_elected_again_keeps_its_store_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as runner:
            brokers = []
            for epoch, address in ((2, "127.0.0.1:1"), (3, "127.0.0.1:1"), (4, "127.0.0.1:2")):
                role = ReplicationRole(
                    is_replica=True, own_id=2, epoch=epoch, master_address=address
                )
                assert await send_in_role(runner, role, b"a") == SERVICE_NOT_AVAILABLE
                assert runner.role == role
                brokers.append(runner.broker)
            assert brokers[0] is brokers[1]
            assert brokers[1] is not brokers[2]

    asyncio.run(main())


@pytest.mark.finding("3D7")
def test_a_store_that_failed_is_opened_again_when_its_disk_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.broker.role_runner.RETRY_S", 0.01)
    attempts = []

    def truncate() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError(errno.EIO, "the disk does not work")

    async def main() -> None:
        async with running(tmp_path) as runner:
            assert await send_in_role(runner, MASTER, b"a") == 0
            master = runner.broker
            assert master is not None
            runner.restart(truncate, retry=True)
            assert await send_in_role(runner, DEMOTED, b"b") == SERVICE_NOT_AVAILABLE
            assert runner.broker is not master

    asyncio.run(main())
    assert len(attempts) == 3


def test_a_collection_frees_a_closed_broker(tmp_path: Path) -> None:
    """Objects of the time before the first broker are frozen in a process of `duemq broker`."""
    made: list[weakref.ref[Broker]] = []

    def new_broker(role: ReplicationRole) -> Broker:
        broker = broker_in(tmp_path, role)
        made.append(weakref.ref(broker))
        return broker

    async def main() -> None:
        runner = RoleRunner(new_broker, WAITING)
        work = asyncio.create_task(runner.run())
        for role in (WAITING, MASTER, DEMOTED):
            await send_in_role(runner, role, b"a")
        gc.collect()
        assert [each() is None for each in made] == [True, True, False]
        runner.stop()
        await work

    asyncio.run(main())


def test_the_newest_of_several_roles_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as runner:
            runner.assign(MASTER)
            assert await send_in_role(runner, DEMOTED, b"a") == SERVICE_NOT_AVAILABLE
            assert runner.role == DEMOTED

    asyncio.run(main())


def test_a_stop_of_the_broker_ends_the_runner_with_its_reason(tmp_path: Path) -> None:
    async def main() -> str:
        runner = RoleRunner(partial(broker_in, tmp_path), MASTER)
        work = asyncio.create_task(runner.run())
        await runner.serves()
        assert runner.broker is not None
        runner.broker.stop("the plugin cannot continue")
        return await work

    assert asyncio.run(main()) == "the plugin cannot continue"


def test_a_stop_during_a_change_of_role_ends_what_waits_for_the_role(tmp_path: Path) -> None:
    async def main() -> None:
        runner = RoleRunner(partial(broker_in, tmp_path), WAITING)
        work = asyncio.create_task(runner.run())
        await runner.serves()
        runner.assign(MASTER)
        change = asyncio.create_task(runner.serves())
        runner.stop()
        assert await work == ""
        async with asyncio.timeout(WAIT_S_MAX):
            await change

    asyncio.run(main())
