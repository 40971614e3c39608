"""POP of one broker: its processors, and the reviver that runs on a master."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from duemq.configuration.config import BrokerConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net.dispatcher import Handler
from duemq.pop.acks import AckProcessor
from duemq.pop.pop import PopProcessor
from duemq.pop.pop_offsets import PopOffsets
from duemq.pop.revive_log import ReviveLog
from duemq.pop.reviver import Reviver
from duemq.ports import Groups, Identity, Offsets, Topics
from duemq.pull.held_pulls import HeldPulls
from duemq.send.put_path import PutPath
from message_store.clock import Clock

if TYPE_CHECKING:
    from message_store.store import MessageStore

NO_TIMERS = "pop message is forbidden because timerWheelEnable is false or no timer store is loaded"
REPLICA = "pop message is forbidden: this broker is a replica. Pop from the master"


class Managers(Protocol):
    """The parts of a broker that POP uses."""

    @property
    def store(self) -> MessageStore: ...
    @property
    def topics(self) -> Topics: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def offsets(self) -> Offsets: ...
    @property
    def held(self) -> HeldPulls: ...
    @property
    def stats(self) -> BrokerStats: ...
    @property
    def put_path(self) -> PutPath: ...
    @property
    def identity(self) -> Identity: ...


class PopService:
    """Answers the POP requests of one broker.

    Args:
        delivered_ms: Returns a time by which every due timer has been delivered.
        refusal: Why this broker serves no pops, empty if it does.
    Attributes:
        reviver: To be entered and to be a dispatcher of the store, on a master with timers.
    """

    def __init__(
        self,
        parts: Managers,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        delivered_ms: Callable[[int], int],
        access_version: Callable[[], int] = lambda: 0,
        *,
        refusal: str = "",
    ) -> None:
        store, topics, groups, identity = parts.store, parts.topics, parts.groups, parts.identity
        revive_log = ReviveLog(store, parts.put_path, identity, clock)
        self.reviver = Reviver(
            store, topics, groups, parts.offsets, parts.put_path, identity, clock, delivered_ms
        )
        self._processors = (
            PopProcessor(
                store,
                topics,
                groups,
                PopOffsets(store, parts.offsets),
                revive_log,
                parts.held,
                parts.stats,
                identity,
                clock,
                config,
                lambda: refusal,
                access_version,
            ),
            AckProcessor(store, topics, revive_log, identity, clock, lambda: refusal),
        )

    def handlers(self) -> dict[int, Handler]:
        return {code: each for part in self._processors for code, each in part.handlers().items()}
