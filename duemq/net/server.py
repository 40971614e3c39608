"""Remoting server: any number of ports, graceful stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from duemq.net.accepting_server import AcceptingServer
from duemq.net.allowed_networks import Sources
from duemq.net.bound_socket import cannot_listen
from duemq.net.connection import Connection, FrameHandler
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.memory import MemoryBudget
from duemq.net.tls import ServerTls
from duemq_common.clock import Clock
from message_store.descriptors import descriptor_limit

NO_PROXIES = Sources("proxyProtocolFrom")
"""PROXY headers are trusted from this machine only."""


class RemotingServer(AcceptingServer[Connection]):
    """Remoting server on any number of ports; a context manager that stops on exit.

    Args:
        dispatcher: Dispatcher of the requests.
        ingest: Handler of all connections' frames; None: each connection handles its frames.
        limits: Limits of every connection.
        clock: Clock of the idle check.
        memory: Memory budget; None: one for this server.
        tls: Mode and certificates; None: plaintext only.
        proxies: Peers whose PROXY header is trusted.
        descriptor_limit: Returns the process's limit of file descriptors.
    Source: NettyRemotingServer
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        ingest: FrameHandler | None = None,
        limits: RemotingLimits | None = None,
        *,
        clock: Clock,
        memory: MemoryBudget | None = None,
        tls: ServerTls | None = None,
        proxies: Sources = NO_PROXIES,
        descriptor_limit: Callable[[], int] = descriptor_limit,
    ) -> None:
        self._dispatcher, self._ingest = dispatcher, ingest
        self._limits = limits or RemotingLimits()
        super().__init__(
            self._limits,
            clock=clock,
            memory=memory or MemoryBudget(self._limits.memory_bytes_max),
            tls=tls,
            proxies=proxies,
            descriptor_limit=descriptor_limit,
        )

    async def start(
        self,
        host: str,
        port: int,
        *,
        bound: socket.socket | None = None,
        key: str = "listenPort",
    ) -> None:
        """Listen on another port; a broker listens on `listenPort` and `listenPort - 2`.

        Args:
            bound: Socket that is bound to the port already; closed with the server.
            key: Configuration key of the port, for the error.
        Raises:
            UsageError: The port cannot be bound.
        """
        try:
            self.listen(bound or _bound_socket(host, port))
        except OSError as error:
            raise cannot_listen(host, port, error, key) from error

    async def stop(self) -> None:
        """Stop listening, finish the requests in flight, close every connection."""
        self.close_listeners()
        for each in self.connections:
            each.stop_reading()
        wait_s = self._limits.close_wait_s
        if self._ingest is not None:
            await self._ingest.drain()
        await asyncio.gather(*(each.finish(wait_s) for each in self.connections))
        if self._ingest is not None:
            await self._ingest.drain()
        await asyncio.gather(*(each.drain(wait_s) for each in self.connections))
        await self.finish_sweep()

    def new_connection(self, client: tuple[str, int], on_open: Callable[[], None]) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(
            self._dispatcher,
            limits=self._limits,
            frame_handler=self._ingest,
            memory=self.memory,
            notices=self.notices,
            address=client,
            on_open=partial(self.opened, begun=on_open),
            on_lost=self.lost,
        )

    def close_idle(self, now_ms: int) -> None:
        """Close idle connections, and shrink the buffers of the others."""
        for connection in self.connections:
            connection.received.shrink()
        super().close_idle(now_ms)


def _bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
