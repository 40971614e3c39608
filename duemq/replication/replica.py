"""Replica: copies log and tables of a master while the broker's role is SLAVE.

    name server --(103: master's addresses)--> HaClient           log
    or controller                          `-> SlaveSynchronize   topics, groups, consumer offsets

In controller mode, the controller gives the master's address, and the master its replication port
(request 906).

The store refuses messages of clients, and no plugin delivers: a replica delivers nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from duemq.configuration.replication_config import ReplicationConfig
from duemq.net.client import RemotingClient
from duemq.pop.request_modes import RequestModes
from duemq.pull.long_polls import LongPolls
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.topics import TopicManager
from duemq.replication.autoswitch_client import autoswitch_sessions
from duemq.replication.clock_comparison import CHECK_MS, ClockComparison
from duemq.replication.default_ha import default_sessions
from duemq.replication.ha_address import HaAddressFinder
from duemq.replication.ha_client import HaClient, OpenSession, Session
from duemq.replication.ha_server import HaServer
from duemq.replication.membership import Membership
from duemq.replication.replica_connection import ReplicaConnection
from duemq.replication.slave_synchronize import SlaveSynchronize
from duemq.replication.topic_deletions import TopicDeletions
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode
from duemq_common.errors import DueMQError, PeerError
from message_store.store import MessageStore

log = logging.getLogger(__name__)
ReplicationView = dict[str, object]
ApplyMasterConfig = Callable[[Mapping[str, str], int], None]
COUNTED_BYTES: Final = 256 << 10
READ_ONLY = "this broker is a replica (brokerRole=SLAVE): send to the master"


class Replica:
    """The tasks of a replica; `running` is a context manager around them.

    Attributes:
        ha: Copies the log.
        tables: Copies the tables.
    """

    def __init__(
        self,
        store: MessageStore,
        long_polls: LongPolls,
        ha: HaClient,
        tables: SlaveSynchronize,
        clock: Clock,
        finder: HaAddressFinder | None = None,
    ) -> None:
        self._finder, self._clock = finder, clock
        self._clocks, self._stopping = ClockComparison(), asyncio.Event()
        self._long_polls = long_polls
        store.read_only = READ_ONLY  # from now on, as the broker appends before `running`
        self._store = store
        self.ha, self.tables = ha, tables

    def on_registered(self, response: Mapping[str, str]) -> None:
        """Copy from the master that a name server's response to a registration (103) names."""
        self.tables.follow(response.get("masterAddr", ""))
        self.ha.follow(response.get("haServerAddr", ""))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Copy from the master until the block ends."""
        self._store.raw.observers.append(self._long_polls.on_replicated)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.ha.run(), name="replication")
            tasks.create_task(self.tables.run(), name="slave synchronize")
            tasks.create_task(self._compare_clocks(), name="clocks")
            if self._finder is not None:
                tasks.create_task(self._finder.run(self.ha.follow), name="master's HA address")
            try:
                yield
            finally:
                self._stopping.set()
                self.ha.stop()
                self.tables.stop()
                if self._finder is not None:
                    self._finder.stop()

    async def _compare_clocks(self) -> None:
        """Compare this clock with the master's periodically; log each change of the result."""
        while not self._stopping.is_set():
            store, before, now_ms = self._store, self._clocks.failure, self._clock.now_ms()
            stored_ms = store.store_ms(store.last_record) if store.last_record >= 0 else -1
            self._clocks.check(
                store.max_offset, self._master_log_end, stored_ms, now_ms, self.ha.address
            )
            if self._clocks.failure and not before:
                log.warning("%s", self._clocks.failure)
            await self._clock.wait(self._stopping, until_ms=now_ms + CHECK_MS)

    @property
    def _finder_failure(self) -> str:
        return self._finder.failure if self._finder is not None else ""

    @property
    def _master_log_end(self) -> int | None:
        """End of the master's log; None: unknown, as while the master is silent.

        Transfers of DefaultHA do not contain it: during a catch-up, only the master's response to
        the request for its bounds does. AutoSwitch frames contain it from the handshake on.
        """
        reported, transferred = self.tables.log_end, self.ha.master_offset
        is_reported = reported is not None and self._finder is None
        if not self.ha.is_receiving or not (self.ha.is_end_known or is_reported):
            return None
        return max(reported or 0, transferred or 0)

    def view(self) -> ReplicationView:
        """Return the state for `duemq replicas` and the admin API; unknown values are None."""
        end, master = self._store.max_offset, self._master_log_end
        lag = None if master is None else max(master - end, 0)
        of_equal_logs = 0 if lag == 0 else None  # a replica knows its lag in bytes only
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
            "failure": self.ha.failure
            or self._finder_failure
            or self.tables.failure
            or self._clocks.failure,
        }


