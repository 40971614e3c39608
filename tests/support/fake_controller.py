"""In-memory model of Apache's controller: groups, elections, heartbeats, channels.

The model follows ReplicasInfoManager, DefaultElectPolicy and DefaultBrokerHeartbeatManager; time
and channels are passed in. `FakeControllers` provides clients of the model for `GroupService`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Peer, Request, Response
from tests.support.fakes import FakePeer

ADDRESS = "controller:1"
RETRIES = 3  # electMasterMaxRetryCount; each failed retry increments the epoch


@dataclass
class Group:
    """Group of brokers."""

    members: dict[int, tuple[str, str]] = field(default_factory=dict)  # address, check code
    next_id: int = 1
    epoch: int = 0
    master: int | None = None
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = 0


@dataclass
class Alive:
    """Last heartbeat of a member."""

    at_ms: int
    limit_ms: int
    channel: object
    epoch: int
    max_offset: int


class ControllerModel:
    """Model of the controller.

    Args:
        now_ms: Returns the time of the controller's clock, in ms since the epoch.
        unclean: enableElectUncleanMaster.

    Attributes:
        masters: All elected masters, by group and epoch.
        notified: Called with the group's name after each election (request code 1008).
    """

    def __init__(self, now_ms: Callable[[], int], *, unclean: bool = False) -> None:
        self.now_ms, self.unclean = now_ms, unclean
        self.groups: dict[str, Group] = {}
        self.alive: dict[tuple[str, int], Alive] = {}
        self.masters: dict[tuple[str, int], int] = {}
        self.is_leader = True
        self.leader_address = ADDRESS
        self.notified: Callable[[str], None] = lambda name: None

    def response(self, request: Request, channel: object) -> Response:
        """Return the response to a request on a channel."""
        if request.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            fields = {"isLeader": str(self.is_leader).lower(), "group": "g", "peers": ""}
            return Response(fields={**fields, "controllerLeaderAddress": self.leader_address})
        if request.code == RequestCode.BROKER_HEARTBEAT:
            return self._heartbeat(request.fields, channel)
        if not self.is_leader:
            return Response(ResponseCode.CONTROLLER_NOT_LEADER, "not in leader state")
        handler = {
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._next_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply_id,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._replica_info,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect_by_request,
        }.get(RequestCode(request.code))
        if handler is not None:
            return handler(request.fields)
        assert request.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        return self._alter(request.fields, json.loads(bytes(request.body)))

    # -- liveness ---------------------------------------------------------------------------------

    def close(self, channel: object) -> None:
        """Handle a closed channel: its member counts as dead immediately."""
        for key, alive in list(self.alive.items()):
            if alive.channel is channel:
                del self.alive[key]
                self._inactive(*key)

    def scan(self) -> None:
        """Mark members without heartbeats as dead; elect new masters for dead ones."""
        for key, alive in list(self.alive.items()):
            if self.now_ms() - alive.at_ms > alive.limit_ms:
                del self.alive[key]
                self._inactive(*key)
        if not self.is_leader:
            return
        for name, group in self.groups.items():
            dead = group.master is not None and not self.is_alive(name, group.master)
            if dead and any(self.is_alive(name, each) for each in group.members):
                self._elect_by_itself(name)

    def is_alive(self, name: str, member: int) -> bool:
        alive = self.alive.get((name, member))
        return alive is not None and self.now_ms() - alive.at_ms <= alive.limit_ms

    def _heartbeat(self, fields: Mapping[str, str], channel: object) -> Response:
        key = fields["brokerName"], int(fields["brokerId"])
        broker = self.alive.get(key)
        if broker is None:
            broker = self.alive[key] = Alive(0, 0, channel, -1, -1)
        broker.at_ms, broker.limit_ms = self.now_ms(), int(fields["heartbeatTimeoutMills"])
        broker.epoch, broker.max_offset = max(
            (broker.epoch, broker.max_offset), (int(fields["epoch"]), int(fields["maxOffset"]))
        )
        return Response(remark="Heart beat success")  # the channel stays the first one

    def _inactive(self, name: str, member: int) -> None:
        group = self.groups.get(name)
        if self.is_leader and group is not None and group.master == member:
            self._elect_by_itself(name)

    # -- elections --------------------------------------------------------------------------------

    def designate(self, name: str, member: int) -> Response:
        """Elect a member by request, even if the master is alive (mqadmin electMaster)."""
        return self._elect(name, member, designated=True)

    def _elect_by_itself(self, name: str) -> None:
        for _ in range(RETRIES):
            if self._elect(name, None, designated=False).code == ResponseCode.SUCCESS:
                return

    def _elect_by_request(self, fields: Mapping[str, str]) -> Response:
        designated = fields["designateElect"] == "true"
        return self._elect(fields["brokerName"], int(fields["brokerId"]), designated=designated)

    def _elect(self, name: str, member: int | None, *, designated: bool) -> Response:
        group = self.groups.get(name)
        if group is None:
            return Response(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "no group")
        elected = member if group.epoch == 0 else None
        if elected is None:
            preferred = member if designated else None
            elected = self._choose(name, group.in_sync, group.master, preferred)
            if elected is None and self.unclean:
                elected = self._choose(name, frozenset(group.members), group.master, preferred)
        if elected is not None and elected == group.master:
            return self._view(group, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        if elected is None:
            if member is not None:
                return Response(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "failed")
            group.master, group.epoch = None, group.epoch + 1
            return Response(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, "no master")
        group.master, group.epoch = elected, group.epoch + 1
        group.in_sync, group.in_sync_epoch = frozenset({elected}), group.in_sync_epoch + 1
        self.masters[name, group.epoch] = elected
        self.notified(name)
        return self._view(group, ResponseCode.SUCCESS)

    def _choose(
        self, name: str, ids: frozenset[int], master: int | None, preferred: int | None
    ) -> int | None:
        alive = [each for each in ids if self.is_alive(name, each)]
        if master in alive and preferred in (None, master):
            return master
        if preferred is not None:
            return preferred if preferred in alive else None
        figures = {each: self.alive[name, each] for each in alive}
        return max(
            alive, key=lambda each: (figures[each].epoch, figures[each].max_offset), default=None
        )

    def _view(self, group: Group, code: int) -> Response:
        fields = {"masterEpoch": str(group.epoch), "syncStateSetEpoch": str(group.in_sync_epoch)}
        fields |= _master_fields(group)
        return Response(code, None, fields, _body(syncStateSet=sorted(group.in_sync)))

    # -- the other requests -----------------------------------------------------------------------

    def _next_id(self, fields: Mapping[str, str]) -> Response:
        group = self.groups.get(fields["brokerName"])
        return Response(fields={"nextBrokerId": str(group.next_id if group else 1)})

    def _apply_id(self, fields: Mapping[str, str]) -> Response:
        name, member = fields["brokerName"], int(fields["appliedBrokerId"])
        code = fields["registerCheckCode"]
        if name not in self.groups and member == 1:
            self.groups[name] = Group()
        group = self.groups.get(name)
        if group is None or (member in group.members and group.members[member][1] != code):
            return Response(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "taken")
        if member not in group.members:
            group.members[member] = code.split(";")[0], code
            group.next_id += 1
        return Response()

    def _register(self, fields: Mapping[str, str]) -> Response:
        name, member = fields["brokerName"], int(fields["brokerId"])
        group = self.groups.get(name)
        if group is None or member not in group.members:
            return Response(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "unknown")
        response_fields = {"clusterName": fields["clusterName"], "brokerName": name}
        if group.master is not None and self.is_alive(name, group.master):
            response_fields |= _master_fields(group)
        group.members[member] = fields["brokerAddress"], group.members[member][1]
        return Response(fields=response_fields, body=_set_body(group))

    def _replica_info(self, fields: Mapping[str, str]) -> Response:
        group = self.groups.get(fields["brokerName"])
        if group is None:
            return Response(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "no group")
        response_fields = {"masterEpoch": str(group.epoch)} | _master_fields(group)
        return Response(fields=response_fields, body=_set_body(group))

    def _alter(self, fields: Mapping[str, str], body: Mapping[str, object]) -> Response:
        name = fields["brokerName"]
        group, new_ids = self.groups[name], body["syncStateSet"]
        assert isinstance(new_ids, list)
        ids = frozenset(new_ids)
        refusals = (
            (ids == group.in_sync, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
            (group.master != int(fields["masterBrokerId"]), ResponseCode.CONTROLLER_INVALID_MASTER),
            (
                group.epoch != int(fields["masterEpoch"]),
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            ),
            (
                group.in_sync_epoch != body["syncStateSetEpoch"],
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            ),
            (not ids <= group.members.keys(), ResponseCode.CONTROLLER_INVALID_REPLICAS),
            (
                not all(self.is_alive(name, each) for each in ids),
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
            ),
            (group.master not in ids, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        )
        for applies, code in refusals:
            if applies:
                return Response(code, "refused")
        group.in_sync, group.in_sync_epoch = ids, group.in_sync_epoch + 1
        return Response(
            fields={"newSyncStateSetEpoch": str(group.in_sync_epoch)}, body=_set_body(group)
        )


def _master_fields(group: Group) -> dict[str, str]:
    if group.master is None:
        return {}
    address, _ = group.members.get(group.master, ("", ""))  # a first election takes any id
    return {"masterBrokerId": str(group.master)} | ({"masterAddress": address} if address else {})


def _body(**values: object) -> bytes:
    return json.dumps(values).encode()


def _set_body(group: Group) -> bytes:
    return _body(syncStateSet=sorted(group.in_sync), syncStateSetEpoch=group.in_sync_epoch)


class FakeLink:
    """Client of one controller, with the interface of RemotingClient.

    Attributes:
        owner: Number of the member that uses the client.
    """

    def __init__(self, network: FakeControllers, address: str) -> None:
        self._network, self.address = network, address
        self.owner = 0
        self.peer: FakePeer | None = None

    async def connect(self) -> Peer:
        if self.address in self._network.away:
            raise ConnectionRefusedError(f"{self.address} is unreachable")
        if self.owner in self._network.cut_off:
            raise TimeoutError
        if self.peer is None or self.peer.closed:
            self.peer = FakePeer()
            self._network.opened += 1
        return self.peer

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        await self.connect()
        if self.address in self._network.silent:
            raise TimeoutError
        return await self._network.exchange(self.address, request, self.peer)

    async def send_oneway(self, request: Request) -> None:
        await self.connect()
        self._network.models[self.address].response(request, self.peer)

    async def close(self) -> None:
        self._network.cut(self)

    def abort(self) -> None:
        self._network.cut(self)


class FakeControllers:
    """Controllers by address, and a simulated network to them.

    Attributes:
        away: Unreachable addresses.
        silent: Addresses that accept connections but never respond.
        cut_off: Members whose requests are lost; their connections stay open.
        change: Changes a response before its delivery, or raises a network error.
        before: Called with each request before it is handled.
        requested: Codes of the handled requests.
        opened: Number of connections opened.
    """

    def __init__(self, models: Mapping[str, ControllerModel]) -> None:
        self.models = dict(models)
        self.links: list[FakeLink] = []
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.cut_off: set[int] = set()
        self.change: Callable[[Request, Response], Response] = lambda request, response: response
        self.before: Callable[[Request], None] = lambda request: None
        self.requested: list[int] = []
        self.opened = 0

    def connect(self, address: str) -> FakeLink:
        """Return a client of an address."""
        link = FakeLink(self, address)
        self.links.append(link)
        return link

    def cut(self, link: FakeLink) -> None:
        """Close a connection; both ends are notified immediately."""
        peer, link.peer = link.peer, None
        if peer is not None and not peer.closed:
            peer.close()
            self.models[link.address].close(peer)

    def cut_all(self) -> None:
        """Close every connection."""
        for link in self.links:
            self.cut(link)

    async def exchange(self, address: str, request: Request, channel: object) -> Response:
        """Return the response of the controller at an address."""
        self.requested.append(int(request.code))
        self.before(request)
        return self.change(request, self.models[address].response(request, channel))
