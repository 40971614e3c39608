"""Plugin host: finds plugins by entry point, collects their parts, runs them.

    installed distributions --entry points--> PluginSet.load --> hooks, dispatchers, codes, views
                                                     |
    store is open --> PluginSet.running(store) ------+  entered in order, left in reverse

Order: a plugin names those that it must precede (`before`) and those that precede it (`after`);
plugins without such a relation are in the order of their names.

A plugin that cannot be loaded or started prevents the broker's start, because a broker without it
must not accept its messages. Every error names the plugin and its distribution.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from delivery.plugin import ENTRY_POINT_GROUP, BrokerPlugin, Recalls, RequestHandler, SystemTopic
from message_store.clock import Clock, SystemClock
from message_store.config import from_properties, options
from message_store.errors import DueMQError, PluginError
from message_store.hooks import Dispatcher, PutHook, TagsCodeRule
from message_store.kernels.preparation import Preparation
from message_store.retention.pins import Pin

if TYPE_CHECKING:
    from delivery.pending import PendingMessages
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
PLUGINS_MAX = 64


@dataclass(frozen=True, slots=True)
class Host:
    """What one plugin gets from the broker. The `PluginHost` of delivery/plugin.py."""

    plugin_name: str
    clock: Clock
    properties: Mapping[str, str]
    store_root: str
    scheduler: Any
    metrics: Any
    on_stop: Callable[[str], None]
    find: Callable[[str], BrokerPlugin | None] = lambda name: None
    kernels: Preparation = field(default_factory=Preparation)

    def plugin(self, name: str) -> BrokerPlugin | None:
        """Return another plugin of this broker, None if there is none of that name."""
        return self.find(name)

    def stop(self, why: str) -> None:
        """Request a stop of the broker because this plugin cannot continue."""
        self.on_stop(f"plugin {self.plugin_name}: {why}")


@dataclass(frozen=True, slots=True)
class Installed:
    """A plugin that some distribution offers."""

    name: str
    entry_point: EntryPoint

    @property
    def origin(self) -> str:
        """Distribution and factory, for messages."""
        dist = self.entry_point.dist
        return f"{dist.name} {dist.version}, {self.entry_point.value}" if dist else "no package"


def installed_plugins(disabled: frozenset[str] = frozenset()) -> list[Installed]:
    """Return the installed plugins that are not disabled, by name.

    Raises:
        PluginError: Two distributions offer a plugin of the same name, or there are too many.
    """
    found: dict[str, Installed] = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name in disabled:
            continue
        plugin = Installed(entry_point.name, entry_point)
        other = found.setdefault(plugin.name, plugin)
        if other.entry_point.value != entry_point.value:
            why = (
                f"is offered twice: by {other.origin} and by {plugin.origin}. Uninstall one, or "
                f"disable both with brokerPluginDisabled={plugin.name}"
            )
            raise PluginError(plugin.name, why)
    if len(found) > PLUGINS_MAX:
        raise PluginError("*", f"{len(found)} plugins are installed; the limit is {PLUGINS_MAX}")
    return [found[name] for name in sorted(found)]


def installed_sections(properties: Mapping[str, str], disabled: frozenset[str]) -> list[type]:
    """Return the configuration classes of the installed plugins, without a broker.

    Raises:
        PluginError: One cannot be loaded.
    """

    def bare_host(name: str) -> Host:
        return Host(
            plugin_name=name,
            clock=SystemClock(),
            properties=properties,
            store_root=properties.get("storePathRootDir", ""),
            scheduler=None,
            metrics=None,
            on_stop=lambda why: None,
        )

    return PluginSet.load(installed_plugins(disabled), bare_host).sections()


def load_plugin(installed: Installed, host: Host) -> BrokerPlugin:
    """Import a plugin's factory and call it.

    Raises:
        PluginError: It cannot be imported or its factory fails; configuration errors pass as
            they are.
    """
    try:
        factory = installed.entry_point.load()
        plugin: BrokerPlugin = factory(host)
    except DueMQError:
        raise
    except Exception as error:
        why = (
            f"cannot be loaded ({installed.origin}): {type(error).__name__}: {error}. Repair or "
            f"uninstall it, or set brokerPluginDisabled={installed.name}"
        )
        raise PluginError(installed.name, why) from error
    missing = [name for name in _METHODS if not callable(getattr(plugin, name, None))]
    if missing:
        why = f"lacks {', '.join(missing)} ({installed.origin}); derive it from PluginBase"
        raise PluginError(installed.name, why)
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
    "waiting",
    "delivered_ms",
    "open_replica",
    "follow_master",
    "running",
)


def in_declared_order(plugins: Mapping[str, BrokerPlugin]) -> dict[str, BrokerPlugin]:
    """Return the plugins so that each one follows all that must precede it.

    Names in `before` and `after` of plugins that are not loaded are ignored. Plugins without a
    relation keep the given order.

    Raises:
        PluginError: Some plugins must precede each other.
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
            why = f"cannot be ordered: {', '.join(left)} precede each other; change before, after"
            raise PluginError(left[0], why)
        ordered[following] = plugins[following]
    return ordered


