"""Components of one broker, and the context in which they are created."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from msgspec import Struct, field

from duemq.auth.access import AccessControl
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.broker.plugins import PluginSet
from duemq.configuration.config import BrokerConfig
from duemq.configuration.ha_server_config import HaServerConfig
from duemq.configuration.replication_config import ReplicationConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.namesrv.second_master import SecondMaster
from duemq.net.client import RemotingClient
from duemq.net.dispatcher import Dispatcher
from duemq.net.memory import MemoryBudget
from duemq.net.meters import RpcMeter
from duemq.pop.request_modes import RequestModes
from duemq.pop.service import PopService
from duemq.pull.long_polls import LongPolls
from duemq.pull.pull import PullProcessor
from duemq.pull.queue_locks import LockTable
from duemq.registry.clients import ClientTable
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.managers import Identity
from duemq.registry.topic_routes import TopicRoutes
from duemq.registry.topics import TopicManager
from duemq.replication.ha_server import HaServer
from duemq.replication.membership import Membership
from duemq.replication.replica import Replica
from duemq.send.put_path import PutPath
from duemq.transactions.meters import Meters
from duemq.transactions.transactions import Transactions
from duemq_common.clock import Clock
from duemq_common.data_version import DataVersion
from message_store.config import StoreConfig
from message_store.hooks import PutHook
from message_store.kernels.preparation import Preparation

if TYPE_CHECKING:
    from message_store.store import MessageStore


class BrokerComponents(Struct):
    """Components of one broker; they run while `tasks` are entered."""

    store: MessageStore
    topics: TopicManager
    groups: GroupManager
    offsets: OffsetManager
    clients: ClientTable
    long_polls: LongPolls
    memory: MemoryBudget
    stats: BrokerStats
    hooks: list[PutHook]
    put_path: PutPath
    modes: RequestModes
    locks: LockTable
    meters: Meters
    rpc: RpcMeter
    dispatcher: Dispatcher
    identity: Identity
    transactions: Transactions | None = None
    pull: PullProcessor | None = None
    pop: PopService | None = None
    replica: Replica | None = None
    ha_server: HaServer | None = None
    second_master: SecondMaster | None = None
    replication: Callable[[], dict[str, object]] = dict
    tasks: list[AbstractAsyncContextManager[object]] = field(default_factory=list)

    @property
    def master_address(self) -> str | None:
        """Address of this replica's master, empty if it is unknown; None on a master."""
        return None if self.replica is None else self.replica.tables.address

    async def append_snapshots(self) -> None:
        """Append snapshots of topics and groups to the log if replicas need them."""
        await self.topics.snapshot_if_needed()
        await self.groups.snapshot_if_needed()

    async def save(self) -> None:
        """Write changed tables except consumer offsets, in threads.

        Raises:
            OSError: A write failed.
        """
        for table in (self.topics, self.groups):
            await table.save()

    async def save_all(self) -> None:
        """Write all changed tables, in threads.

        Raises:
            OSError: A write failed.
        """
        await self.save()
        await self.offsets.save()

    def persist(self) -> None:
        """Write all changed tables.

        Raises:
            OSError: A write failed.
        """
        for table in (self.topics, self.groups, self.offsets):
            table.persist()


class BrokerContext(Struct, frozen=True, kw_only=True):
    """Context of the components: configuration, clock, plugins, sockets and role of the broker."""

    config: Callable[[], BrokerConfig]
    store_config: StoreConfig
    port: int
    clock: Clock
    plugins: PluginSet
    values: Callable[[], Mapping[str, str]]
    configuration: Callable[[], object]
    version: Callable[[], DataVersion]
    reconfigure: Callable[[Mapping[str, str]], Awaitable[None]]
    started_ms: int
    access: AccessControl | None = None
    kernels: Preparation = field(default_factory=Preparation)
    replication: Callable[[], ReplicationConfig] = ReplicationConfig
    ha_server: Callable[[], HaServerConfig] = HaServerConfig
    ha_socket: socket.socket | None = None
    ha_port: int = 0
    connect: Callable[[str], RemotingClient] = RemotingClient
    routes: TopicRoutes
    membership: Membership | None = None

    @property
    def records(self) -> RecordAccess:
        """Access check for records requested by offset."""
        return self.access.gate if self.access is not None else UnrestrictedAccess()

    @property
    def epoch(self) -> int:
        """Master epoch of this broker; 0 without a controller."""
        return self.membership.role.epoch if self.membership is not None else 0
