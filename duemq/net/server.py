"""The listening end: accepts connections, closes idle ones, stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Self

from duemq.net.allowed_networks import Sources
from duemq.net.connection import Connection, FrameTaker
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.listener import Listener, Opening
from duemq.net.memory_budget import MemoryBudget
from duemq.net.notices import PeerNotices
from duemq.net.tls import ServerTls
from message_store.clock import Clock
from message_store.descriptors import connections_end, descriptor_limit, headroom
from message_store.errors import UsageError

log = logging.getLogger(__name__)
NO_PROXIES = Sources("proxyProtocolFrom")
"""Only a proxy on this machine may speak for its clients."""


class RemotingServer:
    """Serves requests on any number of ports; a context manager that stops on exit.

    Args:
        dispatcher: Handles the requests.
        ingest: takes the frames of all connections together; None: each on its own.
        limits: bounds of every connection.
        clock: for idle connections.
        memory: Budget of all connections together; None: a separate one.
        tls: mode and certificates; None: plaintext only.
        proxies: peers whose PROXY header is believed.
        descriptor_limit: Returns the process's limit of descriptors; called at each connection.
    Source: NettyRemotingServer
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        ingest: FrameTaker | None = None,
        limits: RemotingLimits | None = None,
        *,
        clock: Clock,
        memory: MemoryBudget | None = None,
        tls: ServerTls | None = None,
        proxies: Sources = NO_PROXIES,
        descriptor_limit: Callable[[], int] = descriptor_limit,
    ) -> None:
        self._dispatcher = dispatcher
        self._descriptor_limit = descriptor_limit
        self._notices = PeerNotices(log)
        self._ingest = ingest
        self._limits = limits or RemotingLimits()
        self.memory = memory or MemoryBudget(self._limits.memory_bytes_max)
        self._clock = clock
        self._connections: set[Connection] = set()
        self._tls, self._proxies = tls, proxies
        self.listeners: list[Listener] = []
        self._stopped = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connections(self) -> frozenset[Connection]:
        """The connections that are open now."""
        return frozenset(self._connections)

    @property
    def ports(self) -> list[int]:
        """The ports that listen, in the order they were started."""
        return [listener.port for listener in self.listeners]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self, host: str, port: int, *, bound: socket.socket | None = None) -> None:
        """Listen on one more port; a broker listens on `listenPort` and `listenPort - 2`.

        Args:
            bound: a socket that has the port already; closed with the server.
        Raises:
            UsageError: If the port cannot be had.
        """
        try:
            listening = bound or _bound_socket(host, port)
            listening.listen(self._limits.backlog)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host or '*'}:{port}: {error.strerror or error}. "
                "Is another broker running? Set listenPort to a free port"
            ) from error
        listener = Listener(
            listening,
            self,
            clock=self._clock,
            tls=self._tls,
            proxies=self._proxies,
            notices=self._notices,
            close_wait_s=self._limits.close_wait_s,
        )
        self.listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="idle connections")

    async def stop(self) -> None:
        """Stop listening, finish requests in hand, close every connection."""
        self._stopped.set()
        for listener in self.listeners:
            listener.close()
        for each in self.connections:
            each.stop_reading()
        wait_s = self._limits.close_wait_s
        if self._ingest is not None:
            await self._ingest.drain()
        await asyncio.gather(*(each.finish(wait_s) for each in self.connections))
        if self._ingest is not None:
            await self._ingest.drain()
        await asyncio.gather(*(each.drain(wait_s) for each in self.connections))
        if self._sweeper is not None:
            await self._sweeper
        self.listeners.clear()

    def new_connection(self, client: tuple[str, int], on_open: Callable[[], None]) -> Connection:
        """Return the protocol of a connection that begins."""
        return Connection(
            self._dispatcher,
            limits=self._limits,
            taker=self._ingest,
            memory=self.memory,
            notices=self._notices,
            address=client,
            on_open=partial(self._opened, begun=on_open),
            on_lost=self._connections.discard,
        )

    def has_room(self, opening: Opening) -> bool:
        """Return whether one more connection may be open; log why not."""
        limit = self._descriptor_limit()
        allowed = min(self._limits.connections_max, limit - headroom(limit))
        is_open = len(self._connections) + sum(map(len, self.listeners))
        if is_open < allowed and opening.socket.fileno() < connections_end(limit):
            return True
        self.memory.refused_count += 1
        self._notices.refused(
            "%r: refused, %d connections are open; allowed are %d (connectionsMax, and half of "
            "the %d file descriptors that this process may have)",
            opening, is_open, allowed, limit,
        )  # fmt: skip
        return False

    def _opened(self, connection: Connection, begun: Callable[[], None]) -> None:
        begun()
        connection.quiet_since_ms = self._clock.now_ms()
        self._connections.add(connection)
        if self._stopped.is_set():
            connection.close()

    async def _sweep(self) -> None:
        while not self._stopped.is_set():
            now_ms = self._clock.now_ms()
            await self._clock.wait(self._stopped, until_ms=now_ms + self._limits.sweep_ms)
            self.close_idle(self._clock.now_ms())
            if self._tls is not None:
                self._tls.reload_if_changed()

    def close_idle(self, now_ms: int) -> None:
        """Close connections without traffic for `idle_ms_max`."""
        for listener in self.listeners:
            listener.close_idle(now_ms - self._limits.idle_ms_max)
        for connection in self.connections:
            connection.received.shrink()
            connection.recount()
            if connection.heard:
                connection.heard = False
                connection.quiet_since_ms = now_ms
            elif now_ms - connection.quiet_since_ms >= self._limits.idle_ms_max:
                log.info("%r: idle, closed", connection)
                connection.close()


def _bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that has the port; port 0: any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
