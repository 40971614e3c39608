"""DueMQ members of groups with Apache's controller."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from duemq.namesrv.registration import BrokerAddress, register_request
from duemq.net.client import RemotingClient
from duemq.replication.controller.requests import GroupName
from duemq_common.data_version import DataVersion
from tests.interop.apache_controller import ApacheController, ApacheMember
from tests.interop.group_members import WAIT_S, Member, config_of, member
from tests.support.child_process import Child
from tests.support.duemq_server import ROOT
from tests.support.extended import extended
from tests.support.wait_until import WaitedTooLong, until

CLUSTER = "DefaultCluster"
LOSSES_MAX = 3
UNCLEAN = "enableElectUncleanMaster"
FAST = {"scanNotActiveBrokerInterval": "500", "scanInactiveMasterInterval": "500"}


@pytest.fixture(scope="module", params=[extended("5.3.3"), "5.5.0"])
def controller(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheController]:
    """Apache's controller of each version; every test has a group of its own."""
    home = tmp_path_factory.mktemp("controller")
    with ApacheController(str(request.param), home, keys=FAST) as started:
        yield started


@pytest.fixture
def group(request: pytest.FixtureRequest) -> GroupName:
    """Name of a group for this test only."""
    return GroupName(CLUSTER, re.sub("[^a-z0-9]+", "-", request.node.name))


async def in_sync(first: Member, second: Member) -> None:
    """Add the second member to the sync state set of the first."""
    first.host.caught_up = frozenset({second.service.member.broker_id})
    first.service.check_in_sync()
    await first.until(lambda: first.service.member.in_sync.ids == {1, 2})
    assert first.service.required_ids == {1, 2}


@pytest.mark.extended
def test_ids_roles_and_elections(
    controller: ApacheController, group: GroupName, tmp_path: Path
) -> None:
    async def admin(*arguments: str) -> str:
        return await asyncio.to_thread(controller.admin, *arguments, "-a", controller.address)

    async def main() -> None:
        config = config_of(controller)
        async with member(tmp_path / "1", config, group) as first:
            await first.until(lambda: first.service.holds(1))
            assert first.host.roles == [("master", 1)]
            async with member(tmp_path / "2", config, group) as second:
                await second.until_role("replica", 1, first.host.address, 1)
                await in_sync(first, second)
                shown = await admin("getSyncStateSet", "-b", group.broker_name)
                for id_, each in ((1, first), (2, second)):
                    assert (
                        f"brokerId={id_}, brokerAddress='{each.host.address}', alive=true" in shown
                    )
                assert re.search(r"#SyncStateSetNums\s+2\b", shown)

                # mqadmin elects the other member while the master is alive.
                await admin("electMaster", "-b", "2", "-bn", group.broker_name, "-c", CLUSTER)
                await second.until_role("master", 2)
                await first.until_role("replica", 2, second.host.address, 2)
                assert not first.service.holds(1)
                await in_sync_again(second)

                # The connection of the master is lost: another election at once.
                await second.until(lambda: second.service.holds(2))
                await lose_connection(second, first)
                await second.until(lambda: not second.service.holds(2))
                await second.until_role("replica", 1, first.host.address)

    async def lose_connection(master: Member, other: Member) -> None:
        """Close the master's connection: a controller that sees the next one first elects none."""
        for _ in range(LOSSES_MAX):
            await master.service.close_connections()
            with suppress(WaitedTooLong):
                return await other.until_role("master", seconds=10)
        raise AssertionError("a lost connection elects no member")

    async def in_sync_again(master: Member) -> None:
        master.host.caught_up = frozenset({1})
        master.service.check_in_sync()
        await master.until(lambda: master.service.member.in_sync.ids == {1, 2})

    asyncio.run(main())


@pytest.mark.extended
def test_without_a_member_of_its_set_a_group_is_elected_by_hand(
    controller: ApacheController, group: GroupName, tmp_path: Path
) -> None:
    """Follow the how-to page for a group in which each member of the set has lost its disk."""

    async def admin(*arguments: str) -> str:
        return await asyncio.to_thread(controller.admin, *arguments, "-a", controller.address)

    def failure_of(found: Member) -> str:
        return str(found.service.view()["groupFailure"])

    async def set_unclean(value: str) -> None:
        shown = await admin("updateControllerConfig", "-k", UNCLEAN, "-v", value)
        assert "success" in shown, shown

    async def elect(number: int) -> str:
        return await admin(
            "electMaster", "-b", str(number), "-bn", group.broker_name, "-c", CLUSTER
        )

    async def main() -> None:
        config = config_of(controller)
        async with member(tmp_path / "2", config, group) as other:
            await other.until_role("master", 1)
            async with member(tmp_path / "1", config, group) as lost:
                await lost.until_role("replica", 1)
                await in_sync(other, lost)
                await elect(2)
                await lost.until_role("master")
            # The only member of the set stops, and starts again with an empty disk.
            shutil.rmtree(tmp_path / "1")
            async with member(tmp_path / "1", config, group) as empty:
                await empty.until(lambda: "lost its disk" in failure_of(empty))
                await other.until(lambda: "lost its disk" in failure_of(other))
                await elect(other.service.member.broker_id)
                assert not other.service.member.is_master
                await set_unclean("true")
                await elect(other.service.member.broker_id)
                await other.until(lambda: other.service.member.is_master)
                await set_unclean("false")
                await empty.until_role("replica", 1, other.host.address)
                assert empty.service.member.broker_id == 3

    asyncio.run(main())


