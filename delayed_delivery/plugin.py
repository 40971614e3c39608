"""Interface between the broker and its plugins: put hooks, dispatchers, tasks, request codes.

A plugin is found through the entry point group `duemq.broker_plugins`; the entry point names a
factory `create_plugin(host: PluginHost) -> BrokerPlugin`. Order of the calls:

    create_plugin(host)        configuration is parsed, the store is not open yet
    system_topics(), tags_code_rules()    called before the store recovers
    store opens and recovers
    put_hooks(), dispatchers(), request_handlers(), admin_views()    called once
    running(store)             entered before the port listens, left after it closed

A replica calls `open_replica` and enters `following` instead of `running`, and calls
`follow_master` before each connection to its master.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from duemq_common.request import RequestHandler

if TYPE_CHECKING:  # a client starts without the compiler
    from prometheus_client import CollectorRegistry

    from delayed_delivery.pending import PendingMessages
    from duemq_common.clock import Clock
    from message_store.hooks import Dispatcher, PutHook, TagsCodeRule
    from message_store.kernels.preparation import Preparation
    from message_store.retention.pins import FirstPending
    from message_store.store import MessageStore

ENTRY_POINT_GROUP = "duemq.broker_plugins"


class SystemTopic(Struct, frozen=True):
    """A topic that must exist before the store recovers."""

    name: str
    queues: int
    perm: int = 6


class Recalled(Enum):
    """Result of a request to cancel one message."""

    DONE = "done"
    DELIVERED = "delivered"
    UNKNOWN = "unknown"


class Recalls(Protocol):
    """Cancellation of pending messages by topic, time and unique key, as in a recall handle."""

    async def recall(self, topic: str, time_ms: int, unique_id: str) -> Recalled:
        """Cancel a message; return DONE once the decision is stored.

        Args:
            topic: Real topic of the message.
            time_ms: TIMER_OUT_MS + 1; the due time is at most one slot later.
            unique_id: UNIQ_KEY of the message.
        """
        ...


class ParameterizedView:
    """An admin view with arguments.

    Args:
        view: Returns plain data for the fields of a request; one piece of bounded work.
    """

    def __init__(self, view: Callable[[Mapping[str, str]], object]) -> None:
        self._view = view

    def __call__(self, fields: Mapping[str, str] | None = None) -> object:
        """Return the view for the fields of a request; without fields, of everything."""
        return self._view(fields or {})


class JobScheduler(Protocol):
    """Methods of the broker's APScheduler (AsyncIOScheduler) that plugins use."""

    def add_job(self, func: Callable[[], object], trigger: object, **options: object) -> object: ...
    def remove_job(self, job_id: str) -> None: ...


def every(
    scheduler: JobScheduler,
    interval_ms: int,
    work: Callable[[], Awaitable[object]],
    name: str,
    *,
    instances_max: int = 1,
) -> None:
    """Schedule periodic work; a run is skipped while `instances_max` runs have not ended."""
    scheduler.add_job(
        work,
        "interval",
        seconds=interval_ms / 1_000,
        id=name,
        coalesce=True,
        max_instances=instances_max,
    )


def referral_text(master: str, work: str) -> str:
    """Return the reason why a replica refuses a request.

    Args:
        master: `host:port` of its master, empty if it is unknown.
        work: What its master does: a verb and its object.
    """
    if not master:
        return "this broker is a replica, and its master is not known now: see duemq replicas"
    return f"this broker is a replica: its master {work}, use --broker {master}"


class PluginHost(Protocol):
    """Services of the host process for a plugin."""

    @property
    def clock(self) -> Clock: ...
    @property
    def properties(self) -> Mapping[str, str]:
        """The broker's configuration as `key=value` text."""
        ...

    @property
    def store_root(self) -> str: ...
    @property
    def scheduler(self) -> JobScheduler: ...
    @property
    def metrics(self) -> CollectorRegistry: ...

    @property
    def kernels(self) -> Preparation:
        """Preparation of kernels: a first start compiles some while it serves."""
        ...

    @property
    def master_address(self) -> str | None:
        """`host:port` of this replica's master, empty if it is unknown; None on a master."""
        ...

    def plugin(self, name: str) -> BrokerPlugin | None:
        """Return another plugin of this broker, None if no plugin has that name.

        All plugins exist once the broker is assembled; in `running`, plugins that precede
        this one are already running.
        """
        ...

    def stop(self, reason: str) -> None:
        """Request a stop of the broker because this plugin cannot continue."""
        ...


