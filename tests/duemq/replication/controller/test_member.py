"""The state machine of a group member: every move, and what no answer can make it do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duemq.replication.controller.identity import MemberIdentity
from duemq.replication.controller.member import GroupMember
from duemq.replication.controller.member_events import (
    BecomeMaster,
    BecomeReplica,
    Command,
    ConnectionLost,
    DropApplication,
    Elected,
    ElectionFailed,
    Event,
    GroupSeen,
    GroupUnknown,
    HeartbeatSucceeded,
    IdGranted,
    IdOffered,
    IdTaken,
    InSyncAltered,
    InSyncWanted,
    MemberState,
    NextRequest,
    ProposalEnded,
    Registered,
    Require,
    Resign,
    StoreFailed,
    StoreIdentity,
    Withdraw,
)
from duemq.replication.controller.requests import GroupView, SyncStateSet
from tests.support.group_host import GROUP

OURS, OTHERS = "10.0.0.1:10911", "10.0.0.2:10911"
ME = MemberIdentity(GROUP, 1)
ABSENT = frozenset[int]()


def ids(*members: int) -> frozenset[int]:
    return frozenset(members)


def view(
    epoch: int, master: int | None, *, in_sync: frozenset[int] | None = None, set_epoch: int = 1
) -> GroupView:
    """Return a view; member 1 is the one under test."""
    address = {1: OURS, 2: OTHERS, 3: "10.0.0.3:10911", None: ""}[master]
    found = in_sync if in_sync is not None else ids(*([master] if master else []))
    return GroupView(epoch, master, address, SyncStateSet(found, set_epoch))


def member(*events: Event, last_epoch: int = 0, is_learner: bool = False) -> GroupMember:
    """Return a registered member that has received these events."""
    made = GroupMember(GROUP, OURS, ME, last_epoch=last_epoch, is_learner=is_learner)
    made.receive(Registered(has_master=True))
    for event in events:
        made.receive(event)
    return made


MASTER_OF_3 = GroupSeen(view(3, 1))
REPLICA_OF_2 = GroupSeen(view(3, 2))


def test_a_new_member_applies_for_an_id_and_registers() -> None:
    new = GroupMember(GROUP, OURS, None, last_epoch=0)
    assert (new.state, new.next_request, new.broker_id) == (
        MemberState.INITIAL,
        NextRequest.NEXT_ID,
        0,
    )
    applied = MemberIdentity(GROUP, 4, "code")
    assert new.receive(IdOffered(4, "code")) == [StoreIdentity(applied)]
    assert (new.state, new.next_request, new.broker_id) == (
        MemberState.APPLYING_ID,
        NextRequest.APPLY_ID,
        0,
    )
    assert new.receive(IdTaken(4)) == [DropApplication()]
    assert (new.state, new.identity) == (MemberState.INITIAL, None)
    new.receive(IdOffered(5, "again"))
    assert new.receive(IdGranted(4)) == []  # of the first application, late
    assert new.receive(IdGranted(5)) == [StoreIdentity(MemberIdentity(GROUP, 5))]
    assert (new.state, new.next_request, new.broker_id) == (
        MemberState.REGISTERING,
        NextRequest.REGISTER,
        5,
    )
    assert new.receive(Registered(has_master=True)) == []
    assert (new.state, new.next_request) == (MemberState.WAITING_FOR_MASTER, None)


def test_a_start_continues_where_the_files_end() -> None:
    applied = GroupMember(GROUP, OURS, MemberIdentity(GROUP, 4, "code"), last_epoch=0)
    assert applied.next_request is NextRequest.APPLY_ID
    assert GroupMember(GROUP, OURS, ME, last_epoch=0).next_request is NextRequest.REGISTER


def test_a_member_is_seen_only_after_it_registered() -> None:
    assert not GroupMember(GROUP, OURS, ME, last_epoch=0).sends_heartbeats
    assert member().sends_heartbeats


@pytest.mark.parametrize(
    ("events", "seen", "commands", "state"),
    [
        ([], view(3, 1), [Require(ids(1)), BecomeMaster(3)], MemberState.MASTER),
        ([], view(3, 2), [BecomeReplica(2, OTHERS, 3)], MemberState.REPLICA),
        ([], view(3, None), [], MemberState.WAITING_FOR_MASTER),
        ([MASTER_OF_3], view(3, 1), [], MemberState.MASTER),
        ([MASTER_OF_3], view(2, 2), [], MemberState.MASTER),  # late
        ([MASTER_OF_3], view(4, 2), [Withdraw(), BecomeReplica(2, OTHERS, 4)], MemberState.REPLICA),
        ([MASTER_OF_3], view(4, None), [Withdraw()], MemberState.WAITING_FOR_MASTER),
        ([MASTER_OF_3], view(5, 1), [BecomeMaster(5)], MemberState.MASTER),
        ([MASTER_OF_3, GroupSeen(view(4, None))], view(3, 1), [], MemberState.WAITING_FOR_MASTER),
        ([REPLICA_OF_2], view(3, 2), [], MemberState.REPLICA),
        ([REPLICA_OF_2], view(4, 1), [Require(ids(1)), BecomeMaster(4)], MemberState.MASTER),
        ([REPLICA_OF_2], view(2, 1), [], MemberState.REPLICA),
        ([REPLICA_OF_2], view(4, None), [], MemberState.WAITING_FOR_MASTER),
        ([REPLICA_OF_2], view(4, 2), [BecomeReplica(2, OTHERS, 4)], MemberState.REPLICA),
    ],
)
def test_roles(
    events: list[Event], seen: GroupView, commands: list[Command], state: MemberState
) -> None:
    found = member(*events)
    assert found.receive(GroupSeen(seen)) == commands
    assert found.state is state


@pytest.mark.parametrize(
    ("in_sync", "is_named"), [(ids(1, 2), False), (ids(2, 3), True), (ids(), False)]
)
def test_without_a_master_a_member_outside_of_the_set_names_who_can_be_elected(
    in_sync: frozenset[int], is_named: bool
) -> None:
    found = member()
    found.receive(GroupSeen(view(4, None, in_sync=in_sync)))
    assert ("only a member of the sync state set (2, 3)" in found.failure) == is_named
    assert bool(found.failure) == is_named
    found.receive(GroupSeen(view(5, 2)))
    assert found.failure == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (view(3, 1), view(3, 2)),
        (view(3, 2), view(3, 1)),
        (view(3, 2), view(3, 3)),
        (view(3, None), view(3, 1)),
        (view(3, 1), view(3, None)),
        (view(3, None), view(3, 2)),
    ],
)
def test_an_epoch_has_one_master(first: GroupView, second: GroupView) -> None:
    found = member(GroupSeen(first))
    state = found.state
    assert found.receive(GroupSeen(second)) == []
    assert found.state is state
    assert "in epoch 3, which had master" in found.failure
    found.receive(GroupSeen(first))
    assert found.failure == ""


def test_a_replica_follows_a_master_that_moved() -> None:
    moved = replace(view(3, 2), master_address="10.0.0.9:1")
    found = member(REPLICA_OF_2)
    assert found.receive(GroupSeen(moved)) == [BecomeReplica(2, "10.0.0.9:1", 3)]


@pytest.mark.parametrize("events", [[], [MASTER_OF_3]], ids=["new", "master"])
def test_a_second_process_with_the_same_id_is_no_master(events: list[Event]) -> None:
    """A copied store, or a forged registration: the controller knows the id elsewhere."""
    found = member(*events)
    forged = replace(view(3, 1), master_address=OTHERS)
    withdrawn: list[Command] = [Withdraw()] if events else []
    assert found.receive(GroupSeen(forged)) == withdrawn
    assert (found.state, found.required_ids) == (MemberState.CONFLICT, ABSENT)
    assert OTHERS in found.failure
    assert not found.sends_heartbeats
    assert found.receive(GroupSeen(view(9, 1))) == []


def test_a_started_member_does_not_continue_the_epoch_of_its_log() -> None:
    """Its log may have lost the end that replicas have; a new epoch shows them where."""
    found = member(last_epoch=3)
    assert found.receive(GroupSeen(view(3, 1))) == [Resign()]
    assert (found.state, found.sends_heartbeats) == (MemberState.WAITING_FOR_MASTER, False)
    assert found.receive(GroupSeen(view(3, 1))) == [Resign()]
    found.receive(GroupSeen(view(4, None)))
    assert found.sends_heartbeats
    assert found.receive(Elected(view(5, 1))) == [Require(ids(1)), BecomeMaster(5)]


def test_a_member_that_resigns_requests_an_election_only_after_another_heartbeat() -> None:
    found = member(HeartbeatSucceeded(), last_epoch=3)
    assert found.receive(GroupSeen(view(3, 1))) == [Resign()]
    found.receive(GroupSeen(view(4, None)))
    assert found.next_request is None
    found.receive(HeartbeatSucceeded())
    assert found.next_request is NextRequest.ELECT


@pytest.mark.finding("3D7")
def test_a_master_that_cannot_store_lets_another_member_be_elected() -> None:
    found = member(GroupSeen(view(3, 1, in_sync=ids(1, 2))))
    assert found.receive(StoreFailed()) == [Withdraw(), Resign()]
    assert (found.state, found.sends_heartbeats) == (MemberState.WAITING_FOR_MASTER, False)
    assert "cannot be synced" in found.failure
    assert found.receive(GroupSeen(view(3, 1, in_sync=ids(1, 2)))) == [Resign()]
    found.receive(GroupSeen(view(4, None, in_sync=ids(1, 2))))
    assert (found.next_request, found.sends_heartbeats) == (None, False)
    assert found.receive(GroupSeen(view(5, 2))) == [BecomeReplica(2, OTHERS, 5)]
    assert found.sends_heartbeats
    found.receive(GroupSeen(view(6, None, in_sync=ids(1, 2))))
    found.receive(HeartbeatSucceeded())
    assert found.next_request is NextRequest.ELECT  # its store was opened again as a replica's


@pytest.mark.finding("3D7")
def test_a_master_whose_messages_no_other_member_has_does_not_resign() -> None:
    found = member(MASTER_OF_3)
    assert found.receive(StoreFailed()) == []
    assert (found.state, found.sends_heartbeats) == (MemberState.MASTER, True)


def test_a_former_replica_does_not_become_master_of_the_epoch_in_which_it_was_replica() -> None:
    """Its log has bytes of that epoch's master: an epoch never has a second one."""
    found = member(REPLICA_OF_2, GroupUnknown(), Registered(has_master=True))
    assert found.receive(GroupSeen(view(3, 1))) == [Resign()]
    assert not found.is_master


