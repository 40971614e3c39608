"""The front for RocketMQ 5 clients: gRPC on its own port, in the broker's process.

MessagingService --> requests --> the broker's processors, its put path, its accounts
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from delivery.plugin import Request
from duemq.auth.access import AccessControl
from duemq.net.allowed_networks import Sources
from duemq.net.dispatcher import Dispatcher
from duemq.net.http2.grpc_call import GrpcLimits
from duemq.net.http2.grpc_server import GrpcServer
from duemq.net.memory_budget import MemoryBudget
from duemq.net.tls import ServerTls
from duemq.ports import Identity
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.send.decoded_sends import DecodedSends
from duemq.v5.acknowledgements import AckCalls
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.client_calls import ClientCalls
from duemq.v5.clients import V5Client, V5Clients
from duemq.v5.front_config import FrontConfig
from duemq.v5.receives import ReceiveCalls
from duemq.v5.routes import RouteCalls
from duemq.v5.sends import SendCalls
from duemq.v5.service import MessagingService
from duemq.v5.transactions import TransactionCalls
from message_store.clock import Clock

EXPIRE_MS: Final = 10_000


class Topics(Protocol):
    """The topic manager."""

    def find(self, name: str) -> TopicConfig | None: ...


class Groups(Protocol):
    """The group manager."""

    def find(self, name: str) -> GroupConfig | None:
        """Return the group, created if it is new and may be; None if it may not."""
        ...


class V5Front:
    """Serves v5 clients; `running` is open while it does.

    Args:
        sends: Appends messages.
        access: Checks requests; None: there are no accounts.
        config: Read at each call, so it may change.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        sends: DecodedSends,
        access: AccessControl | None,
        topics: Topics,
        groups: Groups,
        identity: Identity,
        clock: Clock,
        config: Callable[[], FrontConfig],
    ) -> None:
        gate = access.gate if access is not None else None
        requests = BrokerRequests(dispatcher, sends, gate)
        self._clock = clock
        self._transactions = TransactionCalls(requests)
        self._acks = AckCalls(requests, identity.broker_name, clock)
        self.clients = V5Clients(clock, requests.verify, self._on_request)
        self._service = MessagingService(
            self.clients,
            RouteCalls(requests, topics.find, groups.find, identity, config),
            SendCalls(requests, topics.find, config, clock),
            ReceiveCalls(requests, self._acks, groups.find, identity.broker_name, clock),
            self._acks,
            self._transactions,
            ClientCalls(requests, self.clients, groups.find, config),
        )
        self._ended = asyncio.Event()

    def _on_request(self, client: V5Client, request: Request) -> None:
        self._transactions.pass_on(client, request)

    @asynccontextmanager
    async def running(
        self,
        bound: socket.socket,
        limits: GrpcLimits,
        *,
        memory: MemoryBudget,
        tls: ServerTls | None,
        proxies: Sources,
    ) -> AsyncIterator[GrpcServer]:
        """Serve on a bound socket while the block is open.

        Raises:
            UsageError: The port cannot be had.
        """
        methods = self._service.methods()
        server = GrpcServer(
            methods, limits, clock=self._clock, memory=memory, tls=tls, proxies=proxies
        )
        async with self._acks.renewals.running(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._expire(), name="v5 clients")
            try:
                async with server:
                    server.start(bound)
                    yield server
            finally:
                self._ended.set()
                self.clients.close()

    async def _expire(self) -> None:
        while not self._ended.is_set():
            await self._clock.wait(self._ended, until_ms=self._clock.now_ms() + EXPIRE_MS)
            self.clients.expire()
