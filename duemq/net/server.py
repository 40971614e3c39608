"""The listening end: accepts connections, closes idle ones, stops gracefully."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from duemq.net.accepting import AcceptingServer
from duemq.net.allowed_networks import Sources
from duemq.net.connection import Connection, FrameTaker
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.memory_budget import MemoryBudget
from duemq.net.tls import ServerTls
from message_store.clock import Clock
from message_store.descriptors import descriptor_limit
from message_store.errors import UsageError

NO_PROXIES = Sources("proxyProtocolFrom")
"""Only a proxy on this machine may speak for its clients."""


class RemotingServer(AcceptingServer[Connection]):
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

    async def start(self, host: str, port: int, *, bound: socket.socket | None = None) -> None:
        """Listen on one more port; a broker listens on `listenPort` and `listenPort - 2`.

        Args:
            bound: a socket that has the port already; closed with the server.
        Raises:
            UsageError: If the port cannot be had.
        """
        try:
            self.listen(bound or _bound_socket(host, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host or '*'}:{port}: {error.strerror or error}. "
                "Is another broker running? Set listenPort to a free port"
            ) from error

    async def stop(self) -> None:
        """Stop listening, finish requests in hand, close every connection."""
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
        """Return the protocol of a connection that begins."""
        return Connection(
            self._dispatcher,
            limits=self._limits,
            taker=self._ingest,
            memory=self.memory,
            notices=self.notices,
            address=client,
            on_open=partial(self.opened, begun=on_open),
            on_lost=self.lost,
        )

    def close_idle(self, now_ms: int) -> None:
        """Close connections without traffic, and shrink the buffers of the others."""
        for connection in self.connections:
            connection.received.shrink()
        super().close_idle(now_ms)


def _bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that has the port; port 0: any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