def test_a_started_replica_follows_the_epoch_of_its_log() -> None:
    assert member(last_epoch=3).receive(REPLICA_OF_2) == [BecomeReplica(2, OTHERS, 3)]


def test_a_view_older_than_the_log_is_not_followed() -> None:
    found = member(last_epoch=7)
    assert found.receive(GroupSeen(view(1, 2))) == []
    assert "epoch 1, older than epoch 7" in found.failure


# -- elections ------------------------------------------------------------------------------------


def test_an_election_is_asked_for_once_the_controller_counts_the_member_as_alive() -> None:
    found = member(GroupSeen(view(3, None)))
    assert found.next_request is None
    found.receive(HeartbeatSucceeded())
    assert found.next_request is NextRequest.ELECT
    found.receive(ConnectionLost())
    assert found.next_request is None
    found.receive(HeartbeatSucceeded())
    found.receive(ElectionFailed())
    assert found.next_request is None
    found.receive(GroupSeen(view(3, None)))
    assert found.next_request is NextRequest.ELECT


def test_a_master_that_is_not_alive_is_not_followed_before_an_election() -> None:
    found = GroupMember(GROUP, OURS, ME, last_epoch=2)
    found.receive(Registered(has_master=False))
    assert found.receive(REPLICA_OF_2) == []
    found.receive(HeartbeatSucceeded())
    assert found.next_request is NextRequest.ELECT
    found.receive(ElectionFailed())
    assert found.receive(REPLICA_OF_2) == [BecomeReplica(2, OTHERS, 3)]


