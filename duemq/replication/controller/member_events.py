"""States of a group member, its events and its commands.

The state determines the next request to the controller; the response becomes an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from duemq.replication.controller.identity import MemberIdentity
from duemq.replication.controller.requests import GroupView, SyncStateSet


class MemberState(Enum):
    """State of a member; the value is the text for operators."""

    INITIAL = "has no id"
    APPLYING_ID = "applies for an id"
    REGISTERING = "registers"
    WAITING_FOR_MASTER = "no master is elected"
    REPLICA = "replica"
    MASTER = "master"
    CONFLICT = "another process uses its id"


class NextRequest(Enum):
    """Request to the controller, by request code; the view (1004) is requested periodically."""

    NEXT_ID = 1012
    APPLY_ID = 1013
    REGISTER = 1003
    ELECT = 1002
    ALTER_SYNC_STATE_SET = 1001


# Events.


@dataclass(frozen=True, slots=True)
class IdOffered:
    """The controller offers an id that no member has; the check code identifies the applicant."""

    broker_id: int
    check_code: str


@dataclass(frozen=True, slots=True)
class IdGranted:
    """The controller has assigned the id to this member."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class IdTaken:
    """The controller has assigned the id to another member."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The controller has stored the address; `has_master`: whether a master is alive."""

    has_master: bool


@dataclass(frozen=True, slots=True)
class HeartbeatSucceeded:
    """The controller counts this member as alive."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A view of the group: the response to 1004."""

    view: GroupView


@dataclass(frozen=True, slots=True)
class Elected:
    """The response to 1002 that has a master: a new one, or the former one if it is alive."""

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
class StoreFailed:
    """The store of this broker cannot be synced; it accepts nothing until it is opened again."""


@dataclass(frozen=True, slots=True)
class InSyncWanted:
    """Ids of the replicas that the sync state set should contain."""

    ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class InSyncAltered:
    """The controller has accepted a proposal."""

    proposal: int
    in_sync: SyncStateSet


@dataclass(frozen=True, slots=True)
class ProposalEnded:
    """A proposal was refused, or was sent so long ago that it will not be accepted."""

    proposal: int


Event = (
    IdOffered
    | IdGranted
    | IdTaken
    | Registered
    | HeartbeatSucceeded
    | GroupSeen
    | Elected
    | ElectionFailed
    | GroupUnknown
    | ConnectionLost
    | StoreFailed
    | InSyncWanted
    | InSyncAltered
    | ProposalEnded
)


# Commands.


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Write the identity to its file before the next request."""

    identity: MemberIdentity


@dataclass(frozen=True, slots=True)
class DropApplication:
    """Remove the file of the id that was applied for."""


@dataclass(frozen=True, slots=True)
class BecomeMaster:
    """Become the master of this epoch, which starts at the end of this member's log."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BecomeReplica:
    """Become a replica of this master."""

    master_id: int
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Acknowledge and deliver nothing until the next role."""


@dataclass(frozen=True, slots=True)
class Resign:
    """Send a heartbeat and close the connection: the controller then counts the member as dead."""


@dataclass(frozen=True, slots=True)
class Require:
    """Acknowledge only log bytes that all these members have."""

    ids: frozenset[int]


Command = (
    StoreIdentity | DropApplication | BecomeMaster | BecomeReplica | Withdraw | Resign | Require
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A sync state set that this master has proposed, or will propose.

    Attributes:
        number: Number by which events refer to the proposal.
        new_set: The new ids, with the epoch of the set that they replace.
        is_sent: Whether the proposal was sent; its outcome is then unknown.
    """

    number: int
    new_set: SyncStateSet
    is_sent: bool = False
