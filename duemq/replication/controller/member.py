"""Member of a group as a state machine: answers of the controller in, commands out; no I/O.

    INITIAL --id offered--> APPLYING_ID --granted--> REGISTERING --registered--> WAITING_FOR_MASTER
       ^                        | taken                  ^                          |  ^      |
       +------------------------+                        +-- group unknown ---------+  |      |
                                                                        no master      |      |
                                   REPLICA <---- another is master ---------------+----+------+
                                   MASTER  <---- this member is master -----------+

The shell asks what `question` names and hands the answer to `receive`. An answer may come late,
twice or never: a pair of state and event without a row in `MOVES` is such an answer and changes
nothing.

Master epochs order everything. The controller increments the epoch at every election, also at one
that finds no master, so an epoch has at most one master. A view of an older epoch than the newest
one seen is ignored. A member becomes master of an epoch only if the view names its id and its
address, and only once: a process that starts after it was master of the epoch in its log must be
elected again (`Resign`): its log may have lost its end with the machine, and in one epoch replicas
cannot distinguish the bytes written afterwards from the lost ones.

The sync state set may change at the controller before its answer is here. Until the outcome of a
request is known, `required_ids` has the members of both sets; see `lease.py`.

Source: ReplicasManager, AutoSwitchHAService.getSyncStateSet
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from duemq.replication.controller.identity import Identity
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
    HeartbeatAnswered,
    IdGranted,
    IdOffered,
    IdTaken,
    InSyncAltered,
    InSyncWanted,
    Proposal,
    ProposalEnded,
    Question,
    Registered,
    Require,
    Resign,
    State,
    StoreIdentity,
    Withdraw,
)
from duemq.replication.controller.requests import GroupName, GroupView, SyncStateSet

NO_SET: Final = SyncStateSet(frozenset(), -1)
PROPOSALS_MAX: Final = 8


class GroupMember:
    """One member.

    Args:
        group: The group.
        address: `host:port` that clients of this broker connect to.
        identity: What the identity files hold.
        last_epoch: Last epoch of the log; 0: it has none.
        is_learner: Never be elected.

    Attributes:
        state: What it is.
        identity: Its id, or the id that it applies for; None: neither.
        epoch: Newest master epoch that it has seen.
        master: The master that it follows, or BecomeMaster of itself; None: there is none.
        in_sync: The sync state set, of a master.
        failure: Why the last answer was ignored; empty: it was not.
    """

    def __init__(
        self,
        group: GroupName,
        address: str,
        identity: Identity | None,
        *,
        last_epoch: int,
        is_learner: bool = False,
    ) -> None:
        self.group, self.address, self.identity = group, address, identity
        self.epoch = self._begun = last_epoch
        self.is_learner = is_learner
        self.master: BecomeMaster | BecomeReplica | None = None
        self.in_sync = NO_SET
        self.failure = ""
        self.state = State.INITIAL
        self._is_alive = self._elects = self._holds_views = self._resigns = False
        self._vacant_epoch = -1
        self._proposals: list[Proposal] = []
        self._proposal_count = 0
        self._was_refused, self._joined = False, 0
        self._required: frozenset[int] = frozenset()
        if identity is not None:
            self.state = State.REGISTERING if identity.is_assigned else State.APPLYING_ID

    # -- what the shell reads ---------------------------------------------------------------------

    @property
    def broker_id(self) -> int:
        """Id in the group; 0: none is assigned yet."""
        assigned = self.identity is not None and self.identity.is_assigned
        return self.identity.broker_id if self.identity is not None and assigned else 0

    @property
    def sends_heartbeats(self) -> bool:
        """Whether the controller is to count this member as alive."""
        return self.sees_group and not self._resigns

    @property
    def sees_group(self) -> bool:
        """Whether the shell is to ask for the view of the group."""
        return self.state in (State.WAITING_FOR_MASTER, State.REPLICA, State.MASTER)

    @property
    def is_master(self) -> bool:
        """Whether this member is the master of `epoch`, as far as it knows."""
        return self.state is State.MASTER

    @property
    def required_ids(self) -> frozenset[int]:
        """Members that must have a byte before it is acknowledged; empty: it is no master."""
        if not self.is_master:
            return frozenset()
        sent = [each.wanted.ids for each in self._proposals if each.is_sent]
        return self.in_sync.ids.union(*sent)

    @property
    def question(self) -> Question | None:
        """What to ask the controller now; None: nothing."""
        match self.state:
            case State.INITIAL:
                return Question.NEXT_ID
            case State.APPLYING_ID:
                return Question.APPLY_ID
            case State.REGISTERING:
                return Question.REGISTER
            case State.WAITING_FOR_MASTER if self._elects and self._is_alive:
                return Question.ELECT
            case State.MASTER if self.proposal is not None:
                return Question.ALTER_SYNC_STATE_SET
        return None

    @property
    def proposal(self) -> Proposal | None:
        """The sync state set to propose now; None: none."""
        return next((each for each in self._proposals if not each.is_sent), None)

    def confirms(self, view: GroupView) -> bool:
        """Return whether a view says that this member is the master of its epoch."""
        return (
            self.is_master
            and view.epoch == self.epoch
            and view.master_id == self.broker_id
            and view.master_address == self.address
        )

    # -- events -----------------------------------------------------------------------------------

    def receive(self, event: Event) -> list[Command]:
        """Apply an event; return what the shell has to do, in order."""
        move = MOVES.get((self.state, type(event)))
        if move is None:
            return []
        commands = move(self, event)
        return [*self._changed_requirement(), *commands]

    def send_proposal(self) -> tuple[Proposal, list[Command]]:
        """Return the proposal to send, and what the shell has to do before."""
        proposal = self.proposal
        assert proposal is not None
        assert self.is_master
        sent = replace(proposal, is_sent=True)
        self._proposals = [sent if each is proposal else each for each in self._proposals]
        return sent, self._changed_requirement()

    def _changed_requirement(self) -> list[Command]:
        known, self._required = self._required, self.required_ids
        return [] if self._required in (known, frozenset()) else [Require(self._required)]

    def _offered(self, event: IdOffered) -> list[Command]:
        self.identity = Identity(self.group, event.broker_id, event.check_code)
        self.state = State.APPLYING_ID
        return [StoreIdentity(self.identity)]

    def _granted(self, event: IdGranted) -> list[Command]:
        assert self.identity is not None
        if event.broker_id != self.identity.broker_id:
            return []
        self.identity = replace(self.identity, check_code="")
        self.state = State.REGISTERING
        return [StoreIdentity(self.identity)]

    def _taken(self, event: IdTaken) -> list[Command]:
        assert self.identity is not None
        if event.broker_id != self.identity.broker_id:
            return []
        self.identity, self.state = None, State.INITIAL
        return [DropApplication()]

    def _registered(self, event: Registered) -> list[Command]:
        self.state = State.WAITING_FOR_MASTER
        self._is_alive = False
        self._elects = self._holds_views = not event.has_master and not self.is_learner
        self.failure = ""
        return []

    def _alive(self, event: HeartbeatAnswered) -> list[Command]:
        self._is_alive = not self._resigns
        return []

    def _lost(self, event: ConnectionLost) -> list[Command]:
        self._is_alive = False
        return []

    def _unknown(self, event: GroupUnknown) -> list[Command]:
        self.failure = (
            f"the controller does not know id {self.broker_id} of {self.group.broker_name}: its "
            "data was lost or cleaned"
        )
        return self._leave_role(State.REGISTERING)

    def _elected(self, event: Elected) -> list[Command]:
        self._elects = self._holds_views = False
        return self._seen(GroupSeen(event.view))

    def _not_elected(self, event: ElectionFailed) -> list[Command]:
        self._elects = self._holds_views = False  # the next view shows whether there is a master
        return []

    # -- views ------------------------------------------------------------------------------------

    def _seen(self, event: GroupSeen) -> list[Command]:
        view = event.view
        if self._holds_views:
            return []  # the master that it names is not alive
        self.failure = self._fault_of(view)
        if self.failure:
            return []
        if view.master_id is None:
            return self._vacant(view)
        if view.master_id == self.broker_id:
            return self._seen_as_master(view)
        return self._follow(view.master_id, view)

    def _fault_of(self, view: GroupView) -> str:
        """Return why a view cannot be true, or is not new; empty: it can."""
        if view.epoch < self.epoch:
            return f"the controller answers epoch {view.epoch}, after epoch {self.epoch}"
        if view.epoch > self.epoch:
            return ""
        known = view.master_id
        if view.epoch == self._vacant_epoch:
            known = None
        elif isinstance(self.master, BecomeMaster):
            known = self.broker_id
        elif isinstance(self.master, BecomeReplica):
            known = self.master.master_id
        if known != view.master_id:
            return (
                f"the controller names master {view.master_id} of epoch {view.epoch}, after "
                f"master {known}"
            )
        return ""

    def _vacant(self, view: GroupView) -> list[Command]:
        self.epoch = self._vacant_epoch = view.epoch
        self._elects = not self.is_learner
        self._resigns = False
        return self._leave_role(State.WAITING_FOR_MASTER)

    def _seen_as_master(self, view: GroupView) -> list[Command]:
        if view.master_address != self.address:
            self.failure = (
                f"the controller has id {self.broker_id} of {self.group.broker_name} at "
                f"{view.master_address}, this broker is {self.address}: two processes use one "
                "brokerIdentity file. Stop one, remove its file, and start this broker again"
            )
            return self._leave_role(State.CONFLICT)
        if view.epoch > self._begun:
            return self._take_office(view)
        if self.is_master:
            self._update_in_sync(view.in_sync)
            return []
        self._resigns, self._is_alive = True, False
        return [Resign()]

    def _take_office(self, view: GroupView) -> list[Command]:
        self.epoch = self._begun = view.epoch
        self.state = State.MASTER
        self._elects = self._resigns = False
        self._proposals, self.in_sync = [], NO_SET
        self._update_in_sync(view.in_sync)
        self.master = BecomeMaster(view.epoch)
        return [self.master]

    def _follow(self, master_id: int, view: GroupView) -> list[Command]:
        role = BecomeReplica(master_id, view.master_address, view.epoch)
        if role == self.master:
            return []
        commands = self._leave_role(State.REPLICA)
        self.epoch = view.epoch
        self._begun = max(self._begun, view.epoch)
        self._elects = self._resigns = False
        self.master = role
        return [*commands, role]

    def _leave_role(self, state: State) -> list[Command]:
        was_master, self.state = self.is_master, state
        self.master, self.in_sync, self._proposals = None, NO_SET, []
        return [Withdraw()] if was_master else []

    # -- the sync state set -----------------------------------------------------------------------

    def _update_in_sync(self, found: SyncStateSet) -> None:
        if found.epoch > self.in_sync.epoch:
            self.in_sync = replace(found, ids=found.ids | {self.broker_id})
            self._proposals = []  # they were made to change an older set

    def _wanted(self, event: InSyncWanted) -> list[Command]:
        self._proposals = [each for each in self._proposals if each.is_sent]
        ids = self._next_set(event.ids | {self.broker_id})
        if ids != self.in_sync.ids and len(self._proposals) < PROPOSALS_MAX:
            self._proposal_count += 1
            wanted = SyncStateSet(ids, self.in_sync.epoch)
            self._proposals.append(Proposal(self._proposal_count, wanted))
        return []

    def _next_set(self, ids: frozenset[int]) -> frozenset[int]:
        """Return the set to propose next on the way to these ids.

        The controller refuses a set as a whole for one id that it does not know, or counts as
        dead, and a replica may name any id. So members leave first, and after a refusal others
        join one at a time, in turn.
        """
        known = self.in_sync.ids
        joining = sorted(ids - known)
        if known - ids or not joining:
            return ids & known
        if not self._was_refused:
            return ids
        self._joined = next((each for each in joining if each > self._joined), joining[0])
        return known | {self._joined}

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


MOVES: Final[Mapping[tuple[State, type], Callable[..., list[Command]]]] = {
    (State.INITIAL, IdOffered): GroupMember._offered,
    (State.APPLYING_ID, IdGranted): GroupMember._granted,
    (State.APPLYING_ID, IdTaken): GroupMember._taken,
    (State.REGISTERING, Registered): GroupMember._registered,
    (State.REGISTERING, GroupUnknown): GroupMember._unknown,
    (State.WAITING_FOR_MASTER, HeartbeatAnswered): GroupMember._alive,
    (State.WAITING_FOR_MASTER, ConnectionLost): GroupMember._lost,
    (State.WAITING_FOR_MASTER, GroupSeen): GroupMember._seen,
    (State.WAITING_FOR_MASTER, Elected): GroupMember._elected,
    (State.WAITING_FOR_MASTER, ElectionFailed): GroupMember._not_elected,
    (State.WAITING_FOR_MASTER, GroupUnknown): GroupMember._unknown,
    (State.REPLICA, GroupSeen): GroupMember._seen,
    (State.REPLICA, Elected): GroupMember._elected,
    (State.REPLICA, GroupUnknown): GroupMember._unknown,
    (State.MASTER, GroupSeen): GroupMember._seen,
    (State.MASTER, Elected): GroupMember._elected,
    (State.MASTER, GroupUnknown): GroupMember._unknown,
    (State.MASTER, InSyncWanted): GroupMember._wanted,
    (State.MASTER, InSyncAltered): GroupMember._altered,
    (State.MASTER, ProposalEnded): GroupMember._ended,
}
"""Every legal move; an event without one is an answer that came late or twice."""
