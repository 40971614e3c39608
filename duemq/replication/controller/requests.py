"""Requests to Apache's controller, and the values in its responses.

    1005 leader of the controllers      1003 register the address of this member
    1012 next free id of the group      1004 master, epoch and sync state set of the group
    1013 apply for an id                1002 elect a master
    904  heartbeat                      1001 change the sync state set

Responses come from the network: an invalid id, epoch or address raises `ControllerFault`.

Source: BrokerOuterAPI, ControllerRequestProcessor, header.controller
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from duemq.net import wire_json
from duemq.net.fields import INT_MAX, LONG_MAX
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import PeerError
from duemq_common.host_port import split_address
from duemq_common.request import Request, Response

MEMBERS_MAX: Final = 1_000
ADDRESS_CHARS_MAX: Final = 300
MEANINGS: Final[Mapping[int, str]] = {
    ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH: "another epoch has begun",
    ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH: "the sync state set has changed since",
    ResponseCode.CONTROLLER_INVALID_MASTER: "this broker is not the master",
    ResponseCode.CONTROLLER_INVALID_REPLICAS: "the group lacks an id of the sync state set",
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: "no member of the sync state set is alive",
    ResponseCode.CONTROLLER_INVALID_REQUEST: "the request is malformed",
    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE: "a member sends no heartbeats",
    ResponseCode.CONTROLLER_NOT_LEADER: "this controller is not the leader",
    ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST: "the controller has no such group",
    ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: "the group cannot be removed",
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: "the controller has no such member",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "the master is alive",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "no member of the sync state set is alive",
    ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED: "the sync state set stays as it is",
    ResponseCode.CONTROLLER_BROKER_ID_INVALID: "the id belongs to another broker",
    ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR: "the controllers cannot agree",
    ResponseCode.CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS: "the member has sent no heartbeat",
}
"""Meanings of the controller's response codes, for messages."""
UNKNOWN: Final = frozenset(
    {
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    }
)
"""Response codes of a controller that does not know the group or the member."""


class ControllerFault(PeerError):
    """A controller cannot be reached, or its response is invalid."""


class ControllerRefusal(PeerError):
    """A controller refuses a request; `code` is its response code."""

    def __init__(self, request: int, code: int, remark: str | None) -> None:
        self.code = code
        meaning = MEANINGS.get(code, "an error of the controller")
        name = RequestCode(request).name
        super().__init__(
            f"the controller refuses {name} with code {code} ({meaning}): {(remark or '')[:200]!r}"
        )


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group: the brokers of one cluster that share a name."""

    cluster: str
    broker_name: str

    @property
    def fields(self) -> dict[str, str]:
        """Header fields that identify the group."""
        return {"clusterName": self.cluster, "brokerName": self.broker_name}


@dataclass(frozen=True, slots=True)
class Leader:
    """Response to 1005.

    Attributes:
        is_leader: Whether the controller that responded is the leader.
        address: `host:port` of the leader according to this controller; empty: unknown.
    """

    is_leader: bool
    address: str


@dataclass(frozen=True, slots=True)
class SyncStateSet:
    """Ids of the members that have every acknowledged byte; each change increments the epoch."""

    ids: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """A controller's view of a group.

    Attributes:
        epoch: Master epoch; every election increments it, also one without a result.
        master_id: Id of the master; None: no master.
        master_address: `host:port` that clients of the master connect to; empty: no master.
        in_sync: The sync state set.
    """

    epoch: int
    master_id: int | None
    master_address: str
    in_sync: SyncStateSet


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat:
    """Content of a heartbeat.

    Attributes:
        address: `host:port` that clients of this broker connect to.
        broker_id: Id of this broker at the controller.
        epoch: Last epoch of the log; 0: none.
        max_offset: End of the log.
        confirm_offset: End of the log that every required member has.
        limit_ms: Time in ms without a heartbeat after which the member counts as dead.
        election_priority: The lowest value is elected among members with the same log.
    """

    address: str
    broker_id: int
    epoch: int
    max_offset: int
    confirm_offset: int
    limit_ms: int
    election_priority: int


def leader_request() -> Request:
    """Return the request for the controllers' leader."""
    return Request(RequestCode.CONTROLLER_GET_METADATA_INFO, {})


def leader_of(response: Response) -> Leader:
    """Return the leader in a response to 1005.

    Raises:
        PeerError: The response is a refusal or malformed.
    """
    fields = _fields(RequestCode.CONTROLLER_GET_METADATA_INFO, response)
    text = fields.get("controllerLeaderAddress", "")
    return Leader(fields.get("isLeader", "").lower() == "true", _address(text) if text else "")


def next_id_request(group: GroupName) -> Request:
    """Return the request for an id that no member has."""
    return Request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, group.fields)


def next_id_of(response: Response) -> int:
    """Return the id in a response to 1012.

    Raises:
        PeerError: The response is a refusal or malformed.
    """
    fields = _fields(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, response)
    return _number(fields, "nextBrokerId", 1, LONG_MAX)


def apply_id(group: GroupName, broker_id: int, check_code: str) -> Request:
    """Return the application for an id; it may be repeated with the same check code."""
    fields = {"appliedBrokerId": str(broker_id), "registerCheckCode": check_code}
    return Request(RequestCode.CONTROLLER_APPLY_BROKER_ID, group.fields | fields)