@pytest.mark.extended
def test_tools_read_epochs_and_the_leader(
    controller: ApacheController, group: GroupName, tmp_path: Path
) -> None:
    async def main() -> None:
        namesrv = RemotingClient(controller.namesrv_address)
        async with member(tmp_path, config_of(controller), group) as first, namesrv:
            await first.until_role("master", 1)
            first.host.max_offset = 4_321
            address = first.host.address
            us = BrokerAddress(
                cluster=CLUSTER, broker_name=group.broker_name, address=address, ha_address=address
            )
            request = register_request(us, DataVersion(0, 1), [], 1)
            registered = await namesrv.call(request, timeout_s=WAIT_S)
            assert registered.code == 0
            tool = ("getBrokerEpoch", "-b", group.broker_name, "-n", controller.namesrv_address)
            shown = await asyncio.to_thread(controller.admin, *tool)
            assert "EpochEntry{epoch=1, startOffset=0, endOffset=4321}" in shown
        tool = ("getControllerMetaData", "-a", controller.address)  # type: ignore[assignment]
        assert controller.address in await asyncio.to_thread(controller.admin, *tool)

    asyncio.run(main())


@pytest.mark.extended
def test_a_former_master_is_elected_again_after_controller_and_broker_ended(
    controller: ApacheController, group: GroupName, tmp_path: Path
) -> None:
    """As after a power cut: the controller's data has a master, and no broker is alive."""
    config = config_of(controller)

    async def serve() -> None:
        async with member(tmp_path, config, group) as first:
            await first.until(lambda: first.service.holds(1))
            controller.kill()
            await first.until(lambda: not first.service.holds(1))

    async def serve_again() -> None:
        async with member(tmp_path, config, group, last_epoch=1) as again:
            await again.until_role("master")
            [(_, epoch)] = again.host.roles
            assert isinstance(epoch, int)
            assert epoch > 1
            assert again.service.member.broker_id == 1

    asyncio.run(serve())
    controller.start()
    asyncio.run(serve_again())


@pytest.mark.extended
def test_a_paused_master_holds_no_lease_when_it_continues(
    controller: ApacheController, group: GroupName, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.interop.member_process", str(tmp_path / "1")]
    paused = Child(
        "member",
        [*command, controller.address, group.broker_name],
        log_path=tmp_path / "member.log",
        env={"PYTHONPATH": str(ROOT)},
    )

    def lines() -> list[str]:
        found = paused.log_path.read_text().splitlines()
        return [line for line in found if line.endswith(("True", "False"))]

    async def main() -> None:
        await asyncio.to_thread(
            until, lambda: "MASTER 1 True" in lines(), seconds=WAIT_S, what="the first master"
        )
        async with member(tmp_path / "2", config_of(controller), group) as second:
            await second.until_role("replica", 1)
            tool = ("getSyncStateSet", "-b", group.broker_name, "-a", controller.address)
            while "#SyncStateSetNums\t2" not in await asyncio.to_thread(controller.admin, *tool):
                assert paused.running
            before = len(lines())
            assert lines()[-1] == "MASTER 1 True"
            os.kill(paused.pid, signal.SIGSTOP)
            await second.until_role("master")
            await second.until(lambda: second.service.holds(second.service.member.epoch))
            os.kill(paused.pid, signal.SIGCONT)
            await second.until(lambda: lines()[-1].startswith("REPLICA"))
            assert not [line for line in lines()[before:] if line.endswith("True")]

    try:
        asyncio.run(main())
    finally:
        paused.kill()


@pytest.mark.extended
def test_an_apache_broker_and_ours_are_one_group(
    controller: ApacheController, tmp_path: Path
) -> None:
    group = GroupName(CLUSTER, "broker-a")

    async def main(apache: ApacheMember) -> None:
        async with member(tmp_path / "ours", config_of(controller), group) as ours:
            await ours.until_role("replica", 1, apache.broker_address)
            assert ours.service.member.broker_id == 2

    with ApacheMember(controller, tmp_path / "apache") as apache:
        asyncio.run(main(apache))