def test_a_learner_asks_for_no_election() -> None:
    found = member(GroupSeen(view(3, None)), HeartbeatSucceeded(), is_learner=True)
    assert found.next_request is None
    assert found.receive(GroupSeen(view(4, 2))) == [BecomeReplica(2, OTHERS, 4)]
    new = GroupMember(GROUP, OURS, ME, last_epoch=0, is_learner=True)
    for event in (Registered(has_master=False), HeartbeatSucceeded()):
        new.receive(event)
    assert new.next_request is None


@pytest.mark.parametrize(
    ("events", "commands"), [([MASTER_OF_3], [Withdraw()]), ([REPLICA_OF_2], [])]
)
def test_a_member_that_the_controller_forgot_registers_again(
    events: list[Event], commands: list[Command]
) -> None:
    found = member(*events)
    assert found.receive(GroupUnknown()) == commands
    assert found.next_request is NextRequest.REGISTER
    assert "does not know id 1" in found.failure
    found.receive(GroupUnknown())
    assert found.next_request is NextRequest.REGISTER


# -- the sync state set ---------------------------------------------------------------------------


def proposed(*wanted: int) -> tuple[GroupMember, int]:
    """Return a master of the set {1} that has sent a proposal, and its number."""
    found = member(MASTER_OF_3)
    found.receive(InSyncWanted(ids(*wanted)))
    assert found.next_request is NextRequest.ALTER_SYNC_STATE_SET
    proposal, commands = found.send_proposal()
    assert proposal.new_set == SyncStateSet(ids(1, *wanted), 1)
    assert commands == [Require(ids(1, *wanted))]
    return found, proposal.number


