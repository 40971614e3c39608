"""POP of one broker: its processors, and the reviver that runs on a master."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from delayed_delivery.pending import PendingMessages
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.configuration.config import BrokerConfig
from duemq.configuration.replication_config import ReplicationConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net.dispatcher import AccessCheck, Handler
from duemq.net.meters import RpcMeter
from duemq.net.notices import Notices
from duemq.pop.ack_batch import AckBatch
from duemq.pop.acks import AckProcessor
from duemq.pop.assignment import AssignmentProcessor
from duemq.pop.figures import PopFigures
from duemq.pop.open_pops import OpenPops
from duemq.pop.orderly import Orderly
from duemq.pop.peeks import PeekProcessor
from duemq.pop.pop import PopProcessor
from duemq.pop.pop_offsets import PopOffsets
from duemq.pop.pop_queues import PopQueues
from duemq.pop.pop_recovery import recover_pops
from duemq.pop.pop_turns import PopTurns
from duemq.pop.request_modes import RequestModes
from duemq.pop.revival.ahead_pops import AheadPops
from duemq.pop.revival.reviver import Reviver
from duemq.pop.revive_log import ReviveLog
from duemq.pop.undecided_pops import UndecidedPops
from duemq.pull.long_polls import LongPolls
from duemq.registry.clients import ClientTable
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.managers import Identity
from duemq.registry.offset_table import PopState
from duemq.registry.shared_retries import SharedRetries
from duemq.registry.topic_routes import TopicRoutes
from duemq.registry.topics import TopicManager
from duemq.send.put_path import PutPath
from duemq_common.clock import Clock
from message_store.kernels.preparation import Preparation

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
NO_TIMERS = "pop message is forbidden because timerWheelEnable is false or no timer store is loaded"
REPLICA = "pop message is forbidden: this broker is a replica. Pop from the master"


class PopParts(Struct, frozen=True, kw_only=True):
    """Parts of a broker that POP uses."""

    store: MessageStore
    topics: TopicManager
    groups: GroupManager
    offsets: OffsetManager
    clients: ClientTable
    long_polls: LongPolls
    stats: BrokerStats
    put_path: PutPath
    modes: RequestModes
    identity: Identity
    clock: Clock
    config: Callable[[], BrokerConfig]
    kernels: Preparation
    records: RecordAccess
    replication: Callable[[], ReplicationConfig]
    routes: TopicRoutes


class PopService:
    """POP requests of one broker. Context manager: a master with timers revives messages inside it.

    Args:
        has_timers: Whether a plugin stores timers.
        delivered_ms: Returns a time by which every due timer has been delivered.
        pending: Returns the components that own pending messages.
    Attributes:
        refusal: Reason why this broker serves no pops, empty if it does.
        figures: Messages in flight, and counters.
        offsets: Offsets at which groups continue.
        open_pops: Search for pops that are not acknowledged.
        retries: Check of the permissions for retry topics; None: no accounts.
    """

    def __init__(
        self,
        parts: PopParts,
        *,
        has_timers: bool,
        delivered_ms: Callable[[int], int],
        pending: Callable[[], Sequence[PendingMessages]],
    ) -> None:
        store, topics, groups, identity = parts.store, parts.topics, parts.groups, parts.identity
        clock, offsets = parts.clock, parts.offsets
        self._store, self._offsets, self._identity = store, offsets, identity
        self.refusal = _refusal(parts.replication(), has_timers=has_timers)
        self.figures = PopFigures(clock.now_ms())
        self._undecided = UndecidedPops(store)
        self._revive_log = revive_log = ReviveLog(
            store, parts.put_path, self._undecided, identity, clock, self.figures
        )
        self._failed = Notices(log, logging.ERROR)
        ahead = AheadPops(store, self._undecided, identity, pending)
        self.reviver = self._reviver(parts, delivered_ms, ahead)
        self.retries = _shared_retries(parts)
        self._queues = queues = self._pop_queues(parts)
        self.offsets = pops = PopOffsets(store, offsets)
        self.orderly = Orderly(store, topics, groups, parts.long_polls, clock)
        self.open_pops = OpenPops(
            store,
            identity,
            self.orderly.table,
            self._undecided.first_needed,
            self.reviver.open_until_ms,
        )
        self._acks = self._ack_processor(parts)
        self._pops = PopProcessor(
            store,
            queues,
            pops,
            revive_log,
            self.orderly,
            parts.stats,
            identity,
            clock,
            parts.config,
            parts.clients.filters,
            lambda: parts.kernels.is_done,
        )
        self._processors = (
            AssignmentProcessor(
                topics, groups, parts.clients, parts.routes, identity, parts.modes, parts.config
            ),
            self._pops,
            self._acks,
            PeekProcessor(store, queues, pops, self.orderly.table, clock, parts.stats),
        )

    def _ack_processor(self, parts: PopParts) -> AckProcessor:
        return AckProcessor(
            parts.store,
            parts.topics,
            self.offsets,
            self._revive_log,
            self.orderly,
            parts.identity,
            parts.clock,
            lambda: self.refusal,
            self.reviver.open_until_ms,
        )

    def _reviver(
        self, parts: PopParts, delivered_ms: Callable[[int], int], ahead: AheadPops
    ) -> Reviver:
        return Reviver(
            parts.store,
            parts.topics,
            parts.groups,
            parts.offsets,
            parts.put_path,
            parts.identity,
            parts.clock,
            delivered_ms,
            self.figures,
            lambda: parts.kernels.is_done,
            ahead,
        )

    def _pop_queues(self, parts: PopParts) -> PopQueues:
        return PopQueues(
            parts.store,
            parts.topics,
            parts.groups,
            parts.long_polls,
            parts.clock,
            parts.config,
            lambda: self.refusal,
            lambda: parts.records.version,
            self.retries,
        )

    def handlers(self) -> dict[int, Handler]:
        return {code: each for part in self._processors for code, each in part.handlers().items()}

    def resized(self, topic: str) -> None:
        """Let long polls read all queues of a topic that is new or has more queues."""
        self._queues.resized(topic)

    def turns(
        self,
        meter: RpcMeter,
        *,
        access: AccessCheck | None,
        is_ready: Callable[[], bool],
        confirms: bool,
    ) -> PopTurns:
        """Return the handler of the requests that arrive in one turn of the event loop."""
        return PopTurns(
            self._pops,
            self._acks,
            self._revive_log,
            self._failed,
            meter,
            access=access,
            is_ready=is_ready,
            confirms=confirms,
        )

    def ack_batch(self, *, confirms: bool) -> AckBatch:
        """Return a batch of acknowledgements."""
        return AckBatch(self._acks, self._revive_log, confirms)

    def recover(self) -> None:
        """Derive from the log the offsets that the table lacks; call before the first append.

        Raises:
            CorruptStore: The file of orderly pops and its backup are invalid.
        """
        self.orderly.recover()
        recover_pops(self._store, self._offsets, self._undecided, self._identity)
        self._offsets.pops = lambda: PopState(
            self.offsets.before, self._undecided.table(), self._undecided.latest_ms
        )

    async def forget_topic(self, topic: str) -> None:
        """Forget the pops of a deleted topic; its queues begin at 0 if it is created again."""
        self.offsets.forget_topic(topic)
        await self.orderly.forget_topic(topic)

    def first_needed(self) -> int | None:
        """Return the first log offset that undecided checkpoints need; a pin."""
        self._undecided.decided(self.reviver.settled_ms())
        return self._undecided.first_needed()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Revive while the block is open, if this broker serves pops."""
        if self.refusal:
            yield
            return
        async with self.reviver.running(), self.orderly.running():
            yield


def _shared_retries(parts: PopParts) -> SharedRetries | None:
    if isinstance(parts.records, UnrestrictedAccess):
        return None
    return SharedRetries(parts.records, parts.topics, parts.groups)


def _refusal(replication: ReplicationConfig, *, has_timers: bool) -> str:
    if replication.is_replica:
        return REPLICA
    return "" if has_timers else NO_TIMERS
