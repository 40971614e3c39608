"""HA server: the replication port of a master, from which replicas copy its log.

    accept --allowed address, below the limit--> ReplicaConnection, one task each --> end is logged

Source: DefaultHAService
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Final

from duemq.configuration.ha_server_config import REPLICAS_FROM, HaServerConfig
from duemq.configuration.replication_config import SYNC_MASTER, ReplicationConfig
from duemq.net.allowed_networks import parse_sources
from duemq.net.notices import Notices
from duemq.replication.autoswitch_master import AutoSwitchMaster
from duemq.replication.in_sync_replicas import InSyncReplicas
from duemq.replication.master_protocol import DefaultHa, MasterProtocol
from duemq.replication.membership import Membership
from duemq.replication.replica_connection import ReplicaConnection
from duemq.replication.sync_state_set import SyncStateSetReplicas
from duemq_common.clock import Clock
from duemq_common.errors import PeerError, StoreError
from message_store.log.batch import PutBatch
from message_store.store import MessageStore

log = logging.getLogger(__name__)
REPLICAS_MAX: Final = 16
BACKLOG: Final = 16
FINISH_S_MAX: Final = 2.0  # limit of the wait for acknowledgements when the master stops


class HaServer:
    """Serves replicas inside the block of `running`.

    Args:
        bound: Socket that is bound to the port; `running` listens on it.
        role: Configuration of replication.
        config: Returns the configuration of the port.
        own_addresses: IP addresses of this machine.
        member: Membership of this master in controller mode; else None.
    Attributes:
        connections: Connections of replicas, in the order in which they were opened.
        in_sync: Replicas in sync, and the confirm offset.
        failure: Reason why the last connection ended; empty: none ended.
    """

    def __init__(
        self,
        bound: socket.socket,
        store: MessageStore,
        role: ReplicationConfig,
        config: Callable[[], HaServerConfig],
        clock: Clock,
        own_addresses: tuple[str, ...] = (),
        member: Membership | None = None,
    ) -> None:
        self._member = member
        self._socket, self._store, self._clock = bound, store, clock
        self._role, self._config = role, config()
        self._sources = parse_sources(REPLICAS_FROM, self._config.replicas_from, own_addresses)
        self._refused, self._lost = Notices(log), Notices(log)
        self._connected = Notices(log, logging.INFO)
        self._reported = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = self._follows_log = False
        self.connections: list[ReplicaConnection] = []
        self.failure = ""
        self.in_sync: InSyncReplicas | SyncStateSetReplicas = (
            InSyncReplicas(
                store.replicated, config, lambda: self.connections, lambda: store.max_offset
            )
            if member is None
            else self._sync_state_set(member, config)
        )
        is_group = member is not None or role.role == SYNC_MASTER
        store.replicated.is_copied = lambda: is_group or bool(self.connections)
        if role.role == SYNC_MASTER:
            store.require_replicas()
            self.in_sync.update()
        else:
            store.confirm_without_replicas()

    def _sync_state_set(
        self, member: Membership, config: Callable[[], HaServerConfig]
    ) -> SyncStateSetReplicas:
        return SyncStateSetReplicas(
            self._store.replicated,
            member.role.own_id,
            lambda: member.service.required_ids,
            lambda: self.connections,
            lambda: self._store.max_offset,
            lambda: member.epoch_start,
            self._clock.steady_ms,
            config=config,
            catch_up_ms_max=member.catch_up_ms_max,
            on_change=member.service.check_in_sync,
        )

    @property
    def port(self) -> int:
        """The port that replicas connect to."""
        port: int = self._socket.getsockname()[1]
        return port

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve replicas until the block ends."""
        self._socket.listen(BACKLOG)
        self._follow_log()
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(REPLICAS_MAX, thread_name_prefix="replication") as bulk:
            self._bulk = bulk
            loop.add_reader(self._socket, self._accept)
            updates = loop.create_task(self._update_periodically(), name="replicas in sync")
            try:
                yield
                await self._finish_transfers()
            finally:
                self._is_stopping = True
                loop.remove_reader(self._socket)
                for task in (*self._tasks, updates):
                    task.cancel()
                await asyncio.wait({*self._tasks, updates})

    async def _update_periodically(self) -> None:
        """Update the replicas in sync every `heartbeat_ms`: the configuration may have changed."""
        never = asyncio.Event()
        while True:
            self.in_sync.update()
            until_ms = self._clock.now_ms() + self._role.heartbeat_ms
            await self._clock.wait(never, until_ms=until_ms)

    async def _finish_transfers(self) -> None:
        """Wait, at most `FINISH_S_MAX`, until replicas in sync have acknowledged the whole log."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S_MAX):
                while self._has_lagging_replica():
                    self._reported.clear()
                    await self._reported.wait()

    def _has_lagging_replica(self) -> bool:
        """Return whether a replica in sync has not acknowledged the whole log."""
        end = self._store.max_offset
        ends = [each.acknowledged for each in self.connections if self.in_sync.is_in_sync(each)]
        return any(each is None or each < end for each in ends)

    def _on_report(self) -> None:
        self._reported.set()
        self.in_sync.update()

    def _follow_log(self) -> None:
        """Observe appends while replicas copy the log, or are configured to."""
        follows = self._store.replicated.is_copied()
        if follows and not self._follows_log:
            self._store.add_dispatcher(self._on_append)
        elif self._follows_log and not follows:
            self._store.remove_dispatcher(self._on_append)
        self._follows_log = follows

    def _on_append(self, batch: PutBatch) -> None:
        """Send the batch to all replicas (a dispatcher of the store)."""
        for connection in self.connections:
            connection.log_grew()
        self.in_sync.update()

    def _accept(self) -> None:
        """Accept one connection; others are accepted in the next turns of the event loop."""
        try:
            connection, address = self._socket.accept()
        except OSError as error:  # such as a lack of descriptors
            if not isinstance(error, BlockingIOError):
                self._refused("cannot accept the connection of a replica: %s", error)
            return
        where = f"{address[0]}:{address[1]}"
        if refusal := self._refusal(address[0]):
            self._refused("replica %s: refused: %s", where, refusal)
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(
            self._serve(self._new_connection(connection, where)), name=f"replica {where}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda ended: connection.close())  # a task may end before it starts

    def _refusal(self, address: str) -> str:
        if not self._sources.allows(address):
            return f"its address is not in {REPLICAS_FROM}"
        if len(self._tasks) >= REPLICAS_MAX:
            return f"the limit of {REPLICAS_MAX} connected replicas is reached"
        return ""

    def _new_connection(self, connection: socket.socket, where: str) -> ReplicaConnection:
        return ReplicaConnection(
            connection,
            where,
            self._store,
            self._new_protocol(),
            self._clock,
            transfer_bytes=self._config.transfer_bytes_max,
            heartbeat_ms=self._role.heartbeat_ms,
            idle_ms=self._role.idle_ms_max,
            on_report=self._on_report,
            bulk=self._bulk,
        )

    def _new_protocol(self) -> MasterProtocol:
        member, replicated = self._member, self._store.replicated
        if member is None:
            return DefaultHa()
        return AutoSwitchMaster(
            member.role.own_id,
            lambda: member.epochs.epochs,
            lambda: replicated.offset,
            file_bytes=self._store.config.commitlog_file_bytes,
        )

    async def _serve(self, connection: ReplicaConnection) -> None:
        self._connected("replica %s: connected", connection.address)
        self.connections.append(connection)
        self._follow_log()
        try:
            await connection.run()
        except (OSError, PeerError, StoreError) as error:
            self.failure = f"{connection.address}: {str(error) or type(error).__name__}"
            self._lost("replica %s: %s", connection.address, str(error) or type(error).__name__)
        except Exception:
            self.failure = f"{connection.address}: internal error of this broker, see its log"
            log.exception("replica %s: closed after an internal error", connection.address)
        finally:
            self.connections.remove(connection)
            self._follow_log()
            if not self._is_stopping:  # a stopping master keeps the sync state set for the election
                self._on_report()