class BrokerPlugin(Protocol):
    """Extension of the broker. `PluginBase` implements every method with an empty result.

    Attributes:
        before: Names of plugins whose hooks and tasks follow those of this one.
        after: Names of plugins whose hooks and tasks precede those of this one.
    """

    name: str
    before: Sequence[str]
    after: Sequence[str]

    def config_class(self) -> type | None: ...
    def system_topics(self) -> Sequence[SystemTopic]: ...
    def tags_code_rules(self) -> Sequence[TagsCodeRule]: ...
    def put_hooks(self) -> Sequence[PutHook]: ...
    def dispatchers(self) -> Sequence[Dispatcher]: ...
    def request_handlers(self) -> Mapping[int, RequestHandler]: ...
    def admin_views(self) -> Mapping[str, Callable[[], object]]: ...
    def reconfigure(self, properties: Mapping[str, str]) -> None: ...
    def first_pending_offset(self) -> FirstPending: ...
    def recalls(self) -> Recalls | None: ...
    def pending_messages(self) -> PendingMessages | None: ...
    def delivered_ms(self, now_ms: int) -> int: ...
    def open_replica(self, store: MessageStore) -> None: ...
    def follow_master(
        self, properties: Mapping[str, str], store: MessageStore, log_end: int
    ) -> None: ...
    def following(self, store: MessageStore) -> AbstractAsyncContextManager[None]: ...
    def running(self, store: MessageStore) -> AbstractAsyncContextManager[None]: ...


class PluginBase:
    """A `BrokerPlugin` without any effect; derive from it and override methods."""

    name = "unnamed"
    before: Sequence[str] = ()
    after: Sequence[str] = ()

    def config_class(self) -> type | None:
        """Return the configuration section of this plugin, for checks and the reference."""
        return None

    def system_topics(self) -> Sequence[SystemTopic]:
        """Return topics that must exist before the store recovers."""
        return ()

    def tags_code_rules(self) -> Sequence[TagsCodeRule]:
        """Return the rules for tags codes of this plugin's topics."""
        return ()

    def put_hooks(self) -> Sequence[PutHook]:
        """Return the functions that are called with batches before they are appended.

        Called once all plugins run. See `message_store.hooks.PutHook`.
        """
        return ()

    def dispatchers(self) -> Sequence[Dispatcher]:
        """Return the functions that are called with every batch after it was appended.

        In `running`, `store.add_dispatcher` registers a function for the batches of one topic.
        """
        return ()

    def request_handlers(self) -> Mapping[int, RequestHandler]:
        """Return the handlers by request code."""
        return {}

    def admin_views(self) -> Mapping[str, Callable[[], object]]:
        """Return names and functions that return plain data for `duemq` and the console.

        A `ParameterizedView` is called with the fields of the request.
        """
        return {}

    def reconfigure(self, properties: Mapping[str, str]) -> None:
        """Apply a changed configuration."""

    def first_pending_offset(self) -> FirstPending:
        """Return the lowest log offset that this plugin still needs, None if it needs none.

        Called at any time while the store is open, also before and after `running`. If the offset
        is unknown, return `message_store.retention.pins.UNKNOWN`: then no log file is removed.
        """
        return None

    def recalls(self) -> Recalls | None:
        """Return the handler of request 370, None if this plugin has no messages to cancel."""
        return None

    def pending_messages(self) -> PendingMessages | None:
        """Return the lookup and the decisions of pending messages, None if there are none."""
        return None

    def delivered_ms(self, now_ms: int) -> int:
        """Return a time, at most `now_ms`, up to which every due message has been delivered."""
        return now_ms

    def open_replica(self, store: MessageStore) -> None:
        """Prepare the store of a replica, which copies a master's log; `running` is not entered.

        Raises:
            OSError: A file cannot be written.
        """

    def follow_master(
        self, properties: Mapping[str, str], store: MessageStore, log_end: int
    ) -> None:
        """Apply the configuration of the master before its log is copied.

        Args:
            properties: Configuration of the master.
            log_end: End of the master's log, requested after `properties`.
        Raises:
            ConfigError: A value cannot be used; nothing is copied.
            OSError: A file cannot be written.
        """

    @asynccontextmanager
    async def following(self, store: MessageStore) -> AsyncIterator[None]:
        """Run this plugin's tasks on a replica, whose store takes no messages."""
        yield

    @asynccontextmanager
    async def running(self, store: MessageStore) -> AsyncIterator[None]:
        """Run this plugin's tasks while the block is open."""
        yield
