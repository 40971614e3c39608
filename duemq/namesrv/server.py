"""Name server, as a separate process or embedded in a broker.

    async with NameServer(config, clock) as server:
        server.register_local(...)      # broker in this process, without a socket
                ...                             # other brokers connect to server.port

Source: NamesrvController
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping
from typing import Self

from duemq.configuration.exposure import LOOPBACK
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.kv_config import KVConfig
from duemq.namesrv.processor import NamesrvProcessor
from duemq.namesrv.route_table import BrokerAddrInfo, Registration, RouteTable
from duemq.net.allowed_networks import parse_sources
from duemq.net.dispatcher import AccessCheck, Dispatcher, Handler
from duemq.net.limits import limits_of
from duemq.net.own_address import own_address as address_of_this_machine
from duemq.net.server import RemotingServer
from duemq.net.tls import ServerTls
from duemq.registry.config_file import ConfigFile
from duemq_common.clock import Clock
from duemq_common.config import expanded
from duemq_common.errors import UsageError

log = logging.getLogger(__name__)


class NameServer:
    """Name server with route table, key-value table, listening port and expiry of brokers.

    Args:
        access: Permission check of each request; None: only the network rules apply.
        extra_handlers: Handlers of further request codes.
        tls: TLS of the port; None: plaintext only.
        own_address: IP address from which brokers of this machine connect; empty: detected.
    Raises (on entering):
        CorruptStore: The key-value file cannot be read.
        UsageError: The port cannot be bound.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        clock: Clock,
        *,
        tls: ServerTls | None = None,
        own_address: str = "",
        access: AccessCheck | None = None,
        extra_handlers: Mapping[int, Handler] | None = None,
        port_key: str = "listenPort",
    ) -> None:
        self._clock, self._port_key = clock, port_key
        self._is_embedded = port_key != "listenPort"
        self._listen_address = (config.bind_address or LOOPBACK, config.listen_port)
        self._scan_ms = config.scan_interval_ms
        self.table = RouteTable()
        path = config.kv_config_path
        self.kv = KVConfig(ConfigFile(expanded("kvConfigPath", path)) if path else None)
        self._processor = NamesrvProcessor(
            config,
            self.table,
            self.kv,
            clock,
            own_addresses=(own_address or address_of_this_machine(self._listen_address[0]),),
        )
        self._server = RemotingServer(
            Dispatcher(self.handlers() | dict(extra_handlers or {}), access=access),
            limits=limits_of(config),
            clock=clock,
            tls=tls,
            proxies=parse_sources("proxyProtocolFrom", config.proxy_protocol_from),
        )
        self._stopping = asyncio.Event()
        self._scan: asyncio.Task[None] | None = None

    @property
    def config(self) -> NamesrvConfig:
        """Current configuration, including changes by request 318."""
        return self._processor.config

    @property
    def port(self) -> int:
        """Listening port."""
        return self._server.ports[0]

    def handlers(self) -> dict[int, Handler]:
        """Return handlers by request code."""
        return self._processor.handlers()

    def register_local(self, registration: Registration) -> None:
        """Register the broker of this process; it never expires.

        Raises:
            RequestError: The registration is refused.
        """
        self.table.register(registration, self._processor.time.now_ms())

    def drop_local_topic(self, broker_name: str, topic: str) -> None:
        """Delete the route of a topic that the broker of this process deleted."""
        self.table.drop_topic_of(broker_name, topic)

    def unregister_local(self, key: BrokerAddrInfo) -> None:
        """Remove the broker of this process."""
        self.table.unregister(key)

    async def __aenter__(self) -> Self:
        self.kv.load()
        try:
            await self._server.start(*self._listen_address, key=self._port_key)
        except UsageError as error:
            text = remedy_of(error, self._listen_address[1], is_embedded=self._is_embedded)
            raise UsageError(f"{error}{text}") from error
        self._scan = asyncio.create_task(self._expire(), name="name server: silent brokers")
        log.info("name server listens on %s:%d", self._listen_address[0], self.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stopping.set()
        since_ms = self._clock.steady_ms()
        await self._server.stop()
        ports_ms = self._clock.steady_ms() - since_ms
        if self._scan is not None:
            await self._scan
        expiry_ms = self._clock.steady_ms() - since_ms - ports_ms
        log.info("name server has stopped (ports %d ms, expiry %d ms)", ports_ms, expiry_ms)

    async def _expire(self) -> None:
        while not self._stopping.is_set():
            await self._processor.time.pause(self._stopping, self._scan_ms)
            self._processor.expire()


def remedy_of(error: UsageError, port: int, *, is_embedded: bool) -> str:
    """Return what to do if another name server uses the port; empty for other errors.

    `duemq init` configures a name server in the broker, and `duemq namesrv` is another one.
    """
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return ""
    lines = f"embeddedNamesrvEnable=false and namesrvAddr={LOOPBACK}:{port}"
    if is_embedded:
        return f"; if a name server uses it, set {lines} to register there instead"
    return (
        f"; if it is the name server in a broker, set {lines} in the configuration of the broker, "
        "and start the broker again after this name server"
    )
