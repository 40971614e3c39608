"""Client of Apache's controllers: finds their leader and sends it requests over one connection.

    addresses --1005 to all--> leader --requests, heartbeats--> responses
                                  |
                                  +-- connection lost: `lost` is called in the same loop turn

The controllers elect a leader by DLedger or jRaft. A controller that is not the leader responds
with 2007; the client then searches for the leader before its next request.

RemotingClient closes a connection on which `SILENT_CALLS_MAX` consecutive calls time out. Each of
them waits for 3 s or the heartbeat limit, so the leader counts this member as dead anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from duemq.replication.controller.requests import (
    ControllerFault,
    ControllerRefusal,
    Leader,
    leader_of,
    leader_request,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import PeerError
from duemq_common.request import Peer, Request, Response

if TYPE_CHECKING:
    from duemq.net.client import RemotingClient

log = logging.getLogger(__name__)


class ControllerClient:
    """Sends requests to the leader of the controllers.

    Args:
        addresses: `host:port` of each configured controller.
        connect: Returns a client of an address.
        lost: Called when the connection to the leader is lost, and when the leader changes.

    Attributes:
        leader: `host:port` of the leader; empty: unknown.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Callable[[str], RemotingClient],
        lost: Callable[[], None],
    ) -> None:
        self._addresses, self._connect, self._lost = tuple(addresses), connect, lost
        self._clients: dict[str, RemotingClient] = {}
        self._peer: Peer | None = None
        self._search = asyncio.Lock()
        self.leader = ""

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """Send a request to the leader; return its response, even one with an error code.

        Raises:
            ControllerFault: No leader is found, or the leader does not respond within `timeout_s`.
            ControllerRefusal: The controller is no longer the leader; the request had no effect.
        """
        address = self.leader or await self.find_leader(timeout_s=timeout_s)
        name = RequestCode(request.code).name
        try:
            response = await self._call(address, request, timeout_s)
        except TimeoutError:
            raise ControllerFault(
                f"controller {address} does not respond to {name} within {timeout_s:g} s"
            ) from None
        except OSError as error:
            self._forget(address)
            raise ControllerFault(f"controller {address}: {error}") from error
        if response.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._forget(address)
            raise ControllerRefusal(request.code, response.code, response.remark)
        return response

    async def find_leader(self, *, timeout_s: float) -> str:
        """Request the leader's address from every controller; return it.

        Raises:
            ControllerFault: None of the reachable controllers is the leader.
        """
        async with self._search:
            leader = await self._leaders(self._addresses, timeout_s)
            votes = Counter(each.address for each in leader.values() if each.address)
            leading = [address for address, each in leader.items() if each.is_leader]
            if not leading:
                named = [address for address, _ in votes.most_common(2)]
                more = await self._leaders(named, timeout_s)
                leading = [address for address, each in more.items() if each.is_leader]
                leader |= more
            if not leading:
                addresses = ", ".join(self._addresses)
                raise ControllerFault(
                    f"no leader among the controllers {addresses}: start them, or correct "
                    f"controllerAddr"
                )
            # After a network partition, two controllers may claim to lead. Select the controller
            # that most of the others name.
            leading.sort(key=lambda each: (votes[leader[each].address], each == self.leader))
            if leading[-1] != self.leader:
                self._forget(self.leader)
                self.leader = leading[-1]
                log.info("controller %s leads", self.leader)
            for address in self._clients.keys() - {*self._addresses, self.leader}:
                self._clients.pop(address).abort()
            return self.leader

    async def send_heartbeat(self, address: str, request: Request) -> None:
        """Send a heartbeat to a controller unless it is the leader; ignore failures.

        A controller that becomes the leader then already knows that this member is alive.
        """
        if address == self.leader:
            return
        try:
            await self._client(address).send_oneway(request)
        except OSError as error:
            log.debug("controller %s: %s", address, error)

    async def drop_leader(self) -> None:
        """Close the connection to the leader, which then counts this member as dead."""
        address = self.leader
        if address:
            self._forget(address)
            client = self._clients.pop(address, None)
            if client is not None:
                await client.close()

    async def close(self) -> None:
        """Close all connections."""
        clients, self._clients = list(self._clients.values()), {}
        self._forget(self.leader)
        await asyncio.gather(*(client.close() for client in clients))

    def _client(self, address: str) -> RemotingClient:
        if address not in self._clients:
            self._clients[address] = self._connect(address)
        return self._clients[address]

    async def _call(self, address: str, request: Request, timeout_s: float) -> Response:
        client = self._client(address)
        async with asyncio.timeout(timeout_s):
            peer = await client.connect()
        if address == self.leader and peer is not self._peer:
            if self._peer is not None:  # closed, but `_closed` was not called yet
                self._lost()
            self._peer = peer
            peer.on_close(self._closed)
        return await client.call(request, timeout_s=timeout_s)

    def _closed(self, peer: Peer) -> None:
        if peer is self._peer:
            self._peer = None
            self._lost()

    def _forget(self, address: str) -> None:
        """Forget the leader if it has this address; the next request searches for it again."""
        if address and address == self.leader:
            self.leader, self._peer = "", None
            self._lost()

    async def _leaders(self, addresses: Sequence[str], timeout_s: float) -> dict[str, Leader]:
        """Return the response to 1005 of each controller that responds."""
        tasks: Mapping[str, asyncio.Task[Leader | None]]
        async with asyncio.TaskGroup() as group:
            tasks = {
                address: group.create_task(self._leader(address, timeout_s), name="leader")
                for address in addresses
            }
        responses = {address: task.result() for address, task in tasks.items()}
        return {address: each for address, each in responses.items() if each is not None}

    async def _leader(self, address: str, timeout_s: float) -> Leader | None:
        try:
            return leader_of(await self._call(address, leader_request(), timeout_s))
        except (OSError, PeerError) as error:
            log.debug("controller %s: %s", address, error or type(error).__name__)
            return None