def test_a_larger_set_is_required_before_it_is_proposed() -> None:
    found, number = proposed(2)
    assert found.required_ids == ids(1, 2)
    assert found.in_sync.ids == ids(1)
    assert found.next_request is None
    altered = SyncStateSet(ids(1, 2), 2)
    assert found.receive(InSyncAltered(number, altered)) == []
    assert (found.in_sync, found.required_ids) == (altered, ids(1, 2))


def test_a_smaller_set_is_required_once_it_is_accepted() -> None:
    found, number = proposed(2)
    found.receive(InSyncAltered(number, SyncStateSet(ids(1, 2), 2)))
    found.receive(InSyncWanted(ABSENT))
    proposal, commands = found.send_proposal()
    assert (commands, found.required_ids) == ([], ids(1, 2))
    altered = SyncStateSet(ids(1), 3)
    assert found.receive(InSyncAltered(proposal.number, altered)) == [Require(ids(1))]


def test_a_refused_proposal_is_required_no_longer() -> None:
    found, number = proposed(2)
    assert found.receive(ProposalEnded(number)) == [Require(ids(1))]


def test_a_proposal_without_an_answer_is_required_until_the_set_has_changed() -> None:
    found, _ = proposed(2)
    assert found.receive(MASTER_OF_3) == []
    assert found.required_ids == ids(1, 2)
    seen = view(3, 1, in_sync=ids(1, 3), set_epoch=2)
    assert found.receive(GroupSeen(seen)) == [Require(ids(1, 3))]


def test_late_sets_change_nothing() -> None:
    found, number = proposed(2)
    found.receive(InSyncAltered(number, SyncStateSet(ids(1, 2), 2)))
    assert found.receive(GroupSeen(view(3, 1, in_sync=ids(1), set_epoch=1))) == []
    assert found.receive(InSyncAltered(number, SyncStateSet(ids(1), 2))) == []
    assert found.required_ids == ids(1, 2)


def test_nothing_is_proposed_when_nothing_changed() -> None:
    found = member(MASTER_OF_3)
    found.receive(InSyncWanted(ids(1)))
    assert found.next_request is None
    found.receive(InSyncWanted(ids(2)))
    found.receive(InSyncWanted(ABSENT))
    assert found.next_request is None