def replica_of(
    store: MessageStore,
    tables: tuple[TopicManager, GroupManager, OffsetManager, RequestModes],
    long_polls: LongPolls,
    config: ReplicationConfig,
    clock: Clock,
    connect: Callable[[str], RemotingClient],
    member: Membership | None = None,
    apply_master_config: ApplyMasterConfig = lambda properties, log_end: None,
) -> Replica:
    """Return the replica of a broker, not running.

    Args:
        tables: Tables that are replaced by the master's.
        long_polls: Pulls on hold, which are resumed when the log grows.
        connect: Returns a client of an address.
        member: The membership in controller mode; else None.
        apply_master_config: Called before each connection with the master's properties by key, and
            the end of the master's log after they were read.
    """
    topics, groups, offsets, modes = tables
    copied = {
        RequestCode.GET_ALL_TOPIC_CONFIG: topics.replace_by,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.replace_by,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: modes.replace_by,
    }
    store.raw.restarted.append(partial(_remove_offsets, offsets))
    store.raw.observers.append(TopicDeletions(store, clock).on_replicated)
    progress = {RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.replace_by}
    synchronize = SlaveSynchronize(copied, progress, store, clock, connect)
    store.retention.add_pin(lambda: synchronize.first_needed, owner="the master's log")
    if member is None:
        store.confirm_without_replicas()
        sessions = default_sessions(
            store, synchronize.first_offset, from_last_file=config.sync_from_last_file
        )
        sessions = with_master_config(sessions, synchronize, apply_master_config)
        ha = HaClient(store, config, clock, sessions)
        return Replica(store, long_polls, ha, synchronize, clock)
    store.require_replicas()
    sessions = autoswitch_sessions(
        store,
        member.epochs,
        member.handshake(from_last_file=config.sync_from_last_file),
        on_confirmed=store.replicated.advance,
        master_epoch=lambda: member.role.epoch,
    )
    sessions = with_master_config(sessions, synchronize, apply_master_config)
    ha = HaClient(
        store, config, clock, sessions, member.truncate, retry_ms=HaAddressFinder.RETRY_MS
    )
    if not member.role.master_address:
        return Replica(store, long_polls, ha, synchronize, clock)
    synchronize.follow(member.role.master_address)
    finder = HaAddressFinder(connect(member.role.master_address), clock)
    return Replica(store, long_polls, ha, synchronize, clock, finder)


def _remove_offsets(offsets: OffsetManager, topic: str, queue_id: int | None) -> None:
    """Remove the offsets of queues that begin at 0 again."""
    if queue_id is None:
        offsets.remove_topic(topic)
    else:
        offsets.remove_queue(topic, queue_id)


def with_master_config(
    sessions: OpenSession, master: SlaveSynchronize, apply_master_config: ApplyMasterConfig
) -> OpenSession:
    """Return `sessions`, preceded by a request for the master's configuration.

    A replica that knows only the replication port of its master cannot request the configuration.
    The level tables of a DueMQ master are in the log as well.
    """

    async def open_session() -> Session:
        if master.address:
            properties, log_end = await master.configuration()
            try:
                apply_master_config(properties, log_end)
            except DueMQError as error:
                reason = f"the configuration of the master {master.address} cannot be used: {error}"
                raise PeerError(reason) from error
        return await sessions()

    return open_session


def master_view(
    store: MessageStore,
    server: HaServer | None,
    clock: Clock,
    failure: Callable[[], str] = lambda: "",
) -> Callable[[], ReplicationView]:
    """Return the function that returns the state of a master, as `Replica.view` does.

    Args:
        failure: Returns a failure that is more important than those of connections; or empty.
    """

    def view() -> ReplicationView:
        refusal = store.refusal
        state: ReplicationView = {
            "role": "MASTER",
            "state": "refuses messages" if refusal else "serves",
            "refusal": refusal,
            "logEnd": store.max_offset,
        }
        if store.replicated.required:
            state["confirmedOffset"] = store.confirm_offset
        if server is not None:
            state["failure"] = failure() or server.failure
            state["replicas"] = [
                _connection_view(each, store, server.in_sync.is_in_sync(each), clock.now_ms())
                for each in server.connections
            ]
        return state

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
    """Return the age in ms of the first message that a replica lacks; None: unknown."""
    if end is None:
        return None
    if end >= store.max_offset:
        return 0
    stored_ms = store.store_ms(end)  # -1: inside a record, where a log of Apache's replica may end
    return None if stored_ms < 0 else max(now_ms - stored_ms, 0)


def _lag_messages(store: MessageStore, end: int | None) -> int | None:
    """Return the number of messages that a replica lacks; None: unknown.

    Counts the messages in the first `COUNTED_BYTES` of the lag, and estimates the rest from them.
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
