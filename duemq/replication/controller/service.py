"""Group service: sends the requests of member and lease, and executes the member's commands.

    heartbeats   every heartbeat_ms: 904 and 1004 to the leader, 904 to the other controllers
                     |  responses --> lease;  views --> member --> commands
    requests     1012, 1013, 1003, 1002, 1001, as `GroupMember.next_request` requires
    roles        GroupHost.become_master, become_replica: one at a time, always the newest

A notification (1008) only makes the service send 1004 at once: it may be forged.

Source: ReplicasManager
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from duemq.configuration.controller_config import ControllerConfig
from duemq.replication.controller import requests
from duemq.replication.controller.client import ControllerClient
from duemq.replication.controller.election_back_off import ElectionBackOff
from duemq.replication.controller.host import GroupHost
from duemq.replication.controller.identity import IdentityFiles, check_group
from duemq.replication.controller.lease import Lease
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
    NextRequest,
    ProposalEnded,
    Registered,
    Require,
    Resign,
    StoreFailed,
    StoreIdentity,
    Withdraw,
)
from duemq.replication.controller.requests import BrokerHeartbeat, ControllerRefusal, GroupName
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import PeerError
from duemq_common.request import Request, Response

if TYPE_CHECKING:
    from duemq.net.client import RemotingClient

log = logging.getLogger(__name__)
VIEW_PAUSE_MS: Final = 50  # minimum pause between two requests for the view
REFUSALS_MAX: Final = 16
PROPOSAL_MS_MAX: Final = 10_000  # Apache's controller abandons a request after 5 s
GroupState = dict[str, str | int | list[int] | None]


class GroupService:
    """The membership of one broker; `running` is a context manager around its tasks.

    Args:
        host: The broker whose role is changed.
        group: The group.
        files: The identity files.
        connect: Returns a client of an address.

    Attributes:
        member: State of the member.
        lease: Fencing lease: a master may acknowledge only while it is valid.
        failure: Reason why the last request failed; empty after a success.

    Raises:
        ConfigError: The name of the group is invalid, or the identity files are another group's.
        CorruptStore: An identity file is damaged.
    """

    def __init__(
        self,
        host: GroupHost,
        group: GroupName,
        config: ControllerConfig,
        files: IdentityFiles,
        clock: Clock,
        connect: Callable[[str], RemotingClient],
    ) -> None:
        check_group(group)
        self._host, self.group, self._config = host, group, config
        self._files, self._clock = files, clock
        self.lease = Lease(config.heartbeat_limit_ms)
        self.member = GroupMember(
            group,
            host.address,
            files.load(group),
            last_epoch=host.last_epoch,
            is_learner=config.is_learner,
        )
        self._client = ControllerClient(config.controllers, connect, self._connection_lost)
        self._stopping = asyncio.Event()
        self._view_due, self._request_due = asyncio.Event(), asyncio.Event()
        self._role_changed = asyncio.Event()
        self._role: BecomeMaster | BecomeReplica | None = None
        self._sent_proposals: dict[int, int] = {}
        self._resigns = False
        self._resigned_ms: int | None = None
        self._register_ms = 0  # steady time from which it registers again if it is unknown then
        self._elections = ElectionBackOff(config.heartbeat_ms, config.heartbeat_limit_ms)
        self.failure = ""
        self._logged = ""  # last logged `GroupMember.failure`
        self._logged_refusals = set[str]()  # `failure`s logged since a request last succeeded

    # -- interface for the broker -----------------------------------------------------------------

    def holds(self, epoch: int) -> bool:
        """Return whether the master of `epoch` may acknowledge and deliver now."""
        return self.lease.is_valid(epoch, self._clock.steady_ms())

    @property
    def required_ids(self) -> frozenset[int]:
        """Ids that must have a byte before it is acknowledged; empty: no master."""
        return self.member.required_ids

    def notify(self) -> None:
        """Request the view of the group soon; called for a notification (1008)."""
        self._view_due.set()

    def check_in_sync(self) -> None:
        """Compare the sync state set with `GroupHost.caught_up`, and propose a change if needed.

        A master that stops keeps its set: the next master is elected from it.
        """
        caught_up = self._host.caught_up
        if self.member.is_master and caught_up is not None:
            self._receive(InSyncWanted(caught_up))

    async def close_connections(self) -> None:
        """Close all connections; if this is the master, the controller then elects another."""
        await self._client.close()

    def view(self) -> GroupState:
        """Return the state for `duemq replicas` and the admin API; unknown values are None."""
        member = self.member
        left_ms = self.lease.valid_until_ms - self._clock.steady_ms()
        return {
            "groupState": member.state.value,
            "groupId": member.broker_id or None,
            "masterEpoch": member.epoch or None,
            "masterId": member.master_id,
            "syncStateSet": sorted(member.in_sync.ids) if member.is_master else None,
            "syncStateSetEpoch": member.in_sync.epoch if member.is_master else None,
            "leaseMs": max(left_ms, 0) if member.is_master else None,
            "controller": self._client.leader or None,
            "electionPauseMs": self._elections.left_ms(self._clock.steady_ms()),
            "groupFailure": member.failure or self.failure,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take part in the group until the block ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_heartbeats(), name="controller heartbeats")
            tasks.create_task(self._send_requests(), name="controller requests")
            tasks.create_task(self._change_roles(), name="roles")
            tasks.create_task(self._check_periodically(), name="sync state set")
            tasks.create_task(self._find_leader(), name="controller leader")
            for address in self._config.controllers:
                tasks.create_task(self._send_heartbeats(address), name=f"heartbeats to {address}")
            try:
                yield
            finally:
                self._stop()
                await self.close_connections()  # pending calls fail; the controller elects another

    def _stop(self) -> None:
        self.lease.revoke()
        for event in (self._stopping, self._view_due, self._request_due, self._role_changed):
            event.set()

    # -- heartbeats -------------------------------------------------------------------------------

    async def _run_heartbeats(self) -> None:
        """Contact the leader every `heartbeat_ms`, and when `notify` was called.

        The next contact does not wait for a response that takes longer than `heartbeat_ms`, as of a
        busy controller: the lease would end although the controller receives the heartbeats.
        """
        async with asyncio.TaskGroup() as contacts:
            while not self._stopping.is_set():
                next_ms = self._clock.now_ms() + self._config.heartbeat_ms
                self._view_due.clear()
                if self.member.is_master and self._host.store_failed:
                    self._receive(StoreFailed())
                if self.member.sees_group:
                    responded = asyncio.Event()
                    contacts.create_task(self._contact_leader(responded), name="contact")
                    await self._clock.wait(responded, until_ms=next_ms)
                if self._resigns:
                    await self._resign()
                await self._pause(VIEW_PAUSE_MS)
                await self._clock.wait(self._view_due, until_ms=next_ms)

    async def _contact_leader(self, responded: asyncio.Event) -> None:
        """Send a heartbeat and a request for the view to the leader, concurrently."""
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(self._request_view(), name="view")]
            if self.member.sends_heartbeats:
                work.append(tasks.create_task(self._send_heartbeat(), name="heartbeat"))
        responded.set()
        if all(task.result() for task in work):
            self.failure = ""
            if self.member.master is not None:
                self._logged_refusals.clear()

    async def _send_heartbeat(self) -> bool:
        ticket = self.lease.ticket(self._clock.steady_ms())
        response = await self._attempt(requests.heartbeat(self.group, self._heartbeat()))
        if response is not None:
            self.lease.heartbeat_succeeded(ticket)
            self._receive(HeartbeatSucceeded())
            await self._host.record_confirmed()
        return response is not None

    async def _request_view(self) -> bool:
        """Request the view of the group from the leader; return whether that succeeded."""
        ticket = self.lease.ticket(self._clock.steady_ms())
        try:
            response = await self._call(requests.replica_info_request(self.group))
            view = requests.view_of(RequestCode.CONTROLLER_GET_REPLICA_INFO, response)
        except PeerError as error:
            self._failed(error)
            if isinstance(error, ControllerRefusal) and error.code in requests.UNKNOWN:
                self._receive(GroupUnknown())
            return False
        self._elections.seen(view.master_id, view.epoch, ticket.sent_ms)
        self._receive(GroupSeen(view))
        if self.member.confirms(view):
            self.lease.epoch_confirmed(view.epoch, ticket)
        self._end_old_proposals()
        return True

    def _heartbeat(self) -> BrokerHeartbeat:
        host, config = self._host, self._config
        return BrokerHeartbeat(
            address=host.address,
            broker_id=self.member.broker_id,
            epoch=host.last_epoch,
            max_offset=host.max_offset,
            confirm_offset=host.confirm_offset,
            limit_ms=config.heartbeat_limit_ms,
            election_priority=config.election_priority,
        )

    async def _send_heartbeats(self, address: str) -> None:
        """Send heartbeats to one controller while another one is the leader."""
        while not self._stopping.is_set():
            next_ms = self._clock.now_ms() + self._config.heartbeat_ms
            if self.member.sends_heartbeats and self._client.leader:
                request = requests.heartbeat(self.group, self._heartbeat())
                await self._client.send_heartbeat(address, request)
            await self._clock.wait(self._stopping, until_ms=next_ms)

    async def _find_leader(self) -> None:
        """Search for the leader periodically: the known one may be partitioned from its peers."""
        while not self._stopping.is_set():
            try:
                await self._client.find_leader(timeout_s=self._config.call_s)
            except PeerError as error:
                self._failed(error)
            next_ms = self._clock.now_ms() + self._config.leader_check_ms
            await self._clock.wait(self._stopping, until_ms=next_ms)

    # -- requests of the member -------------------------------------------------------------------

    async def _send_requests(self) -> None:
        while not self._stopping.is_set():
            self._request_due.clear()
            next_request = self.member.next_request
            if next_request is None:
                await self._request_due.wait()
                continue
            if left_ms := self._left_ms(next_request):
                until_ms = self._clock.now_ms() + left_ms
                await self._clock.wait(self._request_due, until_ms=until_ms)
                continue
            try:
                await REQUESTS[next_request](self)
            except PeerError as error:
                self._failed(error)
            if self.member.next_request in (next_request, NextRequest.NEXT_ID):  # failed, or taken
                await self._pause(self._config.heartbeat_ms)

    def _left_ms(self, next_request: NextRequest) -> int:
        """Return the time until a request may be sent; 0: now."""
        now_ms = self._clock.steady_ms()
        if next_request is NextRequest.ELECT:
            return self._elections.left_ms(now_ms)
        return max(self._register_ms - now_ms, 0) if next_request is NextRequest.REGISTER else 0

    async def _request_next_id(self) -> None:
        broker_id = requests.next_id_of(await self._call(requests.next_id_request(self.group)))
        check_code = f"{self._host.address};{self._clock.now_ms()}"
        await self._receive_and_store(IdOffered(broker_id, check_code))

    async def _apply_id(self) -> None:
        identity = self.member.identity
        assert identity is not None
        request = requests.apply_id(self.group, identity.broker_id, identity.check_code)
        response = await self._call(request)
        if response.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            await self._receive_and_store(IdTaken(identity.broker_id))
            return
        requests.check(RequestCode.CONTROLLER_APPLY_BROKER_ID, response)
        await self._receive_and_store(IdGranted(identity.broker_id))

    async def _register(self) -> None:
        now_ms, broker_id = self._clock.now_ms(), self.member.broker_id
        request = requests.register(self.group, broker_id, self._host.address, now_ms)
        response = await self._call(request)
        if response.code in requests.UNKNOWN:
            self._receive(GroupUnknown())
            return
        self._receive(Registered(requests.has_master(response)))
        self._register_ms = self._clock.steady_ms() + self._config.heartbeat_ms
        self._view_due.set()

    async def _elect(self) -> None:
        now_ms, broker_id = self._clock.now_ms(), self.member.broker_id
        response = await self._call(requests.elect(self.group, broker_id, now_ms))
        if response.code in requests.UNKNOWN:
            self._receive(GroupUnknown())
            return
        self._elections.elected(self._clock.steady_ms())
        try:
            view = requests.view_of(RequestCode.CONTROLLER_ELECT_MASTER, response)
        except ControllerRefusal as error:
            self._failed(error)
            self._receive(ElectionFailed())
            return
        self._receive(Elected(view))
        self._view_due.set()

    async def _alter(self) -> None:
        self.check_in_sync()  # since the proposal, the log may have grown and a member may lag
        if self.member.proposal is None:
            return
        proposal, commands = self.member.send_proposal()
        self._execute(commands)
        self._sent_proposals[proposal.number] = self._clock.steady_ms()
        target, now_ms = proposal.new_set, self._clock.now_ms()
        response = await self._call(
            requests.alter_sync_state_set(
                self.group, self.member.broker_id, self.member.epoch, target, now_ms
            )
        )
        try:
            altered = requests.altered_of(response)
        except ControllerRefusal:
            self._sent_proposals.pop(proposal.number, None)
            self._receive(ProposalEnded(proposal.number))
            self._view_due.set()  # the view of this member may be outdated
            raise
        self._sent_proposals.pop(proposal.number, None)
        self._receive(InSyncAltered(proposal.number, altered))
        self.check_in_sync()

    def _end_old_proposals(self) -> None:
        """End proposals without a response that the controller will no longer apply."""
        now_ms = self._clock.steady_ms()
        for number, sent_ms in list(self._sent_proposals.items()):
            if now_ms - sent_ms > PROPOSAL_MS_MAX:
                del self._sent_proposals[number]
                self._receive(ProposalEnded(number))

    async def _check_periodically(self) -> None:
        while not self._stopping.is_set():
            self.check_in_sync()
            next_ms = self._clock.now_ms() + self._config.in_sync_check_ms
            await self._clock.wait(self._stopping, until_ms=next_ms)

    # -- commands ---------------------------------------------------------------------------------

    def _receive(self, event: Event) -> None:
        """Apply an event and execute its commands, except those that write files."""
        state, self.member.refusal = self.member.state, self._host.election_refusal
        self._execute(self.member.receive(event))
        if self.member.state is not state:
            log.info("group %s: %s", self.group.broker_name, self.member.state.value)
            self._view_due.set()
        if self.member.failure not in ("", self._logged):
            log.warning("group %s: %s", self.group.broker_name, self.member.failure)
        self._logged = self.member.failure
        if self.member.next_request is not None:
            self._request_due.set()

    async def _receive_and_store(self, event: Event) -> None:
        """Apply an event about the id; return when the identity files are written."""
        for command in self.member.receive(event):
            if isinstance(command, StoreIdentity):
                await asyncio.to_thread(self._files.store, command.identity)
            elif isinstance(command, DropApplication):
                await asyncio.to_thread(self._files.drop_application)

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Require():
                    self._host.require(command.ids)
                case BecomeMaster() | BecomeReplica():
                    self._role = command
                    self._role_changed.set()
                case Withdraw():
                    self._role = None
                    self.lease.revoke()
                case Resign():
                    self._resigns = True

    async def _resign(self) -> None:
        """Send a heartbeat and close the channel: the controller counts this member as dead.

        At most once in two heartbeat limits.
        """
        self._resigns = False
        now_ms = self._clock.steady_ms()
        again_ms = 2 * self._config.heartbeat_limit_ms
        if self._resigned_ms is not None and now_ms - self._resigned_ms < again_ms:
            return
        self._resigned_ms = now_ms
        await self._attempt(requests.heartbeat(self.group, self._heartbeat()))
        await self._client.drop_leader()

    async def _change_roles(self) -> None:
        """Change the role of the broker to the newest one; never two changes at the same time."""
        while not self._stopping.is_set():
            await self._role_changed.wait()
            self._role_changed.clear()
            role = self._role
            if role is None or self._stopping.is_set():
                continue
            if isinstance(role, BecomeMaster):
                await self._host.become_master(role.epoch)
            else:
                await self._host.become_replica(role.master_id, role.address, role.epoch)

    # -- helpers ----------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Response:
        return await self._client.call(request, timeout_s=self._config.call_s)

    async def _attempt(self, request: Request) -> Response | None:
        """Send a request to the leader; return its response, None after a failure."""
        try:
            response = await self._call(request)
            requests.check(RequestCode(request.code), response)
        except PeerError as error:
            self._failed(error)
            return None
        return response

    def _failed(self, error: PeerError) -> None:
        self.failure = str(error)
        if self.failure not in self._logged_refusals:
            log.warning("group %s: %s", self.group.broker_name, error)
            if len(self._logged_refusals) >= REFUSALS_MAX:
                self._logged_refusals.clear()
            self._logged_refusals.add(self.failure)

    def _connection_lost(self) -> None:
        """Revoke the lease: the controller may already have elected another master."""
        self.lease.revoke()
        self._receive(ConnectionLost())
        self._view_due.set()

    async def _pause(self, pause_ms: int) -> None:
        until_ms = self._clock.now_ms() + pause_ms
        await self._clock.wait(self._stopping, until_ms=until_ms)


REQUESTS: Final[Mapping[NextRequest, Callable[[GroupService], Awaitable[None]]]] = {
    NextRequest.NEXT_ID: GroupService._request_next_id,
    NextRequest.APPLY_ID: GroupService._apply_id,
    NextRequest.REGISTER: GroupService._register,
    NextRequest.ELECT: GroupService._elect,
    NextRequest.ALTER_SYNC_STATE_SET: GroupService._alter,
}
"""Method that sends each request and applies its response; raises PeerError without a response."""
