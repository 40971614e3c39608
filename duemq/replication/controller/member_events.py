"""States of a group member, its events and its commands.

A question is what the shell asks the controller; its answer becomes an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from duemq.replication.controller.identity import Identity
from duemq.replication.controller.requests import GroupView, SyncStateSet


class State(Enum):
    """What a member is."""

    INITIAL = "has no id"
    APPLYING_ID = "applies for an id"
    REGISTERING = "registers"
    WAITING_FOR_MASTER = "no master is elected"
    REPLICA = "replica"
    MASTER = "master"
    CONFLICT = "another process uses its id"


class Question(Enum):
    """What the shell asks the controller next, apart from the view, which it asks periodically."""

    NEXT_ID = 1012
    APPLY_ID = 1013
    REGISTER = 1003
    ELECT = 1002
    ALTER_SYNC_STATE_SET = 1001


# Events.


@dataclass(frozen=True, slots=True)
class IdOffered:
    """An id that no member has; the check code will prove who applied for it."""

    broker_id: int
    check_code: str


@dataclass(frozen=True, slots=True)
class IdGranted:
    """The id is this member's."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class IdTaken:
    """The id belongs to another member."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The controller has stored the address; `has_master`: a master is alive."""

    has_master: bool


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The controller counts this member as alive."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A view of the group: the answer to 1004."""

    view: GroupView


@dataclass(frozen=True, slots=True)
class Elected:
    """The answer to 1002 that names a master, new or still alive."""

    view: GroupView


@dataclass(frozen=True, slots=True)
class ElectionFailed:
    """No member can be elected now."""


@dataclass(frozen=True, slots=True)
class GroupUnknown:
    """The controller does not know the group, or this member."""


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection to the leader is closed: the controller may count this member as dead."""


@dataclass(frozen=True, slots=True)
class InSyncWanted:
    """The members that should be in the sync state set, as replication sees them."""

    ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class InSyncAltered:
    """The controller has accepted a proposal."""

    proposal: int
    in_sync: SyncStateSet


@dataclass(frozen=True, slots=True)
class ProposalEnded:
    """A proposal was refused, or can no longer be accepted."""

    proposal: int


Event = (
    IdOffered | IdGranted | IdTaken | Registered | HeartbeatAnswered | GroupSeen | Elected
    | ElectionFailed | GroupUnknown | ConnectionLost | InSyncWanted | InSyncAltered | ProposalEnded
)  # fmt: skip


# Commands.


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Write the identity before anything else is asked."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class DropApplication:
    """Remove the id that was applied for."""


@dataclass(frozen=True, slots=True)
class BecomeMaster:
    """Be the master of this epoch, whose log begins at the end of this member's log."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BecomeReplica:
    """Copy the log of this master."""

    master_id: int
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Acknowledge and deliver nothing until the next role."""


@dataclass(frozen=True, slots=True)
class Resign:
    """Have the controller count this member as dead: heartbeat, then close the connection."""


@dataclass(frozen=True, slots=True)
class Require:
    """Acknowledge only what all these members have."""

    ids: frozenset[int]


Command = (
    StoreIdentity | DropApplication | BecomeMaster | BecomeReplica | Withdraw | Resign | Require
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A sync state set that this master has proposed, or is about to.

    Attributes:
        number: Names the proposal in events.
        wanted: The new ids, with the epoch of the set that they replace.
        is_sent: Whether the outcome is unknown.
    """

    number: int
    wanted: SyncStateSet
    is_sent: bool = False
