"""HTTP ports of a broker: metrics (`metricsPromExporterPort`) and the API (`consolePort`).

Both are served in one thread, which imports what they need; what only the API needs is imported
only if its port is configured.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from duemq.broker.collectors.collector import broker_collector
from duemq.broker.collectors.native_metrics import NativeCollector
from duemq.broker.collectors.replication_collector import ReplicationCollector
from duemq.broker.collectors.running_broker import RunningBroker
from duemq.configuration.config import BrokerConfig
from duemq.configuration.exposure import LOOPBACK, is_loopback, warn_if_exposed
from duemq.http.http_port import HttpPort, OpenPort
from duemq.http.server import serving
from duemq.metrics.pauses import PauseCollector
from duemq.net.bound_socket import bind
from duemq_common.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from duemq.http.probes import Probes
    from duemq.net.tls_config import TlsConfig

log = logging.getLogger(__name__)
METRICS_KEY: Final = "metricsPromExporterPort"
CONSOLE_KEY: Final = "consolePort"
METRICS_CONNECTIONS_MAX: Final = 32
RESPONSE_S: Final = 5.0


class HttpPorts:
    """HTTP ports of a running broker.

    Args:
        broker: The broker.
        registry: Registry of its metrics.
        tls: Section with the certificates of the API.
    Attributes:
        metrics_port: Port of the metrics; None: they are not served.
        console_port: Port of the API; 0: it is not served.
    """

    def __init__(self, broker: RunningBroker, registry: CollectorRegistry, tls: TlsConfig) -> None:
        self._broker, self._registry, self._tls = broker, registry, tls
        self.metrics_port: int | None = None
        self.console_port = 0

    async def start(self, stack: AsyncExitStack, address: str, *, metrics_required: bool) -> None:
        """Serve the configured ports until `stack` exits.

        Args:
            address: `host:port` of the broker for clients on this machine.
            metrics_required: Raise UsageError if the port of metrics is in use, instead of a
                warning.
        Raises:
            UsageError: A port cannot be bound.
        """
        broker, registry = self._broker, self._registry
        registry.register(broker_collector(broker))
        registry.register(NativeCollector(broker))
        registry.register(ReplicationCollector(broker.parts.replication))
        loop = asyncio.get_running_loop()
        pauses = PauseCollector()
        registry.register(pauses)
        stack.enter_context(pauses.measuring(loop))

        @cache
        def probes() -> Probes:
            from duemq.http.probes import Probes

            return Probes(
                registry,
                live=partial(failure_reason, broker, loop),
                ready=partial(unready_reason, broker, loop),
            )

        ports = []
        if broker.config.metrics_exporter == "PROM":
            ports += self._metrics(stack, probes, required=metrics_required)
        if broker.config.console_port:
            ports.append(self._console(stack, probes, address))
        if ports:
            await stack.enter_async_context(serving(ports))

    def _metrics(
        self, stack: AsyncExitStack, probes: Callable[[], Probes], *, required: bool
    ) -> list[OpenPort]:
        config = self._broker.config
        host = config.metrics_host or (LOOPBACK if self._broker.access else config.bind_address)
        try:
            bound = stack.enter_context(bind(host, config.metrics_port, key=METRICS_KEY))
        except UsageError as error:
            text = f"/metrics is not served: {error}, or set metricsExporterType=DISABLE"
            if required:
                raise UsageError(text) from error
            log.warning("%s", text)
            return []
        self.metrics_port = port = int(bound.getsockname()[1])
        key, off = "metricsPromExporterHost", "metricsExporterType=DISABLE"
        warn_if_exposed("/metrics", host, port, key=key, off=off)

        def open_port() -> HttpPort:
            from duemq.http.probes import probe_application

            application, limit = probe_application(probes()), METRICS_CONNECTIONS_MAX
            return HttpPort(bound=bound, application=application, connections_max=limit)

        return [open_port]

    def _console(
        self, stack: AsyncExitStack, probes: Callable[[], Probes], address: str
    ) -> OpenPort:
        broker, config = self._broker, self._broker.config
        context = https_context(self._tls)
        host = console_address(config, has_tls=context is not None)
        bound = stack.enter_context(bind(host, config.console_port, key=CONSOLE_KEY))
        self.console_port = port = int(bound.getsockname()[1])
        if context is None and not is_loopback(host):
            log.warning(
                "the HTTP API listens on %s:%d without TLS, so that credentials can be read on the "
                "network: set certificates (tls.server.certPath), or consoleHost=127.0.0.1",
                host,
                port,
            )

        def open_port() -> HttpPort:
            from duemq.console.application import console_routes
            from duemq.http.embedded import api_port

            return api_port(
                bound,
                address,
                config,
                access=broker.access,
                tls=context,
                broker_tls=broker.tls,
                probes=probes(),
                pages=console_routes,
            )

        return open_port


def console_address(config: BrokerConfig, *, has_tls: bool) -> str:
    """Return the address of the API; without TLS, by default this machine only."""
    return config.console_host or (config.bind_address if has_tls else LOOPBACK)


def https_context(tls: TlsConfig) -> ssl.SSLContext | None:
    """Return the context of HTTPS; None without certificates."""
    if tls.test_mode or not tls.server_cert_path:
        return None
    from duemq.http.https import https_context_of

    return https_context_of(tls)


async def failure_reason(broker: RunningBroker, loop: asyncio.AbstractEventLoop) -> str:
    """Return the reason why the broker must be restarted; empty: it need not.

    Args:
        loop: Event loop of the broker, not the one that runs.
    """
    if not await responds(loop):
        return f"the event loop of the broker has not responded for {RESPONSE_S:g} s"
    failure = broker.store.flusher.failure
    return broker.failure or (f"the commit log cannot be synced: {failure}" if failure else "")


async def unready_reason(broker: RunningBroker, loop: asyncio.AbstractEventLoop) -> str:
    """Return the reason why the broker accepts no messages; empty: it accepts them."""
    if broker.stops:
        return "the broker is stopping"
    return await failure_reason(broker, loop) or broker.store.refusal


async def responds(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the event loop of another thread takes a turn within `RESPONSE_S`."""
    own, turn = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.call_soon_threadsafe(own.call_soon_threadsafe, turn.set)
        async with asyncio.timeout(RESPONSE_S):
            await turn.wait()
    except (TimeoutError, RuntimeError):  # RuntimeError: the loop is closed
        return turn.is_set()  # this loop may be the late one
    return True
