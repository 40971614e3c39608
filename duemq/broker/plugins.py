"""Plugin host: finds plugins by entry point, collects their contributions, runs them.

    installed distributions --entry points--> PluginSet.load --> hooks, dispatchers, codes, views
                                                     |
    store is open --> PluginSet.running(store) ------+  entered in order, left in reverse

Order: a plugin lists the plugins that must follow (`before`) and precede it (`after`); plugins
without such a relation are ordered by name.

A broker does not start if a plugin cannot be loaded or started, because it must not accept the
plugin's messages without it. Every error contains the plugin and its distribution.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from datetime import UTC
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from delayed_delivery.plugin import (
    ENTRY_POINT_GROUP,
    BrokerPlugin,
    JobScheduler,
    Recalls,
    SystemTopic,
)
from duemq_common.clock import Clock, SystemClock
from duemq_common.config import errors_name_sources, from_properties
from duemq_common.errors import DueMQError, PluginError
from duemq_common.request import RequestHandler
from message_store.hooks import Dispatcher, PutHook, TagsCodeRule
from message_store.kernels.preparation import Preparation
from message_store.retention.pins import FirstPending, Pin

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from delayed_delivery.pending import PendingMessages
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
PLUGINS_MAX = 64
T = TypeVar("T")
Done = Callable[[str, AsyncExitStack], None]  # StepTimes.done


class Host(Struct, frozen=True):
    """Services of the broker for one plugin, the `PluginHost` of delayed_delivery/plugin.py."""

    plugin_name: str
    clock: Clock
    properties: Mapping[str, str]
    store_root: str
    scheduler: JobScheduler
    metrics: CollectorRegistry
    on_stop: Callable[[str], None]
    find: Callable[[str], BrokerPlugin | None] = lambda name: None
    kernels: Preparation = field(default_factory=Preparation)
    find_master: Callable[[], str | None] = lambda: None

    @property
    def master_address(self) -> str | None:
        """Address of this replica's master, empty if it is unknown; None on a master."""
        return self.find_master()

    def plugin(self, name: str) -> BrokerPlugin | None:
        """Return another plugin of this broker, or None."""
        return self.find(name)

    def stop(self, reason: str) -> None:
        """Request a stop of the broker because this plugin cannot continue."""
        self.on_stop(f"plugin {self.plugin_name}: {reason}")


class InstalledPlugin(Struct, frozen=True):
    """Installed plugin."""

    name: str
    entry_point: EntryPoint

    @property
    def origin(self) -> str:
        """Distribution and factory, for messages."""
        dist = self.entry_point.dist
        return f"{dist.name} {dist.version}, {self.entry_point.value}" if dist else "no package"


def installed_entries() -> tuple[EntryPoint, ...]:
    """Return the entry points of all installed plugins."""
    return _entries_on(tuple(sys.path))