class PluginSet:
    """The loaded plugins of one broker.

    Args:
        plugins: Plugins by name.

    Attributes:
        plugins: The same in the order in which hooks run.

    Raises:
        PluginError: The plugins cannot be ordered.
    """

    def __init__(self, plugins: Mapping[str, BrokerPlugin]) -> None:
        self.plugins = in_declared_order(plugins)

    @classmethod
    def load(cls, installed: Iterable[Installed], make_host: Callable[[str], Host]) -> PluginSet:
        """Load all of them."""
        return cls({item.name: load_plugin(item, make_host(item.name)) for item in installed})

    def _ask(self, method: str) -> list[tuple[str, Any]]:
        return [(name, self._ask_one(name, method)) for name in self.plugins]

    def _ask_one(self, name: str, method: str) -> Any:
        try:
            return getattr(self.plugins[name], method)()
        except DueMQError:
            raise
        except Exception as error:
            why = f"{method}() failed: {type(error).__name__}: {error}"
            raise PluginError(name, why) from error

    def known_keys(self) -> set[str]:
        """Return the configuration keys of all plugins."""
        return {item.key for section in self.sections() for item in options(section)}

    def sections(self) -> list[type]:
        """Return the plugins' configuration classes."""
        return [section for _, section in self._ask("config_class") if section is not None]

    def system_topics(self) -> list[SystemTopic]:
        """Return the topics that must exist before the store recovers."""
        return [topic for _, topics in self._ask("system_topics") for topic in topics]

    def tags_code_rules(self) -> list[TagsCodeRule]:
        """Return how tags codes are made; at most one rule a topic."""
        rules: dict[str, TagsCodeRule] = {}
        for name, brought in self._ask("tags_code_rules"):
            for rule in brought:
                if rule.topic in rules:
                    raise PluginError(name, f"another plugin has a tags code rule for {rule.topic}")
                rules[rule.topic] = rule
        return list(rules.values())

    def put_hooks(self) -> list[PutHook]:
        """Return the put hooks in the order in which they run."""
        return [hook for _, hooks in self._ask("put_hooks") for hook in hooks]

    def dispatchers(self) -> list[Dispatcher]:
        """Return the callables for every appended batch."""
        return [dispatcher for _, some in self._ask("dispatchers") for dispatcher in some]

    def request_handlers(self, taken: Container[int]) -> dict[int, RequestHandler]:
        """Return the plugins' request codes.

        Raises:
            PluginError: A code is in `taken`, or two plugins want it.
        """
        handlers: dict[int, RequestHandler] = {}
        for name, brought in self._ask("request_handlers"):
            for code, handler in brought.items():
                if code in taken or code in handlers:
                    raise PluginError(name, f"request code {code} is already answered")
                handlers[code] = handler
        return handlers

    def admin_views(self) -> dict[str, Callable[[], Any]]:
        """Return the plugins' views: `plugin.view` to a function that returns plain data."""
        return {
            f"{name}.{view}": function
            for name, views in self._ask("admin_views")
            for view, function in views.items()
        }

    def reconfigure(
        self, properties: Mapping[str, str], before: Mapping[str, str] | None = None
    ) -> None:
        """Hand the new configuration to every plugin: all of them take it, or none.

        Every plugin's section is checked before the first plugin takes anything.

        Args:
            before: the configuration in force, which plugins are given again if one refuses.
        Raises:
            ConfigError: A plugin refuses it.
            PluginError: A plugin failed.
        """
        for section in self.sections():
            from_properties(section, properties)
        asked: list[str] = []
        try:
            for name in self.plugins:
                asked.append(name)
                self._reconfigure_one(name, properties)
        except DueMQError:
            for name in reversed(asked) if before is not None else ():
                self._restore(name, before or {})
            raise

    def _reconfigure_one(self, name: str, properties: Mapping[str, str]) -> None:
        try:
            self.plugins[name].reconfigure(properties)
        except DueMQError:
            raise
        except Exception as error:
            why = f"reconfigure() failed: {type(error).__name__}: {error}"
            raise PluginError(name, why) from error

    def _restore(self, name: str, before: Mapping[str, str]) -> None:
        try:
            self._reconfigure_one(name, before)
        except DueMQError as error:
            log.error("plugin %s did not take its former configuration again: %s", name, error)

    def log_pins(self) -> dict[str, Pin]:
        """Return the pin of each plugin: what answers the first log offset that it still needs."""
        return {name: partial(self._ask_one, name, "first_pending_offset") for name in self.plugins}

    def recalls(self) -> Recalls | None:
        """Return the plugin's `Recalls`, None if no plugin offers any.

        Raises:
            PluginError: Two plugins offer it.
        """
        offered = [(name, port) for name, port in self._ask("recalls") if port is not None]
        if len(offered) > 1:
            raise PluginError(offered[1][0], f"{offered[0][0]} answers recalls already")
        return offered[0][1] if offered else None

    def waiting(self) -> list[PendingMessages]:
        """Return the owners of pending messages that can be decided now, timers before levels."""
        offered = [port for _, port in self._ask("waiting") if port is not None]
        return offered[::-1]  # hooks run levels first

    def delivered_ms(self, now_ms: int) -> int:
        """Return a time, `now_ms` at most: every message that was due by it has been delivered."""
        return min(
            (plugin.delivered_ms(now_ms) for plugin in self.plugins.values()), default=now_ms
        )

    def open_replica(self, store: MessageStore) -> None:
        """Prepare every plugin for the store of a replica.

        Raises:
            PluginError: One failed.
        """
        for name in self.plugins:
            self._call(name, "open_replica", store)

    def follow_master(
        self, properties: Mapping[str, str], store: MessageStore, log_end: int
    ) -> None:
        """Hand the master's configuration to every plugin of a replica.

        Raises:
            DueMQError: A plugin cannot use it.
        """
        for name in self.plugins:
            self._call(name, "follow_master", properties, store, log_end)

    def _call(self, name: str, method: str, *args: Any) -> None:
        try:
            getattr(self.plugins[name], method)(*args)
        except DueMQError:
            raise
        except Exception as error:
            why = f"{method}() failed: {type(error).__name__}: {error}"
            raise PluginError(name, why) from error

    @asynccontextmanager
    async def running(self, store: MessageStore) -> AsyncIterator[None]:
        """Run all plugins; leaving stops them in reverse order."""
        async with AsyncExitStack() as stack:
            for name, plugin in self.plugins.items():
                try:
                    await stack.enter_async_context(plugin.running(store))
                except DueMQError:
                    raise
                except Exception as error:
                    why = f"cannot start: {type(error).__name__}: {error}"
                    raise PluginError(name, why) from error
                log.info("plugin %s runs", name)
            yield
