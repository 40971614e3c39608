"""Broker process: starts its components in order and stops them in reverse.

bind ports      before the store is opened, so that a port in use is reported first
plugins         created; they add system topics and tags code rules
store           locked, recovered
components      managers and processors on the store (`duemq.broker.assembly`)
name server     the embedded one, if enabled
scheduler       APScheduler: persistence, statistics, disk check
plugins run     levels and timers are delivered from here on
listen, register, HTTP
retention       and the watch of the configuration file: they use all components
...             stop: in reverse order; requests in flight are finished, files are written

async with Broker({"storePathRootDir": "/data/store"}) as broker: ...
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from duemq.auth.access import AccessControl, open_access
from duemq.broker import jobs
from duemq.broker.assembly import assemble
from duemq.broker.clock_steps import watching_clock
from duemq.broker.components import BrokerComponents, BrokerContext
from duemq.broker.plugins import Host, InstalledPlugin, PluginSet, installed_plugins
from duemq.broker.process_services import new_registry, new_scheduler
from duemq.broker.send_assembly import make_ingest
from duemq.broker.step_times import StepTimes
from duemq.broker.stored_pins import stored_pins
from duemq.broker.v5_port import bind_v5, serving_v5
from duemq.broker.vip_channel import serve_vip_channel
from duemq.configuration.config import BrokerConfig
from duemq.configuration.config_edit import edited, file_state
from duemq.configuration.config_request import accepted_changes
from duemq.configuration.exposure import local_only_notice, warn_if_exposed
from duemq.configuration.settings import (
    SECTIONS,
    Settings,
    changed_values,
    check_directories,
    current_values,
    key_notices,
    resolved,
    settings_from,
    with_live_changes,
)
from duemq.configuration.shown_keys import configuration_view
from duemq.namesrv import name_servers
from duemq.net.allowed_networks import parse_sources
from duemq.net.bound_socket import bind
from duemq.net.limits import limits_of
from duemq.net.server import RemotingServer
from duemq.net.tls import load_tls
from duemq.replication.membership import Membership
from duemq_common.clock import Clock, SystemClock
from duemq_common.config import Properties
from duemq_common.data_version import DataVersion
from duemq_common.errors import DueMQError
from duemq_common.masking import masked
from message_store.kernels.preparation import Preparation
from message_store.store import MessageStore

if TYPE_CHECKING:
    from duemq.namesrv.server import NameServer
    from duemq.net.connection import Connection
    from duemq.send.ingest import Ingest

log = logging.getLogger(__name__)
WILDCARDS = "", "0.0.0.0", "::"
LOOPBACKS = "127.0.0.1", "[::1]"  # IPv4, IPv6
KERNELS = "send", "ingest", "history"  # groups of requests whose first one must be fast
MEMBER_KERNELS = "broker", "store", "levels", "timers", "pending_timers"  # of the next role


class Broker:
    """Broker; an async context manager. On exit, all data is synced to disk.

    Args:
        properties: Keys and values as in broker.conf; absent keys have their defaults.
        clock: Clock; None: the system clock.
        plugins: Plugins to load; None: the installed ones.
        config_file: File of `properties`, to which request 25 writes changes.
        read_again: Reads the configuration again, for `reload`.
        kernels: Preparation of the kernels; None: they are compiled.
        membership: Role and group of a broker in controller mode; None: as configured.
    Attributes:
        settings: Current configuration.
        membership: Role and group of a broker in controller mode; None: as configured.
        failure: Cause of a stop; empty while the broker runs and after a requested stop.
        metrics: Registry of /metrics.
    Raises (on entering):
        ConfigError: A value is invalid.
        UsageError: A port is in use.
        PluginError: A plugin cannot be loaded or started.
        StoreError: The store is locked or damaged.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        clock: Clock | None = None,
        plugins: Iterable[InstalledPlugin] | None = None,
        config_file: Path | None = None,
        read_again: Callable[[], Properties] | None = None,
        kernels: Preparation | None = None,
        membership: Membership | None = None,
    ) -> None:
        self._kernels, self.membership = kernels or Preparation(), membership
        self.settings = self._settings_from(properties)
        self.clock = clock or SystemClock()
        self.failure = ""
        self.metrics_port: int | None = None
        self.console_port = 0
        self.grpc_port = 0
        self.namesrv_address = ""
        self._installed = plugins
        self._config_file, self._read_again = config_file, read_again
        self._file_state = file_state(config_file) if config_file else (0, 0)
        self._reconfiguring = asyncio.Lock()
        self._stop = asyncio.Event()
        self._serves = self._reload_due = False
        self._stack = AsyncExitStack()
        self.started_ms = self.clock.now_ms()
        self.version = DataVersion(0, self.started_ms)
        self.plugins = PluginSet({})
        self.namesrv: NameServer | None = None
        self.access: AccessControl | None = None
        self._ha_socket: socket.socket | None = None

    @property
    def config(self) -> BrokerConfig:
        """Current broker section."""
        return self.settings.broker

    @property
    def port(self) -> int:
        """Port for clients."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def ha_port(self) -> int:
        """Port for replicas while this broker is a master."""
        if self._ha_socket is not None:
            port: int = self._ha_socket.getsockname()[1]
            return port
        return self.settings.ha_server.port_after(self.port)

    @property
    def address(self) -> str:
        """Address for clients, `host:port`."""
        return f"{self.config.broker_ip}:{self.port}"

    @property
    def connections(self) -> frozenset[Connection]:
        """Open connections."""
        return self._server.connections

    def _settings_from(self, properties: Mapping[str, str]) -> Settings:
        settings = resolved(settings_from(properties))
        return settings if self.membership is None else self.membership.role.applied_to(settings)

    # -- running ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._steps = StepTimes(self.clock.steady_ms)
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        self._serves = True
        if self._reload_due:
            self.reload()
        times = self._steps.finished()
        log.info("broker %s serves at %s (%s)", self.config.broker_name, self.address, times)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._steps.stopping()
        await self._stack.__aexit__(kind, error, trace)
        log.info("broker %s has stopped (%s)", self.config.broker_name, self._steps.finished())

    async def _start(self, stack: AsyncExitStack) -> None:
        self._socket = stack.enter_context(bind(self.config.bind_address, self.config.listen_port))
        self._v5_socket = stack.enter_context(bind_v5(self.config))
        if not self.settings.replication.is_replica:
            port = self.settings.ha_server.port_after(self.config.listen_port)
            bound = bind(self.config.bind_address, port, key="haListenPort")
            self._ha_socket = stack.enter_context(bound)
        check_directories(self.settings.store)
        self.tls = load_tls(self.settings.tls)
        self.metrics = new_registry(self.config)
        self.scheduler = new_scheduler()
        self.plugins = self._load_plugins()
        for notice in key_notices(self.settings.properties, [*SECTIONS, *self.plugins.sections()]):
            log.warning("%s", notice)
        self.store = stack.enter_context(self._new_store())
        self._steps.done("store", stack)
        if self.membership is not None:
            self.membership.begin(self.store)
        self.access = self._open_access()
        self.parts = self._assemble()
        stack.callback(self._persist)
        await self._start_namesrv(stack)
        self.scheduler.start()
        stack.push_async_callback(self.scheduler.finish)
        jobs.add_jobs(self.scheduler, self.parts, self.settings, self.access, self.tls, self.clock)
        self._steps.done("tables", stack)
        if self.settings.tracing.endpoint:
            from duemq.broker.tracing.service import tracing

            ports = self.plugins.pending_messages
            traces = tracing(self.settings.tracing, self.parts, ports, self.clock)
            await stack.enter_async_context(traces)
        await self._run_role(stack)
        await self.parts.append_snapshots()
        self._steps.done("services", stack)
        await self._listen(stack)
        self._steps.done("ports", stack)
        await self._register(stack)
        await self._serve_http(stack)
        self._steps.done("registration", stack)
        interval_ms = self.settings.store.clean_interval_ms
        jobs.add_retention(self.scheduler, interval_ms, self.store.retention, stack)
        self._watch_file(stack)
        await stack.enter_async_context(watching_clock(self.clock, self.scheduler))
        # A member of a group changes its role without a master meanwhile: on a busy machine, the
        # kernels of the next role take ten seconds to load.
        groups = KERNELS if self.membership is None else (*KERNELS, *MEMBER_KERNELS)
        await stack.enter_async_context(self._kernels.running(*groups))
        self._steps.done("jobs", stack)

    async def _run_role(self, stack: AsyncExitStack) -> None:
        """Start the tasks of a master or of a replica."""
        if self.parts.replica is not None:
            await self.plugins.follow(self.store, stack, self._steps.done)
            await stack.enter_async_context(self.parts.replica.running())
        if self.parts.ha_server is not None:
            await stack.enter_async_context(self.parts.ha_server.running())
            await self.plugins.run(self.store, stack, self._steps.done)
            self.parts.hooks[:0] = self.plugins.put_hooks()
        for task in self.parts.tasks:
            await stack.enter_async_context(task)

    def _load_plugins(self) -> PluginSet:
        installed = self._installed
        if installed is None:
            installed = installed_plugins(self.config.disabled_plugins)
        return PluginSet.load(installed, self._host)

    def _host(self, plugin_name: str) -> Host:
        return Host(
            plugin_name=plugin_name,
            clock=self.clock,
            properties=self.settings.properties,
            store_root=str(self.settings.store.root),
            scheduler=self.scheduler,
            metrics=self.metrics,
            on_stop=self.stop,
            find=lambda name: self.plugins.plugins.get(name),  # noqa: PLW0108  (`self.plugins` is set later)
            kernels=self._kernels,
            find_master=lambda: self.parts.master_address,
        )

    def _new_store(self) -> MessageStore:
        return MessageStore(
            self.settings.store,
            self.clock,
            tags_code_rules=self.plugins.tags_code_rules(),
            notice=lambda text: log.warning("%s", text),
        )

    def _open_access(self) -> AccessControl | None:
        directory, cluster = self.store.config_path("."), self.config.cluster_name
        return open_access(self.settings.auth, directory, cluster, self.clock.now_ms)

    def _assemble(self) -> BrokerComponents:
        if not self.settings.replication.is_replica:  # a replica has its master's pins
            pins = stored_pins(self.store, self.plugins.plugins) | self.plugins.log_pins()
            for name, pin in pins.items():
                self.store.retention.add_pin(pin, owner=name)
        self._context = BrokerContext(
            config=lambda: self.settings.broker,
            store_config=self.settings.store,
            port=self.port,
            clock=self.clock,
            plugins=self.plugins,
            values=self.shown_properties,
            configuration=lambda: configuration_view(self.settings, self.plugins.sections()),
            version=lambda: self.version,
            reconfigure=self.reconfigure,
            started_ms=self.started_ms,
            access=self.access,
            kernels=self._kernels,
            replication=lambda: self.settings.replication,
            ha_server=lambda: self.settings.ha_server,
            ha_socket=self._ha_socket,
            ha_port=self.ha_port,
            connect=name_servers.peer_client(self.settings.auth, self.tls.client),
            routes=name_servers.topic_routes(
                lambda: self.settings, self.tls, self.clock, lambda: self.namesrv
            ),
            membership=self.membership,
        )
        return assemble(self.store, self._context)

    def _persist(self) -> None:
        try:
            self.parts.persist()
        except OSError as error:
            log.error("topics, groups or offsets were not written: %s", error)

    def new_ingest(self) -> Ingest:
        """Return the batching ingest of sends."""
        return make_ingest(self.parts, self._context)

    async def _listen(self, stack: AsyncExitStack) -> None:
        self._server = server = RemotingServer(
            self.parts.dispatcher,
            self.new_ingest(),
            limits_of(self.config),
            clock=self.clock,
            memory=self.parts.memory,
            tls=self.tls.server,
            proxies=parse_sources("proxyProtocolFrom", self.config.proxy_protocol_from),
        )
        await stack.enter_async_context(server)
        v5 = serving_v5(self._v5_socket, self.parts, self._context, self.tls)
        self.grpc_port = await stack.enter_async_context(v5)
        stack.callback(self.parts.long_polls.stop)  # responds to them before the server drains
        await server.start(self.config.bind_address, self.port, bound=self._socket)
        checked = self.access is not None
        if not checked and "bindAddress" not in self.settings.properties:
            log.warning("%s", local_only_notice("the broker"))
        warn_if_exposed("the broker", self.config.bind_address, self.port, checked=checked)
        if self.config.vip_channel_enable and self.config.listen_port:
            await serve_vip_channel(server, self.config.bind_address, self.port, checked=checked)

    async def _start_namesrv(self, stack: AsyncExitStack) -> None:
        if not self.config.embedded_namesrv_enable:
            return
        path = self.store.config_path("kvConfig.json")
        server = name_servers.embedded_name_server(
            self.config, path, self.clock, self.access, self.tls.server
        )
        self.namesrv = await stack.enter_async_context(server)
        self.namesrv_address = f"{self.config.broker_ip}:{self.namesrv.port}"
        purpose, off = "the embedded name server", "embeddedNamesrvEnable=false"
        address, checked = self.config.bind_address, self.access is not None
        warn_if_exposed(purpose, address, self.namesrv.port, off=off, checked=checked)

    async def _register(self, stack: AsyncExitStack) -> None:
        parts, member, replica = self.parts, self.membership, self.parts.replica
        follows = replica is not None and member is None  # a member follows its controller
        self.registrar = name_servers.registrar(
            lambda: self.config,
            self.settings.auth,
            parts.topics,
            self.clock,
            port=self.port,
            ha_port=self.ha_port,
            grpc_port=self.grpc_port,
            local=self.namesrv,
            tls=self.tls.client,
            second_master=parts.second_master,
            on_registered=replica.on_registered if replica and follows else lambda fields: None,
        )
        if member is None or member.role.is_known:
            await stack.enter_async_context(self.registrar.running())

    async def _serve_http(self, stack: AsyncExitStack) -> None:
        if self.config.metrics_exporter != "PROM" and not self.config.console_port:
            return
        from duemq.broker.http_ports import HttpPorts

        required = "metricsPromExporterPort" in self.settings.properties
        bound = self.config.bind_address
        host = bound if bound not in WILDCARDS else LOOPBACKS[":" in bound]
        ports = HttpPorts(self, self.metrics, self.settings.tls.with_file())
        await ports.start(stack, f"{host}:{self.port}", metrics_required=required)
        self.metrics_port, self.console_port = ports.metrics_port, ports.console_port

    @property
    def stops(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    # -- stopping -----------------------------------------------------------------------------

    def stop(self, reason: str = "") -> None:
        """Request a stop; `reason` becomes the failure."""
        if reason and not self.failure:
            self.failure = reason
            log.error("stopping: %s", reason)
        self._stop.set()

    def stop_for_signal(self, name: str) -> None:
        """Request a stop because of a signal, without a failure."""
        log.info("%s: stopping", name)
        self._stop.set()

    async def stopped(self) -> None:
        """Wait until a stop is requested."""
        await self._stop.wait()

    # -- configuration ------------------------------------------------------------------------

    def reload(self) -> None:
        """Reload the configuration (SIGHUP, changed file); an invalid one changes nothing.

        During startup, the reload is postponed to its end.
        """
        self._reload_due = not self._serves
        if self._read_again is None or self._reload_due:
            return
        before = self.shown_properties()
        try:
            self.apply(self._read_again())
        except DueMQError as error:
            log.error("the configuration is not reloaded: %s", error)
            return
        changes = changed_values(before, self.shown_properties())
        log.info("configuration reloaded: %s", "; ".join(changes) or "no effective change")

    async def reconfigure(self, changes: Mapping[str, str]) -> None:
        """Change keys at run time (request 25) and in the configuration file.

        Raises:
            RequestError: A key may not be changed, or the file cannot be written; nothing changed.
            ConfigError: A value is invalid; nothing was changed.
        """
        sections = [*SECTIONS, *self.plugins.sections()]
        changes = accepted_changes(changes, sections, self.config.frozen_keys, source="request 25")
        if not changes:
            return
        async with self._reconfiguring, edited(self._config_file, changes) as edit:
            edit.undo = partial(self.apply, self.settings.properties)
            self.apply(self.settings.properties.merged(changes, "request 25"))
        if self._config_file is not None:
            self._file_state = file_state(self._config_file)

    def apply(self, properties: Properties) -> None:
        """Apply the live keys of a new configuration.

        Raises:
            DueMQError: A value is invalid; nothing was changed.
        """
        settings, later = with_live_changes(self.settings, self._settings_from(properties))
        self.plugins.reconfigure(properties, self.settings.properties)
        self.settings = settings
        self.store.config = settings.store
        self.version = self.version.next(self.clock.now_ms())
        self.registrar.set_addresses(name_servers.addresses_of(self.config))
        self.parts.groups.auto_create = self.config.auto_create_group
        if self.parts.pull is not None:
            self.parts.pull.config = settings.broker
        if later:
            log.warning("effective after a restart: %s", ", ".join(later))

    def all_properties(self) -> dict[str, str]:
        """Return every key with its current value."""
        return current_values(self.settings, self.plugins.sections())

    def shown_properties(self) -> dict[str, str]:
        """Return `all_properties` with passwords masked, as in the response to 26."""
        return {key: masked(key, value) for key, value in self.all_properties().items()}

    def _watch_file(self, stack: AsyncExitStack) -> None:
        """Reload the configuration whenever its file changes, until a stop begins."""
        path, interval_ms = self._config_file, self.config.config_watch_ms
        if path is None or not interval_ms:
            return

        async def reload_if_changed() -> None:
            if (state := file_state(path)) != self._file_state:
                self._file_state = state
                log.info("%s has changed", path)
                self.reload()

        jobs.add_job(self.scheduler, interval_ms, reload_if_changed, jobs.CONFIG_JOB)
        stack.callback(self.scheduler.remove_job, jobs.CONFIG_JOB)
