"""gRPC server for RocketMQ 5 clients, on its own port in the broker's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from duemq.auth.access import AccessControl
from duemq.net.allowed_networks import Sources
from duemq.net.dispatcher import Dispatcher
from duemq.net.http2.grpc_call import CallTurns, GrpcLimits
from duemq.net.http2.grpc_server import GrpcServer
from duemq.net.memory import MemoryBudget
from duemq.net.meters import RpcMeter
from duemq.net.tls import ServerTls
from duemq.pop.ack_batch import AckBatch
from duemq.registry.groups import GroupManager
from duemq.registry.managers import Identity
from duemq.registry.topics import TopicManager
from duemq.send.decoded_sends import DecodedSends
from duemq.v5.ack_turns import V5AckTurns
from duemq.v5.acknowledgements import AckCalls
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.client_calls import ClientCalls
from duemq.v5.clients import V5Clients
from duemq.v5.cluster import V5Cluster
from duemq.v5.config import V5Config
from duemq.v5.receives import ReceiveCalls
from duemq.v5.routes import RouteCalls
from duemq.v5.send_turns import SendTurns
from duemq.v5.sends import SendCalls
from duemq.v5.service import MessagingService
from duemq.v5.transactions import TransactionCalls
from duemq_common.clock import Clock

IDLE_CHECK_INTERVAL_MS: Final = 10_000


class V5Server:
    """gRPC server for v5 clients.

    Args:
        sends: Append path of messages.
        access: Access control; None: the broker has no accounts.
        config: Returns the current configuration; called for each request.
        ack_batch: Appends acknowledgements; None: POP is disabled.
        settled_ms: Returns the revive time up to which every checkpoint is settled.
        meter: Meter of requests that are served together.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        sends: DecodedSends,
        access: AccessControl | None,
        topics: TopicManager,
        groups: GroupManager,
        identity: Identity,
        clock: Clock,
        config: Callable[[], V5Config],
        ack_batch: AckBatch | None,
        settled_ms: Callable[[], int],
        meter: RpcMeter,
        cluster: V5Cluster,
    ) -> None:
        gate = access.gate if access is not None else None
        requests = BrokerRequests(dispatcher, gate)
        self._clock = clock
        self._transactions = TransactionCalls(requests)
        self._acks = AckCalls(requests, identity.broker_name, clock, settled_ms)
        self.clients = V5Clients(clock, requests.verify, self._transactions.forward_check)
        turns: dict[str, CallTurns] = {}
        if ack_batch is not None:
            turns["AckMessage"] = V5AckTurns(self._acks, ack_batch, self.clients, meter)
        send_calls = SendCalls(requests, sends, topics.find, config, clock, cluster)
        turns["SendMessage"] = SendTurns(send_calls, sends, self.clients)
        self._service = MessagingService(
            requests,
            self.clients,
            RouteCalls(requests, topics.find, groups.find_or_create, cluster),
            send_calls,
            ReceiveCalls(
                requests,
                self._acks,
                topics.find,
                groups.find_or_create,
                identity.broker_name,
                clock,
                config,
            ),
            self._acks,
            self._transactions,
            ClientCalls(requests, self.clients, groups.find_or_create, config),
            turns,
        )
        self._stopped = asyncio.Event()

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
        """Serve on a bound socket while the block is active.

        Raises:
            UsageError: The socket cannot listen.
        """
        methods = self._service.methods()
        server = GrpcServer(
            methods, limits, clock=self._clock, memory=memory, tls=tls, proxies=proxies
        )
        async with self._acks.renewals.running(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._remove_idle_clients(), name="v5 clients")
            try:
                async with server:
                    server.start(bound)
                    yield server
            finally:
                self._stopped.set()
                self.clients.close()

    async def _remove_idle_clients(self) -> None:
        while not self._stopped.is_set():
            await self.clients.time.pause(self._stopped, IDLE_CHECK_INTERVAL_MS)
            self.clients.remove_idle()
