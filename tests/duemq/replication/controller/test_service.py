"""A member and its controllers: roles, lease, and what neither network nor controller can do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.replication.controller.service import GroupService
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response
from tests.support.fake_controller import ADDRESS
from tests.support.fakes import settle
from tests.support.group_host import GROUP, FakeHost
from tests.support.group_rig import BEAT_MS, LEASE_MS, LIMIT_MS, Rig

NAME = GROUP.broker_name
VIEW = RequestCode.CONTROLLER_GET_REPLICA_INFO
ALTER = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET


def is_master(service: GroupService) -> bool:
    return service.member.is_master and service.holds(service.member.epoch)


def test_the_first_member_becomes_master_and_the_second_its_replica(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, host):
            await rig.until(lambda: host.roles)
            assert host.roles == [("master", 1)]
            assert host.required == [frozenset({1})]
            await rig.until(lambda: first.holds(1))
            async with rig.member(2) as (second, other):
                await rig.until(lambda: other.roles)
                assert other.roles == [("replica", 1, "broker:1", 1)]
                assert not second.holds(1)
                assert second.required_ids == frozenset()
                assert second.view()["masterId"] == 1
                assert first.view()["syncStateSet"] == [1]
        assert (tmp_path / "1" / "brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
        assert (tmp_path / "2" / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"

    asyncio.run(main())


def test_a_replica_that_caught_up_is_required_before_the_controller_hears_of_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        required: list[frozenset[int]] = []
        async with rig.pair(in_sync=False) as ((first, host), _):

            def note(request: Request) -> None:
                if request.code == ALTER:
                    required.append(host.required[-1])

            rig.network.before = note
            host.caught_up = frozenset({2})
            first.check_in_sync()
            await rig.until(lambda: rig.controller.groups[NAME].in_sync == {1, 2})
            assert required == [frozenset({1, 2})]
            host.caught_up = frozenset()
            await rig.until(lambda: first.required_ids == {1})
            assert rig.controller.groups[NAME].in_sync == {1}
            assert required[1] == {1, 2}

    asyncio.run(main())


def test_a_replica_that_fell_behind_before_the_proposal_is_sent_is_not_proposed(
    tmp_path: Path,
) -> None:
    """More was confirmed meanwhile: by the former broker of the process, or in a blocked call."""

    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair(in_sync=False) as ((first, host), _):
            host.caught_up = frozenset({2})
            first.check_in_sync()
            host.caught_up = frozenset()
            assert first.member.proposal is not None
            await rig.run(5_000)
            assert first.member.proposal is None
            assert rig.controller.groups[GROUP.broker_name].in_sync_epoch == 1
            assert first.required_ids == {1}

    asyncio.run(main())


def test_a_master_whose_broker_closes_keeps_the_sync_state_set(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair() as ((first, host), _):
            host.caught_up = None
            await rig.run(5_000)
            assert first.required_ids == {1, 2}
            assert rig.controller.groups[NAME].in_sync == {1, 2}

    asyncio.run(main())


def test_a_lost_answer_leaves_both_sets_required(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair(in_sync=False) as ((first, host), _):

            def lose(request: Request, response: Response) -> Response:
                if request.code in (ALTER, VIEW):
                    raise TimeoutError
                return response

            rig.network.change = lose
            host.caught_up = frozenset({2})
            await rig.until(lambda: rig.controller.groups[NAME].in_sync == {1, 2})
            assert first.required_ids == {1, 2}
            rig.network.change = lambda request, response: response
            await rig.until(lambda: first.member.in_sync.ids == {1, 2})

    asyncio.run(main())


def test_a_proposal_that_never_arrived_is_required_for_a_while_only(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair(in_sync=False) as ((first, host), _):

            def drop(request: Request) -> None:
                if request.code == ALTER:
                    raise TimeoutError

            await rig.run(20_000)
            rig.network.before = drop
            host.caught_up = frozenset({2})
            await rig.until(lambda: first.required_ids == {1, 2})
            host.caught_up = frozenset()
            await rig.run(8_000)
            assert first.required_ids == {1, 2}
            await rig.until(lambda: first.required_ids == {1})

    asyncio.run(main())


def test_the_other_member_of_the_set_is_elected_when_the_master_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair() as (_, (second, other)):
            first_link = rig.network.links[0]
            rig.network.cut(first_link)
            await rig.until(lambda: is_master(second))
            assert other.roles[-1] == ("master", 2)
            assert rig.controller.masters == {(NAME, 1): 1, (NAME, 2): 2}

    asyncio.run(main())


# -- the lease ------------------------------------------------------------------------------------


def test_a_lost_connection_ends_the_lease_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            rig.network.cut_all()
            assert not first.holds(1)  # nothing else has run
            await rig.until(lambda: is_master(first))
            assert first.member.epoch > 1
            assert host.roles[-1] == ("master", first.member.epoch)
            assert not first.holds(1)

    asyncio.run(main())


def test_after_a_lost_connection_only_the_controllers_word_renews_the_lease(
    tmp_path: Path,
) -> None:
    """The controller noticed nothing and the epoch is the same: the lease continues then."""

    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            for link in rig.network.links:
                if link.peer is not None:
                    link.peer.close()
            assert not first.holds(1)
            rig.network.change = fail_views
            await rig.run(2 * BEAT_MS)
            assert not first.holds(1)
            rig.network.change = lambda request, response: response
            await rig.until(lambda: first.holds(1))
            assert host.roles == [("master", 1)]

    asyncio.run(main())


def fail_views(request: Request, response: Response) -> Response:
    if request.code == VIEW:
        raise TimeoutError
    return response


@pytest.mark.parametrize("lost", [RequestCode.BROKER_HEARTBEAT, VIEW])
def test_the_lease_ends_without_answers(tmp_path: Path, lost: RequestCode) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)

        def lose(request: Request, response: Response) -> Response:
            if request.code == lost:
                raise TimeoutError
            return response

        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            rig.network.change = lose
            await rig.run(LEASE_MS - BEAT_MS - 100)
            assert first.holds(1)
            await rig.run(BEAT_MS + 100)
            assert not first.holds(1)
            assert first.failure
            rig.network.change = lambda request, response: response
            await rig.until(lambda: first.holds(1))
            assert not first.failure
            assert host.roles == [("master", 1)]

    asyncio.run(main())


def test_a_paused_process_finds_its_lease_expired(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair() as ((first, _), _):
            rig.clock.advance(LIMIT_MS)  # nothing runs meanwhile
            assert not first.holds(1)

    asyncio.run(main())


def test_no_two_members_hold_a_lease_at_once(tmp_path: Path) -> None:
    """The master is cut off from the controller, which elects the other by heartbeats."""

    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair() as ((first, host), (second, other)):
            rig.network.cut_off.add(1)
            for _ in range(200):
                await rig.run(50)
                held = [each for each in (first, second) if is_master(each)]
                assert len(held) <= 1
            assert held == [second]
            assert other.roles[-1] == ("master", 2)
            rig.network.cut_off.clear()
            await rig.until(lambda: host.roles[-1] == ("replica", 2, "broker:2", 2))

    asyncio.run(main())


def test_an_election_by_hand_ends_the_lease_within_a_heartbeat(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.notifies = False
        async with rig.pair() as ((first, host), (_, other)):
            assert rig.controller.designate(NAME, 2).code == ResponseCode.SUCCESS
            await rig.run(BEAT_MS + 100)
            assert not first.holds(1)
            assert host.roles[-1] == ("replica", 2, "broker:2", 2)
            assert other.roles[-1] == ("master", 2)

    asyncio.run(main())


# -- controllers that are away or lie -------------------------------------------------------------


def test_a_member_waits_for_its_controller(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.network.away.add(ADDRESS)
        async with rig.member(1) as (first, host):
            await rig.run(5_000)
            assert not host.roles
            assert "no leader among the controllers" in first.failure
            rig.network.away.clear()
            await rig.until(lambda: first.holds(1))

    asyncio.run(main())


def test_another_leader_is_found_and_knows_the_member(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, more=("controller:2",))
        second = rig.network.models["controller:2"]
        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            await rig.run(BEAT_MS)
            assert second.is_alive(NAME, 1)
            rig.controller.is_leader, second.is_leader = False, True
            await settle()
            await rig.run(BEAT_MS + 50)
            assert first.view()["controller"] == "controller:2"
            await rig.until(lambda: first.holds(1))
            assert host.roles == [("master", 1)]

    asyncio.run(main())


# -- starts, roles, errors ------------------------------------------------------------------------


def test_a_former_master_is_elected_again_before_it_serves(tmp_path: Path) -> None:
    """Controller and brokers start again after a power cut: the group names the old master."""

    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, _):
            await rig.until(lambda: first.holds(1))
            rig.controller.close = lambda channel: None
        del rig.controller.close  # the power is back
        rig.controller.alive.clear()
        async with rig.member(1, last_epoch=1) as (again, host):
            await rig.run(LIMIT_MS - 500)  # it does not wait for the end of its heartbeats
            assert is_master(again)
            assert again.member.epoch > 1
            assert host.roles == [("master", again.member.epoch)]

    asyncio.run(main())


def test_a_start_before_the_controller_noticed_the_end_of_the_last_one(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, _):
            await rig.until(lambda: first.holds(1))
            rig.controller.close = lambda channel: None
        del rig.controller.close
        async with rig.member(1, last_epoch=1) as (again, host):
            await rig.run(LIMIT_MS - 500)
            assert not host.roles
            await rig.until(lambda: is_master(again))
            assert host.roles == [("master", again.member.epoch)]
            assert again.member.epoch > 1

    asyncio.run(main())


class SlowHost(FakeHost):
    """A host whose changes of role take until `go` is set."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.go = asyncio.Event()
        self.begun = 0

    async def become_master(self, epoch: int) -> None:
        self.begun += 1
        await self.go.wait()
        await super().become_master(epoch)


def test_heartbeats_continue_during_a_change_of_role_and_the_newest_role_is_next(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        host = SlowHost("broker:1")
        async with rig.member(1, host=host) as (first, _):
            await rig.until(lambda: host.begun)
            await rig.run(2 * LIMIT_MS)
            assert rig.controller.is_alive(NAME, 1)
            for _ in range(3):
                rig.network.cut_all()  # vacant, elected again
                await rig.until(lambda: is_master(first))
            assert host.begun == 1
            host.go.set()
            await rig.until(lambda: len(host.roles) == 2)
            await rig.run(BEAT_MS)
            assert host.roles == [("master", 1), ("master", first.member.epoch)]

    asyncio.run(main())


def test_a_role_that_fails_ends_the_service(tmp_path: Path) -> None:
    class BrokenHost(FakeHost):
        async def become_master(self, epoch: int) -> None:
            raise OSError("disk")

    async def main() -> None:
        rig = Rig(tmp_path)
        with pytest.raises(ExceptionGroup) as failed:
            async with rig.member(1, host=BrokenHost("broker:1")):
                await rig.run(5_000)
        assert failed.value.subgroup(OSError) is not None

    asyncio.run(main())
