"""Interfaces of the managers that processors use, and the identity of the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from duemq.registry.offset_table import PopState
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topic_routes import BrokerQueues
from message_store.log.batch import PutBatch
from message_store.replication.acknowledgement import Missing

PERM_READ = 4
PERM_WRITE = 2

Putter = Callable[[PutBatch], Awaitable[Missing | None]]
"""Runs the put hooks, appends, and waits for confirmation unless WAIT=false.

Results are in the rows. Returns the missing confirmation after a timeout, else None."""


class TopicView(Protocol):
    """Configuration of a topic."""

    @property
    def name(self) -> str: ...
    @property
    def read_queues(self) -> int: ...
    @property
    def write_queues(self) -> int: ...
    @property
    def perm(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...


class Topics(Protocol):
    """Interface of the topic manager."""

    def find(self, name: str) -> TopicView | None: ...
    async def ensure(self, name: str, *, queues: int, perm: int) -> TopicView:
        """Return the topic, created and announced if it is new."""
        ...

    async def ensure_all(self, wanted: Sequence[TopicConfig]) -> None:
        """Create the missing topics in one write."""
        ...


class Routes(Protocol):
    """Routes of topics, from the name servers."""

    async def find(self, topic: str, own: str = "") -> list[BrokerQueues]:
        """Return the brokers of a topic, sorted by name; see `TopicRoutes.find`."""
        ...


class GroupView(Protocol):
    """Configuration of a consumer group."""

    @property
    def name(self) -> str: ...
    @property
    def consume_enable(self) -> bool: ...
    @property
    def broadcast_enable(self) -> bool: ...
    @property
    def retry_queues(self) -> int: ...
    @property
    def retry_times_max(self) -> int: ...
    @property
    def notify_changed(self) -> bool: ...
    @property
    def sys_flag(self) -> int: ...


class Groups(Protocol):
    """Interface of the group manager."""

    def find(self, name: str) -> GroupView | None:
        """Return the group, created if necessary and allowed; None if it is not allowed."""
        ...

    def known(self, name: str) -> GroupView | None:
        """Return the group if it exists."""
        ...


class Offsets(Protocol):
    """Interface of the offset manager."""

    pops: Callable[[], PopState | None]

    def query(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def set_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Names of this broker; `host` is (address bytes, port) in store hosts and offset ids."""

    broker_name: str
    cluster_name: str
    broker_id: int
    host: tuple[bytes, int]
    perm: int = 6