def register(group: GroupName, broker_id: int, address: str, now_ms: int) -> Request:
    """Return the request that registers the address of a member."""
    fields = {"brokerId": str(broker_id), "brokerAddress": address, "invokeTime": str(now_ms)}
    return Request(RequestCode.CONTROLLER_REGISTER_BROKER, group.fields | fields)


def has_master(response: Response) -> bool:
    """Return whether a response to 1003 has a master that is alive.

    Raises:
        PeerError: The response is a refusal.
    """
    fields = _fields(RequestCode.CONTROLLER_REGISTER_BROKER, response)
    return bool(fields.get("masterBrokerId"))


def replica_info_request(group: GroupName) -> Request:
    """Return the request for the group's master, epochs and sync state set."""
    return Request(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": group.broker_name})


def elect(group: GroupName, broker_id: int, now_ms: int) -> Request:
    """Return a member's request for an election; it has no effect while a master is alive."""
    fields = {"brokerId": str(broker_id), "designateElect": "false", "invokeTime": str(now_ms)}
    return Request(RequestCode.CONTROLLER_ELECT_MASTER, group.fields | fields)


def view_of(code: RequestCode, response: Response) -> GroupView:
    """Return the view in a response to 1002 or 1004.

    Raises:
        PeerError: The response is a refusal or malformed.
    """
    fields = _fields(code, response, also=ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    body = _object(response)
    epoch = _number(fields, "masterEpoch", 0, INT_MAX)
    master_id, address = None, ""
    if fields.get("masterBrokerId"):
        master_id = _number(fields, "masterBrokerId", 1, LONG_MAX)
        address = _address(fields.get("masterAddress", ""))
    set_epoch = body.get("syncStateSetEpoch")
    if set_epoch is None:  # in a response to 1002, it is in the header
        set_epoch = _number(fields, "syncStateSetEpoch", 0, INT_MAX)
    return GroupView(epoch, master_id, address, _sync_state_set(body, set_epoch))


def alter_sync_state_set(
    group: GroupName, broker_id: int, epoch: int, new_set: SyncStateSet, now_ms: int
) -> Request:
    """Return a master's request to change the sync state set.

    Args:
        broker_id: Id of the master.
        epoch: Epoch of the master.
        new_set: The new set, with the epoch of the set that it replaces.
    """
    fields = {
        "brokerName": group.broker_name,
        "masterBrokerId": str(broker_id),
        "masterEpoch": str(epoch),
        "invokeTime": str(now_ms),
    }
    return Request(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body_of(new_set.ids, new_set.epoch)
    )


def body_of(ids: Collection[int], epoch: int) -> bytes:
    """Return the JSON body of a sync state set."""
    return wire_json.encode({"syncStateSet": sorted(ids), "syncStateSetEpoch": epoch})


def altered_of(response: Response) -> SyncStateSet:
    """Return the sync state set in a response to 1001.

    Raises:
        PeerError: The response is a refusal or malformed.
    """
    _fields(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, response)
    body = _object(response)
    return _sync_state_set(body, body.get("syncStateSetEpoch"))


def heartbeat(group: GroupName, beat: BrokerHeartbeat) -> Request:
    """Return a heartbeat."""
    fields = {
        "brokerAddr": beat.address,
        "brokerId": str(beat.broker_id),
        "epoch": str(beat.epoch),
        "maxOffset": str(beat.max_offset),
        "confirmOffset": str(beat.confirm_offset),
        "heartbeatTimeoutMills": str(beat.limit_ms),
        "electionPriority": str(beat.election_priority),
    }
    return Request(RequestCode.BROKER_HEARTBEAT, group.fields | fields)


def check(code: RequestCode, response: Response) -> None:
    """Check that a response is a success.

    Raises:
        ControllerRefusal: It has an error code.
    """
    _fields(code, response)


def _fields(
    code: RequestCode, response: Response, also: int = ResponseCode.SUCCESS
) -> dict[str, str]:
    if response.code not in (ResponseCode.SUCCESS, also):
        raise ControllerRefusal(code, response.code, response.remark)
    return response.fields or {}


def _number(fields: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = fields.get(name, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if not least <= number <= most:
        raise ControllerFault(
            f"the controller's response has {name}={text[:40]!r}, not a number from {least} to "
            f"{most}"
        )
    return number


def _address(text: str) -> str:
    try:
        split_address(text if len(text) <= ADDRESS_CHARS_MAX else "")
    except ValueError:
        raise ControllerFault(
            f"the controller's response has the address {text[:80]!r}, not host:port"
        ) from None
    return text


def _object(response: Response) -> dict[str, object]:
    assert isinstance(response.body, bytes | memoryview)  # as received
    try:
        return wire_json.parse_object(bytes(response.body))
    except ValueError as error:
        raise ControllerFault(f"the controller's response is not JSON: {error}") from error


def _sync_state_set(body: Mapping[str, object], epoch: object) -> SyncStateSet:
    ids = body.get("syncStateSet")
    if not isinstance(ids, list) or len(ids) > MEMBERS_MAX:
        raise ControllerFault("the controller's response has no valid sync state set")
    if not all(type(each) is int and 0 < each <= LONG_MAX for each in ids):
        raise ControllerFault("the controller's sync state set has an invalid id")
    if type(epoch) is not int or not 0 <= epoch <= INT_MAX:
        raise ControllerFault("the controller's sync state set has no valid epoch")
    return SyncStateSet(frozenset(ids), epoch)
