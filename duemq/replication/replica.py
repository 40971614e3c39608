"""Replica: what a broker does while its role is SLAVE.

    name server --(103: master's addresses)--> HaClient           log
    or controller                          `-> SlaveSynchronize   topics, groups, consumer offsets

In controller mode the controller names the master, and the master its replication port (906).

The store refuses messages of clients, and no plugin runs: nothing is delivered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq.pop.request_modes import RequestModes
from duemq.pull.held_pulls import HeldPulls
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.topics import TopicManager
from duemq.replication.autoswitch_client import autoswitch_sessions
from duemq.replication.config import ReplicationConfig
from duemq.replication.default_ha import default_sessions
from duemq.replication.ha_address import HaAddressFinder
from duemq.replication.ha_client import HaClient, Open, Session
from duemq.replication.ha_server import HaServer
from duemq.replication.membership import Membership
from duemq.replication.replica_connection import ReplicaConnection
from duemq.replication.slave_synchronize import SlaveSynchronize
from message_store.clock import Clock
from message_store.errors import DueMQError, PeerError
from message_store.store import MessageStore

ReplicationView = dict[str, object]
FollowMaster = Callable[[Mapping[str, str], int], None]
COUNTED_BYTES: Final = 256 << 10
READ_ONLY = "this broker is a replica (brokerRole=SLAVE): send to the master"


class Replica:
    """The tasks of a replica. `running` is a context manager around them."""

    def __init__(
        self,
        store: MessageStore,
        held: HeldPulls,
        ha: HaClient,
        tables: SlaveSynchronize,
        finder: HaAddressFinder | None = None,
    ) -> None:
        self._finder = finder
        self._held = held
        store.read_only = READ_ONLY  # also for what the broker does before `running`
        self._store = store
        self.ha, self.tables = ha, tables

    def on_registered(self, answer: Mapping[str, str]) -> None:
        """Follow the master that a name server answers to a registration (103)."""
        self.tables.follow(answer.get("masterAddr", ""))
        self.ha.follow(answer.get("haServerAddr", ""))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Copy from the master until the block ends."""
        self._store.raw.observers.append(self._held.on_replicated)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.ha.run(), name="replication")
            tasks.create_task(self.tables.run(), name="slave synchronize")
            if self._finder is not None:
                tasks.create_task(self._finder.run(self.ha.follow), name="master's HA address")
            try:
                yield
            finally:
                self.ha.stop()
                self.tables.stop()
                if self._finder is not None:
                    self._finder.stop()

    @property
    def _finder_failure(self) -> str:
        return self._finder.failure if self._finder is not None else ""

    def view(self) -> ReplicationView:
        """Return the state for `duemq replicas` and tools; what is not known is None."""
        end, master = self._store.max_offset, self.ha.master_offset
        lag = None if master is None else max(master - end, 0)
        of_equal_logs = 0 if lag == 0 else None  # a replica sees only bytes of what it lacks
        return {
            "role": "SLAVE",
            "state": self.ha.state.value,
            "haMasterAddress": self.ha.address or None,
            "masterAddress": self.tables.address or None,
            "logEnd": end,
            "masterLogEnd": master,
            "lagBytes": lag,
            "lagMessages": of_equal_logs,
            "lagMs": of_equal_logs,
            "tablesCopiedMs": self.tables.synchronized_ms,
            "failure": self.ha.failure or self._finder_failure or self.tables.failure,
        }