def wants(found: GroupMember, *wanted: int) -> tuple[frozenset[int], int]:
    """Return the set that is proposed on the way to this one, and the number of the proposal."""
    found.receive(InSyncWanted(ids(*wanted)))
    proposal, _ = found.send_proposal()
    return proposal.new_set.ids, proposal.number


def test_members_leave_before_others_join() -> None:
    """One id that the controller refuses would keep a dead member in the set."""
    found, number = proposed(2)
    found.receive(InSyncAltered(number, SyncStateSet(ids(1, 2), 2)))
    wanted, number = wants(found, 9)
    assert wanted == ids(1)
    found.receive(InSyncAltered(number, SyncStateSet(ids(1), 3)))
    assert wants(found, 9)[0] == ids(1, 9)


def test_after_a_refusal_members_join_one_at_a_time() -> None:
    """A stranger with an id that the controller does not know keeps no member out."""
    found, number = proposed(2, 3, 9)
    found.receive(ProposalEnded(number))
    tried = []
    for _ in range(4):
        wanted, number = wants(found, 2, 3, 9)
        tried.append(wanted)
        found.receive(ProposalEnded(number))
    assert tried == [ids(1, 2), ids(1, 3), ids(1, 9), ids(1, 2)]
    wanted, number = wants(found, 2, 3, 9)
    assert wanted == ids(1, 3)
    found.receive(InSyncAltered(number, SyncStateSet(ids(1, 3), 2)))
    assert wants(found, 2, 3, 9)[0] == ids(1, 2, 3, 9)  # the others at once again


def test_proposals_without_answers_are_bounded() -> None:
    found = member(MASTER_OF_3)
    for number in range(2, 40):
        found.receive(InSyncWanted(ids(number)))
        if found.next_request is not None:
            found.send_proposal()
    assert len(found.required_ids) <= 9


@pytest.mark.parametrize("after", [view(4, 2), view(4, None)])
def test_a_former_master_requires_and_proposes_nothing(after: GroupView) -> None:
    found, number = proposed(2)
    found.receive(GroupSeen(after))
    assert found.required_ids == ABSENT
    assert found.receive(InSyncAltered(number, SyncStateSet(ids(1, 2), 2))) == []
    assert found.receive(InSyncWanted(ids(3))) == []
    assert found.next_request is None


def test_a_new_office_begins_with_the_set_of_its_election() -> None:
    found, _ = proposed(2)
    seen = view(5, 1, in_sync=ids(1), set_epoch=7)
    assert found.receive(GroupSeen(seen)) == [Require(ids(1)), BecomeMaster(5)]


def test_only_the_view_of_its_own_office_confirms_a_master() -> None:
    found = member(MASTER_OF_3)
    assert found.confirms(view(3, 1))
    for other in (view(4, 1), view(2, 1), view(3, 2), view(3, None)):
        assert not found.confirms(other)
    assert not found.confirms(replace(view(3, 1), master_address=OTHERS))
    assert not member(REPLICA_OF_2).confirms(view(3, 1))


@pytest.mark.finding("3D8")
def test_an_old_copy_is_neither_alive_nor_master_but_follows() -> None:
    made = GroupMember(GROUP, OURS, ME, last_epoch=2)
    made.refusal = "an old copy"
    made.receive(Registered(has_master=False))
    assert not made.sends_heartbeats
    assert made.sees_group
    assert made.receive(HeartbeatSucceeded()) == []
    for seen in (GroupSeen(view(3, None)), GroupSeen(view(4, 1)), GroupSeen(view(5, 1))):
        assert made.receive(seen) == []
        assert made.failure == "an old copy"
        assert not made.is_master
        assert not made.sends_heartbeats
    assert made.receive(GroupSeen(view(6, 2))) == [BecomeReplica(2, OTHERS, 6)]
    assert not made.sends_heartbeats
    made.refusal = ""  # it has copied the log
    assert made.sends_heartbeats
    assert made.receive(GroupSeen(view(7, 1))) == [Require(ids(1)), BecomeMaster(7)]
