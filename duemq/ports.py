"""Protocols of the managers that processors use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from duemq.registry.consumer_offsets import PopState
from duemq.registry.topic_config import TopicConfig
from message_store.log.batch import PutBatch
from message_store.replication.acknowledgement import Missing

PERM_READ = 4
PERM_WRITE = 2

Putter = Callable[[PutBatch], Awaitable[Missing | None]]
"""Runs the put hooks, appends, waits until confirmed unless WAIT=false; results are in the rows.

It returns what is missing when something was stored, but not confirmed in time."""


class TopicView(Protocol):
    """A topic's configuration."""

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
    """The topic manager."""

    def find(self, name: str) -> TopicView | None: ...
    async def ensure(self, name: str, *, queues: int, perm: int) -> TopicView:
        """Return the topic, created and registered with the name servers if it is new."""
        ...

    async def ensure_all(self, wanted: Sequence[TopicConfig]) -> None:
        """Create those of the topics that do not exist, in one write."""
        ...


class GroupView(Protocol):
    """A consumer group's configuration."""

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
    def broker_id(self) -> int: ...
    @property
    def slow_broker_id(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...


class Groups(Protocol):
    """The group manager."""

    def find(self, name: str) -> GroupView | None:
        """Return the group, created if it is new and may be; None if it may not."""
        ...

    def known(self, name: str) -> GroupView | None:
        """Return the group if it exists."""
        ...


class Offsets(Protocol):
    """Progress of consumer groups."""

    pops: Callable[[], PopState | None]

    def query(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def set_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def of_group(self, group: str) -> Iterator[tuple[str, Mapping[int, int]]]: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Names of this broker. `host` is what store hosts and offset ids name: address bytes, port."""

    broker_name: str
    cluster_name: str
    broker_id: int
    host: tuple[bytes, int]
    perm: int = 6