def replica_of(
    store: MessageStore,
    tables: tuple[TopicManager, GroupManager, OffsetManager, RequestModes],
    held: HeldPulls,
    config: ReplicationConfig,
    clock: Clock,
    connect: Callable[[str], RemotingClient],
    member: Membership | None = None,
    follow: FollowMaster = lambda properties, log_end: None,
) -> Replica:
    """Return the replica that a broker of these parts is, not running.

    Args:
        follow: Takes the configuration of the master before each connection to it, and the end
            that its log had after that.
    """
    topics, groups, offsets, modes = tables
    copied = {
        RequestCode.GET_ALL_TOPIC_CONFIG: topics.replace_by,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.replace_by,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: modes.replace_by,
    }
    progress = {RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.replace_by}
    synchronize = SlaveSynchronize(copied, progress, store, clock, connect)
    store.retention.add_pin(lambda: synchronize.first_needed, owner="the master's log")
    if member is None:
        sessions = default_sessions(
            store, synchronize.first_offset, from_last_file=config.sync_from_last_file
        )
        sessions = following(sessions, synchronize, follow)
        return Replica(store, held, HaClient(store, config, clock, sessions), synchronize)
    store.require_replicas()
    sessions = autoswitch_sessions(
        store,
        member.epochs,
        member.handshake(from_last_file=config.sync_from_last_file),
        on_confirmed=store.replicated.advance,
        master_epoch=lambda: member.role.epoch,
    )
    sessions = following(sessions, synchronize, follow)
    ha = HaClient(
        store, config, clock, sessions, member.truncate, retry_ms=HaAddressFinder.RETRY_MS
    )
    if not member.role.master_address:
        return Replica(store, held, ha, synchronize)
    synchronize.follow(member.role.master_address)
    finder = HaAddressFinder(connect(member.role.master_address), clock)
    return Replica(store, held, ha, synchronize, finder)


def following(sessions: Open, master: SlaveSynchronize, follow: FollowMaster) -> Open:
    """Return `sessions` after the master's configuration was taken.

    A replica that knows the replication port only cannot ask: the log has what a DueMQ master has
    promised.
    """

    async def begin() -> Session:
        if master.address:
            properties, log_end = await master.configuration()
            try:
                follow(properties, log_end)
            except DueMQError as error:
                why = f"the configuration of the master {master.address} cannot be used: {error}"
                raise PeerError(why) from error
        return await sessions()

    return begin


def master_view(
    store: MessageStore, server: HaServer | None, clock: Clock
) -> Callable[[], ReplicationView]:
    """Return what answers the same of a master."""

    def view() -> ReplicationView:
        found: ReplicationView = {"role": "MASTER", "state": "serves", "logEnd": store.max_offset}
        if store.replicated.required:
            found["confirmedOffset"] = store.confirm_offset
        if server is not None:
            found["failure"] = server.failure
            found["replicas"] = [
                _connection_view(each, store, server.in_sync.is_in_sync(each), clock.now_ms())
                for each in server.connections
            ]
        return found

    return view


def _connection_view(
    connection: ReplicaConnection, store: MessageStore, is_in_sync: bool, now_ms: int
) -> ReplicationView:
    end = connection.acknowledged
    return {
        "id": connection.protocol.replica_id,
        "address": connection.address,
        "acknowledged": end,
        "lagBytes": None if end is None else max(store.max_offset - end, 0),
        "lagMessages": _lag_messages(store, end),
        "lagMs": _lag_ms(store, end, now_ms),
        "inSync": is_in_sync,
        "reportedMs": connection.reported_ms,
    }


def _lag_ms(store: MessageStore, end: int | None, now_ms: int) -> int | None:
    """Return the age of the first message that a replica has not; None: it is not known."""
    if end is None:
        return None
    if end >= store.max_offset:
        return 0
    stored_ms = store.store_ms(end)  # -1 inside a record, where replicas of Apache's may be
    return None if stored_ms < 0 else max(now_ms - stored_ms, 0)


def _lag_messages(store: MessageStore, end: int | None) -> int | None:
    """Return the messages that a replica has not; None: it is not known.

    Those of the first part of its lag are counted; the rest is estimated by their size.
    """
    if end is None or end >= store.max_offset:
        return None if end is None else 0
    if store.store_ms(end) < 0:
        return None
    log_end = store.max_offset
    counted_end, count = min(end + COUNTED_BYTES, log_end), 0
    for rows in store.scan(end, counted_end):
        count += int(rows.size)
    return count * (log_end - end) // (counted_end - end)
