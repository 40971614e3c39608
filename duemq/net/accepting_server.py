"""Base of servers: listening ports, open connections, idle check."""

from __future__ import annotations

import abc
import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from duemq.net.allowed_networks import Sources
from duemq.net.listener import AcceptedSocket, Listener
from duemq.net.memory import MemoryBudget
from duemq.net.notices import PeerNotices
from duemq.net.tls import ServerTls
from duemq_common.clock import AwakeTime, Clock
from duemq_common.memory.allocator import return_free_memory
from message_store.descriptors import connections_end, descriptor_limit, headroom

log = logging.getLogger(__name__)


class AcceptLimits(Protocol):
    """Limits of a server."""

    @property
    def connections_max(self) -> int: ...
    @property
    def backlog(self) -> int: ...
    @property
    def idle_ms_max(self) -> int: ...
    @property
    def sweep_ms(self) -> int: ...
    @property
    def close_wait_s(self) -> float: ...


class OpenConnection(Protocol):
    """Interface of an open connection.

    Attributes:
        is_active: Whether the connection was active since the last sweep.
        active_at_ms: `AwakeTime` of the last sweep that found `is_active` true, in ms.
    """

    is_active: bool
    active_at_ms: int

    def update_charge(self) -> None:
        """Update the memory charge to the bytes in use."""
        ...

    def close(self) -> None:
        """Close after written bytes are flushed."""
        ...

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=OpenConnection)


class AcceptingServer(abc.ABC, Generic[ConnectionT]):
    """Listening ports and open connections; a context manager that stops on exit.

    Args:
        memory: Memory budget of the connections.
        tls: Mode and certificates; None: plaintext only.
        proxies: Peers whose PROXY header is trusted.
        descriptor_limit: Returns the process's limit of file descriptors.
    """

    def __init__(
        self,
        limits: AcceptLimits,
        *,
        clock: Clock,
        memory: MemoryBudget,
        tls: ServerTls | None,
        proxies: Sources,
        descriptor_limit: Callable[[], int] = descriptor_limit,
    ) -> None:
        self._accept_limits, self._clock, self._time = limits, clock, AwakeTime(clock)
        self.memory, self.notices = memory, PeerNotices(log)
        self._tls, self._proxies = tls, proxies
        self._descriptor_limit = descriptor_limit
        self._connections: dict[ConnectionT, bool] = {}  # connection to whether it uses TLS
        self.listeners: list[Listener] = []
        self._stopped = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connections(self) -> frozenset[ConnectionT]:
        """Open connections."""
        return frozenset(self._connections)

    @property
    def ports(self) -> list[int]:
        """Listening ports, in start order."""
        return [listener.port for listener in self.listeners]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @abc.abstractmethod
    async def stop(self) -> None:
        """Stop listening, finish the requests in flight, close every connection."""

    @abc.abstractmethod
    def new_connection(
        self, client: tuple[str, int], on_open: Callable[[], None]
    ) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""

    def listen(self, bound: socket.socket, *, preface: bytes = b"") -> None:
        """Accept connections on a bound socket, which is closed with the server.

        Args:
            preface: See `Listener`.
        Raises:
            OSError: The socket cannot listen.
        """
        bound.listen(self._accept_limits.backlog)
        listener = Listener(
            bound,
            self.has_room,
            self.new_connection,
            time=self._time,
            tls=self._tls,
            proxies=self._proxies,
            notices=self.notices,
            close_wait_s=self._accept_limits.close_wait_s,
            preface=preface,
        )
        self.listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="idle connections")

    def close_listeners(self) -> None:
        """Accept no new connections."""
        self._stopped.set()
        for listener in self.listeners:
            listener.close()

    async def finish_sweep(self) -> None:
        """Wait for the end of the idle check."""
        if self._sweeper is not None:
            await self._sweeper
        self.listeners.clear()

    def has_room(self, accepted_socket: AcceptedSocket) -> bool:
        """Return whether another connection may be opened; log the reason if not."""
        limit = self._descriptor_limit()
        allowed = min(self._accept_limits.connections_max, limit - headroom(limit))
        is_open = len(self._connections) + sum(map(len, self.listeners))
        if is_open < allowed and accepted_socket.socket.fileno() < connections_end(limit):
            return True
        self.memory.refused_count += 1
        self.notices.refused(
            "%r: refused: %d connections are open; the limit is %d (connectionsMax, and half of "
            "the process's limit of %d file descriptors)",
            accepted_socket,
            is_open,
            allowed,
            limit,
        )
        return False

    def opened(self, connection: ConnectionT, begun: Callable[[], None]) -> None:
        """Add an open connection; close it if the server is stopping."""
        begun()
        connection.active_at_ms = self._time.now_ms()
        self._connections[connection] = connection.is_encrypted
        self._count(1, connection.is_encrypted)
        if self._stopped.is_set():
            connection.close()

    def lost(self, connection: ConnectionT) -> None:
        """Remove a closed connection."""
        if (is_encrypted := self._connections.pop(connection, None)) is not None:
            self._count(-1, is_encrypted)

    def _count(self, change: int, is_encrypted: bool) -> None:
        self.memory.open_count += change
        self.memory.encrypted_count += change * is_encrypted

    async def _sweep(self) -> None:
        while not self._stopped.is_set():
            await self._time.pause(self._stopped, self._accept_limits.sweep_ms)
            self.close_idle(self._time.now_ms())
            if self.memory.should_trim():
                await asyncio.to_thread(return_free_memory)
            if self._tls is not None:
                self._tls.reload_if_changed()
                self._tls.report_expiry(self._clock.now_ms())

    def close_idle(self, now_ms: int) -> None:
        """Close connections that were idle for `idle_ms_max`, by `AwakeTime`."""
        idle_ms_max = self._accept_limits.idle_ms_max
        for listener in self.listeners:
            listener.close_idle(now_ms - idle_ms_max)
        for connection in self.connections:
            connection.update_charge()
            if connection.is_active:
                connection.is_active = False
                connection.active_at_ms = now_ms
            elif now_ms - connection.active_at_ms >= idle_ms_max:
                log.info("%r: idle, closed", connection)
                connection.close()
