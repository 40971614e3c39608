"""The listening end: accepts connections, closes idle ones, stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Self

from duemq.net.connection import Connection, FrameTaker
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.memory_budget import MemoryBudget
from duemq.net.notices import PeerNotices
from message_store.clock import Clock
from message_store.descriptors import connections_end, descriptor_limit, headroom
from message_store.errors import UsageError

log = logging.getLogger(__name__)


class RemotingServer:
    """Serves requests on any number of ports; a context manager that stops on exit.

    Args:
        dispatcher: Handles the requests.
        ingest: takes the frames of all connections together; None: each on its own.
        limits: bounds of every connection.
        clock: for idle connections.
        memory: what all connections may hold together; None: a budget of its own.
        descriptor_limit: how many descriptors the process may have; asked at each connection.
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
        self._servers: list[asyncio.Server] = []
        self._stopped = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connections(self) -> frozenset[Connection]:
        """The connections that are open now."""
        return frozenset(self._connections)

    @property
    def ports(self) -> list[int]:
        """The ports that listen, in the order they were started."""
        return [server.sockets[0].getsockname()[1] for server in self._servers]

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
        loop = asyncio.get_running_loop()
        where = {"sock": bound} if bound else {"host": host, "port": port}
        backlog = self._limits.backlog
        try:
            server = await loop.create_server(self._connection, **where, backlog=backlog)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host or '*'}:{port}: {error.strerror or error}. "
                "Is another broker running? Set listenPort to a free port"
            ) from error
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = loop.create_task(self._sweep(), name="idle connections")

    async def stop(self) -> None:
        """Stop listening, finish requests in hand, close every connection."""
        self._stopped.set()
        for server in self._servers:
            server.close()
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
        self._servers.clear()

    def _connection(self) -> Connection:
        return Connection(
            self._dispatcher,
            limits=self._limits,
            taker=self._ingest,
            memory=self.memory,
            notices=self._notices,
            on_open=self._opened,
            on_lost=self._connections.discard,
        )

    def _opened(self, connection: Connection) -> None:
        connection.quiet_since_ms = self._clock.now_ms()
        self._connections.add(connection)
        limit = self._descriptor_limit()
        allowed = min(self._limits.connections_max, limit - headroom(limit))
        if len(self._connections) > allowed or connection.descriptor >= connections_end(limit):
            self.memory.refused_count += 1
            self._notices.refused(
                "%r: refused, %d connections are open; allowed are %d (connectionsMax, and half of "
                "the %d file descriptors that this process may have)",
                connection, len(self._connections), allowed, limit,
            )  # fmt: skip
            connection.close()
        elif self._stopped.is_set():
            connection.close()

    async def _sweep(self) -> None:
        while not self._stopped.is_set():
            now_ms = self._clock.now_ms()
            await self._clock.wait(self._stopped, until_ms=now_ms + self._limits.sweep_ms)
            self.close_idle(self._clock.now_ms())

    def close_idle(self, now_ms: int) -> None:
        """Close connections on which nothing moved for `idle_ms_max`."""
        for connection in self.connections:
            connection.received.shrink()
            connection.recount()
            if connection.heard:
                connection.heard = False
                connection.quiet_since_ms = now_ms
            elif now_ms - connection.quiet_since_ms >= self._limits.idle_ms_max:
                log.info("%r: idle, closed", connection)
                connection.close()
