"""State machine of a group member: turns responses of the controller into commands, without I/O.

    INITIAL --id offered--> APPLYING_ID --granted--> REGISTERING --registered--> WAITING_FOR_MASTER
       ^                        | taken                  ^                          |  ^      |
       +------------------------+                        +-- group unknown ---------+  |      |
                                                                        no master      |      |
                                   REPLICA <---- another is master ---------------+----+------+
                                   MASTER  <---- this member is master -----------+

`GroupService` sends the request that `next_request` names, and passes the response to `receive` as
an event. A response may arrive late, twice or never: an event without a row in `MOVES` for the
current state is ignored.

Views are ordered by master epoch. The controller increments the epoch at every election, also at an
election without a result, so an epoch has at most one master. A view with an epoch older than the
newest one seen is ignored. A member becomes master of an epoch only if the view has its id and its
address, and only once. A broker that restarts as the master of the last epoch in its log must be
elected again (`Resign`): the end of its log may have been lost with the machine, and within one
epoch replicas cannot distinguish bytes written afterwards from the lost ones.

The controller may change the sync state set before its response arrives. Until the outcome of a
request is known, `required_ids` has the members of both sets; see `lease.py`.

Source: ReplicasManager, AutoSwitchHAService.getSyncStateSet
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from duemq.replication.controller.identity import MemberIdentity
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
    Proposal,
    ProposalEnded,
    Registered,
    Require,
    Resign,
    StoreFailed,
    StoreIdentity,
    Withdraw,
)
from duemq.replication.controller.requests import GroupName, GroupView, SyncStateSet

NO_SET: Final = SyncStateSet(frozenset(), -1)
PROPOSALS_MAX: Final = 8
LOST_DATA: Final = "docs: Run a group with automatic failover, Lost controller data"


class GroupMember:
    """State of this member.

    Args:
        group: The group.
        address: `host:port` that clients of this broker connect to.
        identity: Content of the identity files; None: no files.
        last_epoch: Last epoch of the log; 0: none.
        is_learner: Whether this member must never be elected.

    Attributes:
        state: Current state.
        identity: Id of this member, assigned or applied for; None: neither.
        epoch: Newest master epoch that this member has seen.
        master: Last role: `BecomeReplica` of the current master, or `BecomeMaster`; None: no role.
        in_sync: On a master, the sync state set; else `NO_SET`.
        failure: Reason why the last view was ignored, or why no master can be elected; else empty.
        refusal: Reason why this member must not be elected (`GroupHost.election_refusal`).
    """

    def __init__(
        self,
        group: GroupName,
        address: str,
        identity: MemberIdentity | None,
        *,
        last_epoch: int,
        is_learner: bool = False,
    ) -> None:
        self.group, self.address, self.identity = group, address, identity
        self.epoch = self._last_role_epoch = last_epoch
        self.is_learner = is_learner
        self.master: BecomeMaster | BecomeReplica | None = None
        self.in_sync = NO_SET
        self.failure = self.refusal = ""
        self.state = MemberState.INITIAL
        self._is_alive = self._needs_election = self._ignores_views = self._resigns = False
        self._store_failed = False
        self._vacant_epoch = -1
        self._proposals: list[Proposal] = []
        self._proposal_count = 0
        self._was_refused, self._joined = False, 0
        self._required: frozenset[int] = frozenset()
        if identity is not None:
            self.state = (
                MemberState.REGISTERING if identity.is_assigned else MemberState.APPLYING_ID
            )

    # -- state for the service --------------------------------------------------------------------

    @property
    def broker_id(self) -> int:
        """Assigned id in the group; 0: none."""
        assigned = self.identity is not None and self.identity.is_assigned
        return self.identity.broker_id if self.identity is not None and assigned else 0

    @property
    def master_id(self) -> int | None:
        """Id of the master of the last role; None: no role."""
        if isinstance(self.master, BecomeReplica):
            return self.master.master_id
        return self.broker_id if self.master is not None else None

    @property
    def sends_heartbeats(self) -> bool:
        """Whether to send heartbeats, so that the controller counts this member as alive."""
        return self.sees_group and not self._resigns and (self.is_master or not self.refusal)

    @property
    def sees_group(self) -> bool:
        """Whether to request the view of the group periodically."""
        return self.state in (
            MemberState.WAITING_FOR_MASTER,
            MemberState.REPLICA,
            MemberState.MASTER,
        )

    @property
    def is_master(self) -> bool:
        """Whether this member is the master of `epoch` according to the last view."""
        return self.state is MemberState.MASTER

    @property
    def required_ids(self) -> frozenset[int]:
        """Ids that must have a byte before it is acknowledged; empty: this member is no master."""
        if not self.is_master:
            return frozenset()
        sent = [each.new_set.ids for each in self._proposals if each.is_sent]
        return self.in_sync.ids.union(*sent)

    @property
    def next_request(self) -> NextRequest | None:
        """Next request to the controller, apart from the view; None: none."""
        match self.state:
            case MemberState.INITIAL:
                return NextRequest.NEXT_ID
            case MemberState.APPLYING_ID:
                return NextRequest.APPLY_ID
            case MemberState.REGISTERING:
                return NextRequest.REGISTER
            case MemberState.WAITING_FOR_MASTER if self._needs_election and self._is_alive:
                return NextRequest.ELECT
            case MemberState.MASTER if self.proposal is not None:
                return NextRequest.ALTER_SYNC_STATE_SET
        return None

    @property
    def proposal(self) -> Proposal | None:
        """Next sync state set to propose to the controller; None: none."""
        return next((each for each in self._proposals if not each.is_sent), None)

    def confirms(self, view: GroupView) -> bool:
        """Return whether a view confirms this member as the master of `epoch`."""
        return (
            self.is_master
            and view.epoch == self.epoch
            and view.master_id == self.broker_id
            and view.master_address == self.address
        )

    # -- events -----------------------------------------------------------------------------------

    def receive(self, event: Event) -> list[Command]:
        """Apply an event; return the commands to execute, in order."""
        move = MOVES.get((self.state, type(event)))
        if move is None:
            return []
        commands = move(self, event)
        return [*self._changed_requirement(), *commands]

    def send_proposal(self) -> tuple[Proposal, list[Command]]:
        """Return the proposal to send, and the commands to execute before it is sent."""
        proposal = self.proposal
        assert proposal is not None
        assert self.is_master
        sent = replace(proposal, is_sent=True)
        self._proposals = [sent if each is proposal else each for each in self._proposals]
        return sent, self._changed_requirement()

    def _changed_requirement(self) -> list[Command]:
        required, self._required = self._required, self.required_ids
        return [] if self._required in (required, frozenset()) else [Require(self._required)]

    def _offered(self, event: IdOffered) -> list[Command]:
        self.identity = MemberIdentity(self.group, event.broker_id, event.check_code)
        self.state = MemberState.APPLYING_ID
        return [StoreIdentity(self.identity)]

    def _granted(self, event: IdGranted) -> list[Command]:
        assert self.identity is not None
        if event.broker_id != self.identity.broker_id:
            return []
        self.identity = replace(self.identity, check_code="")
        self.state = MemberState.REGISTERING
        return [StoreIdentity(self.identity)]

    def _taken(self, event: IdTaken) -> list[Command]:
        assert self.identity is not None
        if event.broker_id != self.identity.broker_id:
            return []
        self.identity, self.state = None, MemberState.INITIAL
        return [DropApplication()]

    def _registered(self, event: Registered) -> list[Command]:
        self.state = MemberState.WAITING_FOR_MASTER
        self._is_alive = False
        may_lead = not self.is_learner and not self.refusal
        self._needs_election = may_lead and not event.has_master
        self._ignores_views = self._needs_election
        self.failure = ""
        return []

    def _failed(self, event: StoreFailed) -> list[Command]:
        """Let the controller elect a member that has the messages; without one, stay the master."""
        if len(self.in_sync.ids) <= 1:
            return []
        self.failure = "the store cannot be synced: another member becomes the master"
        self._store_failed = self._resigns = True
        self._is_alive = False
        return [*self._leave_role(MemberState.WAITING_FOR_MASTER), Resign()]

    def _alive(self, event: HeartbeatSucceeded) -> list[Command]:
        self._is_alive = not self._resigns
        return []

    def _lost(self, event: ConnectionLost) -> list[Command]:
        self._is_alive = False
        return []

    def _unknown(self, event: GroupUnknown) -> list[Command]:
        self.failure = (
            f"the controller does not know id {self.broker_id} of {self.group.broker_name}: its "
            "data was lost, or the id was removed. Start it with its data, or join the group again "
            f"({LOST_DATA})"
        )
        return self._leave_role(MemberState.REGISTERING)

    def _elected(self, event: Elected) -> list[Command]:
        self._needs_election = self._ignores_views = False
        return self._seen(GroupSeen(event.view))

    def _not_elected(self, event: ElectionFailed) -> list[Command]:
        # The next view shows whether another election is needed.
        self._needs_election = self._ignores_views = False
        return []

    # -- views ------------------------------------------------------------------------------------

    def _seen(self, event: GroupSeen) -> list[Command]:
        view = event.view
        if self._ignores_views:
            return []  # an election is due: the master in this view is not alive
        self.failure = self._fault_of(view)
        if self.failure:
            return []
        if view.master_id is None:
            return self._seen_without_master(view)
        if view.master_id == self.broker_id:
            return self._seen_as_master(view)
        return self._follow(view.master_id, view)

    def _fault_of(self, view: GroupView) -> str:
        """Return the reason to ignore a view: outdated, or contradictory; empty: none."""
        if view.epoch < self.epoch:
            return (
                f"the controller's view has epoch {view.epoch}, older than epoch {self.epoch} seen "
                "before: it is ignored. If it stays older, the controller has lost its data "
                f"({LOST_DATA})"
            )
        if view.epoch > self.epoch:
            return ""
        master_id = view.master_id
        if view.epoch == self._vacant_epoch:
            master_id = None
        elif self.master is not None:
            master_id = self.master_id
        if master_id != view.master_id:
            return (
                f"the controller's view has master {view.master_id} in epoch {view.epoch}, which "
                f"had master {master_id} before: it is ignored"
            )
        return ""

    def _seen_without_master(self, view: GroupView) -> list[Command]:
        self.epoch = self._vacant_epoch = view.epoch
        self._needs_election = not self.is_learner and not self._store_failed
        self._resigns = self._store_failed
        ids = view.in_sync.ids
        if self.refusal:
            self.failure = self.refusal
        elif ids and self.broker_id not in ids:
            self.failure = (
                f"only a member of the sync state set ({_listed(ids)}) can be elected. This broker "
                f"({self.broker_id}) is not a member, and may lack messages: start a member. If "
                "each member lost its disk, elect this broker by hand (docs: Run a group with "
                "automatic failover, Lost disks)"
            )
        return self._leave_role(MemberState.WAITING_FOR_MASTER)

    def _seen_as_master(self, view: GroupView) -> list[Command]:
        if view.master_address != self.address:
            self.failure = (
                f"the controller has id {self.broker_id} of {self.group.broker_name} at "
                f"{view.master_address}, but the address of this broker is {self.address}: two "
                "brokers have the same brokerIdentity file. Stop one, remove its file, and start "
                "this broker again"
            )
            return self._leave_role(MemberState.CONFLICT)
        if self.refusal and not self.is_master:
            self.failure = self.refusal
            return self._leave_role(MemberState.WAITING_FOR_MASTER)
        if view.epoch > self._last_role_epoch:
            return self._become_master(view)
        if self.is_master:
            self._update_in_sync(view.in_sync)
            return []
        self._resigns, self._is_alive = True, False
        return [Resign()]

    def _become_master(self, view: GroupView) -> list[Command]:
        self.epoch = self._last_role_epoch = view.epoch
        self.state = MemberState.MASTER
        self._needs_election = self._resigns = self._store_failed = False
        self._proposals, self.in_sync = [], NO_SET
        self._update_in_sync(view.in_sync)
        self.master = BecomeMaster(view.epoch)
        return [self.master]

    def _follow(self, master_id: int, view: GroupView) -> list[Command]:
        role = BecomeReplica(master_id, view.master_address, view.epoch)
        if role == self.master:
            return []
        commands = self._leave_role(MemberState.REPLICA)
        self.epoch = view.epoch
        self._last_role_epoch = max(self._last_role_epoch, view.epoch)
        self._needs_election = self._resigns = self._store_failed = False
        self.master = role
        return [*commands, role]

    def _leave_role(self, state: MemberState) -> list[Command]:
        was_master, self.state = self.is_master, state
        self.master, self.in_sync, self._proposals = None, NO_SET, []
        return [Withdraw()] if was_master else []

    # -- the sync state set -----------------------------------------------------------------------

    def _update_in_sync(self, received: SyncStateSet) -> None:
        if received.epoch > self.in_sync.epoch:
            self.in_sync = replace(received, ids=received.ids | {self.broker_id})
            self._proposals = []  # the open proposals would change an older set

    def _propose(self, event: InSyncWanted) -> list[Command]:
        self._proposals = [each for each in self._proposals if each.is_sent]
        ids = self._next_set(event.ids | {self.broker_id})
        if ids != self.in_sync.ids and len(self._proposals) < PROPOSALS_MAX:
            self._proposal_count += 1
            target = SyncStateSet(ids, self.in_sync.epoch)
            self._proposals.append(Proposal(self._proposal_count, target))
        return []

    def _next_set(self, ids: frozenset[int]) -> frozenset[int]:
        """Return the set to propose next, as a step towards these ids.

        The controller refuses a whole set if it does not know one of its ids, or counts one as
        dead, and a replica may send any id in its handshake. Members are therefore removed first,
        and after a refusal others are added one at a time, in turn.
        """
        in_sync = self.in_sync.ids
        joining = sorted(ids - in_sync)
        if in_sync - ids or not joining:
            return ids & in_sync
        if not self._was_refused:
            return ids
        self._joined = next((each for each in joining if each > self._joined), joining[0])
        return in_sync | {self._joined}

    def _altered(self, event: InSyncAltered) -> list[Command]:
        self._update_in_sync(event.in_sync)
        self._was_refused = False
        return self._remove(event.proposal)

    def _ended(self, event: ProposalEnded) -> list[Command]:
        self._was_refused = True
        return self._remove(event.proposal)

    def _remove(self, number: int) -> list[Command]:
        self._proposals = [each for each in self._proposals if each.number != number]
        return []


def _listed(ids: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


MOVES: Final[Mapping[tuple[MemberState, type], Callable[..., list[Command]]]] = {
    (MemberState.INITIAL, IdOffered): GroupMember._offered,
    (MemberState.APPLYING_ID, IdGranted): GroupMember._granted,
    (MemberState.APPLYING_ID, IdTaken): GroupMember._taken,
    (MemberState.REGISTERING, Registered): GroupMember._registered,
    (MemberState.REGISTERING, GroupUnknown): GroupMember._unknown,
    (MemberState.WAITING_FOR_MASTER, HeartbeatSucceeded): GroupMember._alive,
    (MemberState.WAITING_FOR_MASTER, ConnectionLost): GroupMember._lost,
    (MemberState.WAITING_FOR_MASTER, GroupSeen): GroupMember._seen,
    (MemberState.WAITING_FOR_MASTER, Elected): GroupMember._elected,
    (MemberState.WAITING_FOR_MASTER, ElectionFailed): GroupMember._not_elected,
    (MemberState.WAITING_FOR_MASTER, GroupUnknown): GroupMember._unknown,
    (MemberState.REPLICA, GroupSeen): GroupMember._seen,
    (MemberState.REPLICA, Elected): GroupMember._elected,
    (MemberState.REPLICA, GroupUnknown): GroupMember._unknown,
    (MemberState.MASTER, GroupSeen): GroupMember._seen,
    (MemberState.MASTER, Elected): GroupMember._elected,
    (MemberState.MASTER, GroupUnknown): GroupMember._unknown,
    (MemberState.MASTER, InSyncWanted): GroupMember._propose,
    (MemberState.MASTER, InSyncAltered): GroupMember._altered,
    (MemberState.MASTER, ProposalEnded): GroupMember._ended,
    (MemberState.MASTER, StoreFailed): GroupMember._failed,
}
"""Every legal move; an event without a move is a late or repeated response, and is ignored."""