@cache
def _entries_on(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Read the metadata of all distributions, which takes 10 ms; each store that opens needs it."""
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def installed_plugins(disabled: frozenset[str] = frozenset()) -> list[InstalledPlugin]:
    """Return the installed plugins that are not disabled, by name.

    Raises:
        PluginError: Two distributions have a plugin of the same name, or there are too many.
    """
    plugins: dict[str, InstalledPlugin] = {}
    for entry_point in installed_entries():
        if entry_point.name in disabled:
            continue
        plugin = InstalledPlugin(entry_point.name, entry_point)
        other = plugins.setdefault(plugin.name, plugin)
        if other.entry_point.value != entry_point.value:
            reason = (
                f"is installed twice: {other.origin} and {plugin.origin}. Uninstall one, or "
                f"disable both with brokerPluginDisabled={plugin.name}"
            )
            raise PluginError(plugin.name, reason)
    if len(plugins) > PLUGINS_MAX:
        raise PluginError("*", f"{len(plugins)} plugins are installed; the limit is {PLUGINS_MAX}")
    return [plugins[name] for name in sorted(plugins)]


def installed_sections(properties: Mapping[str, str], disabled: frozenset[str]) -> list[type]:
    """Return the configuration classes of the installed plugins, without a broker.

    Raises:
        PluginError: A plugin cannot be loaded.
    """
    from apscheduler.schedulers.asyncio import AsyncIOScheduler
    from prometheus_client import CollectorRegistry

    def bare_host(name: str) -> Host:
        return Host(
            plugin_name=name,
            clock=SystemClock(),
            properties=properties,
            store_root=properties.get("storePathRootDir", ""),
            scheduler=AsyncIOScheduler(timezone=UTC),
            metrics=CollectorRegistry(),
            on_stop=lambda reason: None,
        )

    return PluginSet.load(installed_plugins(disabled), bare_host).sections()


def load_plugin(installed: InstalledPlugin, host: Host) -> BrokerPlugin:
    """Import a plugin's factory and call it.

    Raises:
        PluginError: The import or the factory fails; configuration errors are not converted.
    """
    try:
        factory = installed.entry_point.load()
        plugin: BrokerPlugin = factory(host)
    except DueMQError:
        raise
    except Exception as error:
        reason = (
            f"cannot be loaded ({installed.origin}): {type(error).__name__}: {error}. Repair or "
            f"uninstall it, or set brokerPluginDisabled={installed.name}"
        )
        raise PluginError(installed.name, reason) from error
    missing = [name for name in _METHODS if not callable(getattr(plugin, name, None))]
    if missing:
        reason = f"lacks {', '.join(missing)} ({installed.origin}); derive it from PluginBase"
        raise PluginError(installed.name, reason)
    return plugin


_METHODS = (
    "config_class",
    "system_topics",
    "tags_code_rules",
    "put_hooks",
    "dispatchers",
    "request_handlers",
    "admin_views",
    "reconfigure",
    "first_pending_offset",
    "recalls",
    "pending_messages",
    "delivered_ms",
    "open_replica",
    "follow_master",
    "following",
    "running",
)


def in_declared_order(plugins: Mapping[str, BrokerPlugin]) -> dict[str, BrokerPlugin]:
    """Return the plugins ordered by their `before` and `after`.

    Plugins that are not loaded are ignored. Plugins without a relation keep their order.

    Raises:
        PluginError: The relations are cyclic.
    """
    earlier = {name: set(plugin.after) & plugins.keys() for name, plugin in plugins.items()}
    for name, plugin in plugins.items():
        for later in set(plugin.before) & plugins.keys():
            earlier[later].add(name)
    ordered: dict[str, BrokerPlugin] = {}
    while len(ordered) < len(plugins):
        left = [name for name in plugins if name not in ordered]
        following = next((name for name in left if earlier[name] <= ordered.keys()), None)
        if following is None:
            reason = (
                f"cannot be ordered: {', '.join(left)} precede each other; change before or after"
            )
            raise PluginError(left[0], reason)
        ordered[following] = plugins[following]
    return ordered


class PluginSet:
    """The loaded plugins of one broker.

    Args:
        plugins: Plugins by name.

    Attributes:
        plugins: Plugins in hook order.

    Raises:
        PluginError: The plugins cannot be ordered.
    """

    def __init__(self, plugins: Mapping[str, BrokerPlugin]) -> None:
        self.plugins = in_declared_order(plugins)

    @classmethod
    def load(
        cls, installed: Iterable[InstalledPlugin], make_host: Callable[[str], Host]
    ) -> PluginSet:
        """Load installed plugins."""
        return cls({item.name: load_plugin(item, make_host(item.name)) for item in installed})

    def _collect(self, method: str, call: Callable[[BrokerPlugin], T]) -> list[tuple[str, T]]:
        """Return what a method of each plugin returns, by plugin."""
        return [(name, self._call(name, method, call)) for name in self.plugins]

    def _joined(self, method: str, call: Callable[[BrokerPlugin], Iterable[T]]) -> list[T]:
        return [item for _, items in self._collect(method, call) for item in items]

    def _call(self, name: str, method: str, call: Callable[[BrokerPlugin], T]) -> T:
        with _plugin_errors(name, f"{method}() failed"):
            return call(self.plugins[name])

    def sections(self) -> list[type]:
        """Return the plugins' configuration classes."""
        classes = self._collect("config_class", lambda plugin: plugin.config_class())
        return [section for _, section in classes if section is not None]

    def system_topics(self) -> list[SystemTopic]:
        """Return the topics that must exist before the store recovers."""
        return self._joined("system_topics", lambda plugin: plugin.system_topics())

    def has_topic(self, name: str) -> bool:
        """Return whether a plugin adds a system topic."""
        return any(topic.name == name for topic in self.system_topics())

    def tags_code_rules(self) -> list[TagsCodeRule]:
        """Return the rules for tags codes, at most one per topic."""
        rules: dict[str, TagsCodeRule] = {}
        plugin_rules = self._collect("tags_code_rules", lambda plugin: plugin.tags_code_rules())
        for name, brought in plugin_rules:
            for rule in brought:
                if rule.topic in rules:
                    raise PluginError(name, f"another plugin has a tags code rule for {rule.topic}")
                rules[rule.topic] = rule
        return list(rules.values())

    def put_hooks(self) -> list[PutHook]:
        """Return the put hooks in call order."""
        return self._joined("put_hooks", lambda plugin: plugin.put_hooks())

    def dispatchers(self) -> list[Dispatcher]:
        """Return the callables for every appended batch."""
        return self._joined("dispatchers", lambda plugin: plugin.dispatchers())

    def request_handlers(self, taken: Container[int]) -> dict[int, RequestHandler]:
        """Return the plugins' handlers by request code.

        Raises:
            PluginError: A code is in `taken`, or two plugins have it.
        """
        handlers: dict[int, RequestHandler] = {}
        collected = self._collect("request_handlers", lambda plugin: plugin.request_handlers())
        for name, brought in collected:
            for code, handler in brought.items():
                if code in taken or code in handlers:
                    raise PluginError(name, f"request code {code} already has a handler")
                handlers[code] = handler
        return handlers

    def admin_views(self) -> dict[str, Callable[[], object]]:
        """Return the functions of the plugins' views by `plugin.view`; they return plain data."""
        return {
            f"{name}.{view}": function
            for name, views in self._collect("admin_views", lambda plugin: plugin.admin_views())
            for view, function in views.items()
        }

    def reconfigure(
        self, properties: Mapping[str, str], before: Mapping[str, str] | None = None
    ) -> None:
        """Apply a new configuration to all plugins or none.

        The sections of all plugins are validated first.

        Args:
            before: Current configuration, restored if a plugin refuses the new one.
        Raises:
            ConfigError: A plugin refuses the configuration.
            PluginError: A plugin failed.
        """
        for section in self.sections():
            from_properties(section, properties)
        changed: list[str] = []
        try:
            for name in self.plugins:
                changed.append(name)
                with errors_name_sources(properties):
                    self._call(name, "reconfigure", lambda plugin: plugin.reconfigure(properties))
        except DueMQError:
            for name in reversed(changed) if before is not None else ():
                self._restore(name, before or {})
            raise

    def _restore(self, name: str, before: Mapping[str, str]) -> None:
        try:
            self._call(name, "reconfigure", lambda plugin: plugin.reconfigure(before))
        except DueMQError as error:
            log.error("plugin %s did not restore its previous configuration: %s", name, error)

    def log_pins(self) -> dict[str, Pin]:
        """Return the pin of each plugin, which returns the first log offset that it needs."""
        return {
            name: partial(self._call, name, "first_pending_offset", _pin) for name in self.plugins
        }

    def recalls(self) -> Recalls | None:
        """Return the `Recalls` of a plugin, or None.

        Raises:
            PluginError: Two plugins have one.
        """
        collected = self._collect("recalls", lambda plugin: plugin.recalls())
        offered = [(name, port) for name, port in collected if port is not None]
        if len(offered) > 1:
            raise PluginError(offered[1][0], f"{offered[0][0]} already handles recalls")
        return offered[0][1] if offered else None

    def pending_messages(self) -> list[PendingMessages]:
        """Return the owners of pending messages for decisions, timers before levels."""
        collected = self._collect("pending_messages", lambda plugin: plugin.pending_messages())
        offered = [port for _, port in collected if port is not None]
        return offered[::-1]  # hooks run levels first

    def delivered_ms(self, now_ms: int) -> int:
        """Return the time, at most `now_ms`, up to which all due messages are delivered."""
        return min(
            (plugin.delivered_ms(now_ms) for plugin in self.plugins.values()), default=now_ms
        )

    def open_replica(self, store: MessageStore) -> None:
        """Prepare every plugin for the store of a replica.

        Raises:
            PluginError: One failed.
        """
        for name in self.plugins:
            self._call(name, "open_replica", lambda plugin: plugin.open_replica(store))

    def follow_master(
        self, properties: Mapping[str, str], store: MessageStore, log_end: int
    ) -> None:
        """Pass the master's configuration to every plugin of a replica.

        Raises:
            DueMQError: A plugin cannot use it.
        """
        for name in self.plugins:
            self._call(
                name,
                "follow_master",
                lambda plugin: plugin.follow_master(properties, store, log_end),
            )

    async def follow(self, store: MessageStore, stack: AsyncExitStack, done: Done) -> None:
        """Run what plugins do on a replica until the stack is left; stop it in reverse order.

        Args:
            done: Called with the name of each plugin when it runs.
        """
        await self._enter(lambda plugin: plugin.following(store), stack, done)

    async def run(self, store: MessageStore, stack: AsyncExitStack, done: Done) -> None:
        """Run all plugins until the stack is left; stop them in reverse order. See `follow`."""
        await self._enter(lambda plugin: plugin.running(store), stack, done)
        for name in self.plugins:
            log.info("plugin %s is running", name)

    async def _enter(
        self,
        enter: Callable[[BrokerPlugin], AbstractAsyncContextManager[None]],
        stack: AsyncExitStack,
        done: Done,
    ) -> None:
        for name, plugin in self.plugins.items():
            with _plugin_errors(name, "cannot start"):
                await stack.enter_async_context(enter(plugin))
            done(name, stack)


@contextmanager
def _plugin_errors(name: str, activity: str) -> Iterator[None]:
    """Convert an exception of a plugin to a PluginError."""
    try:
        yield
    except DueMQError:
        raise
    except Exception as error:
        raise PluginError(name, f"{activity}: {type(error).__name__}: {error}") from error


def _pin(plugin: BrokerPlugin) -> FirstPending:
    return plugin.first_pending_offset()
