"""HA client: copies the log of a master into the store of this replica.

    connect --> first frame --> transfers --> MessageStore.append_raw --> report
       ^                            |
       +--- 5 s after a failure ----+

A `Session` is the framing of one connection: DefaultHA (`default_ha`) or, in controller mode,
AutoSwitchHA (`autoswitch_client`). A report names the end of the synced log with
flushDiskType=SYNC_FLUSH, else the end of the written log. The client reports nothing until the
master has sent the last record of this log again (`log_stream`).

Source: DefaultHAClient, AutoSwitchHAClient
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol

from duemq.configuration.replication_config import ReplicationConfig
from duemq.replication.autoswitch_frames import TruncationNeeded
from duemq.replication.log_stream import LogStream
from duemq_common.clock import Clock
from duemq_common.errors import PeerError, ReplicationFault
from duemq_common.host_port import split_address
from message_store.config import SYNC_FLUSH
from message_store.store import MessageStore

log = logging.getLogger(__name__)
RETRY_MS = 5_000
CONNECT_S_MAX = 5.0
FLUSH_S_MAX = 5.0
RECEIVE_BYTES = 1 << 20
HEARTBEATS_MAX = 2  # pauses without bytes from the master until it counts as silent


class Session(Protocol):
    """Framing of one connection to a master.

    Attributes:
        stream: Parser of the bytes that the master sends.
    """

    @property
    def stream(self) -> LogStream: ...

    def first_frame(self) -> bytes:
        """Return the first bytes to send."""
        ...

    def on_received(self) -> bytes:
        """Process what the stream has received; return the bytes to send.

        Called after each receive, before the received log is appended.

        Raises:
            OSError: A file that must be written before the log cannot be written.
        """
        ...

    def report(self, log_end: int) -> bytes:
        """Return the report of a log's end; empty: it cannot be reported now."""
        ...


OpenSession = Callable[[], Awaitable[Session]]
"""Creates the session of a new connection. Raises PeerError or OSError when a request fails."""


class HaState(Enum):
    """State of the HA client."""

    NO_MASTER = "no connection"
    CONNECTING = "connecting"
    TRANSFER = "transfer"
    TRUNCATION = "log to be truncated"
    STOPPED = "stopped"


class HaClient:
    """The connection of a replica to its master.

    Args:
        open_session: Creates the session of a new connection.
        on_truncation: Called with the log offset to which this log has to be truncated. The store
            must be closed for that; until then the client connects again after each `retry_ms`.
        retry_ms: Pause after a connection has failed, in ms.
    Attributes:
        state: Current state.
        master_offset: End of the master's log as far as known; None before the first transfer.
        failure: Reason why the last connection ended; empty while a connection is open.
        read_ms: Time of the last bytes from the master, in ms since the epoch; 0: none.
        written_ms: Time of the last bytes sent to the master, in ms since the epoch; 0: none.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        clock: Clock,
        open_session: OpenSession,
        on_truncation: Callable[[int], None] = lambda offset: None,
        *,
        retry_ms: int = RETRY_MS,
    ) -> None:
        self._retry_ms = retry_ms
        self._open_session, self._on_truncation = open_session, on_truncation
        self._store, self._config, self._clock = store, config, clock
        self._address = config.ha_master_address
        self._wake, self._stop = asyncio.Event(), asyncio.Event()
        self._buffer = bytearray(RECEIVE_BYTES)
        self._connection: tuple[socket.socket, Session] | None = None
        self._work: asyncio.Task[None] | None = None
        self.state = HaState.NO_MASTER
        self.master_offset: int | None = None
        self.failure = ""
        self.read_ms = self.written_ms = 0
        self._heard_ms = 0  # steady time of `read_ms`

    @property
    def address(self) -> str:
        """Replication address of the master, empty while none is known."""
        return self._address

    @property
    def is_receiving(self) -> bool:
        """Whether the connection is open, and the master was not silent for two heartbeats."""
        silent_ms = self._clock.steady_ms() - self._heard_ms
        is_silent = silent_ms > HEARTBEATS_MAX * self._config.heartbeat_ms
        return self.state is HaState.TRANSFER and not is_silent

    @property
    def is_end_known(self) -> bool:
        """Whether the master has sent the end of its log on this connection."""
        return self._connection is not None and self._connection[1].stream.is_end_known

    def follow(self, address: str) -> None:
        """Copy from this address from now on; haMasterAddress takes precedence over it."""
        if address and not self._config.ha_master_address and address != self._address:
            self._address = address
            self._wake.set()
            if self._work is not None:
                self._work.cancel()

    async def run(self) -> None:
        """Copy the master's log until `stop`; connect again after each failure."""
        while not self._stop.is_set():
            self._wake.clear()
            if self._address:
                await self._attempt()
            until_ms = self._clock.now_ms() + self._retry_ms
            await self._clock.wait(self._wake, until_ms=until_ms)
        self.state = HaState.STOPPED

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()
        self._wake.set()
        if self._work is not None:
            self._work.cancel()

    async def _attempt(self) -> None:
        """Copy over one connection until it ends."""
        self.state = HaState.CONNECTING
        self._work = asyncio.ensure_future(self._copy())
        try:
            await self._work
        except asyncio.CancelledError:
            if not (self._stop.is_set() or self._wake.is_set()):
                raise
            self.state = HaState.NO_MASTER
        except TruncationNeeded as needed:
            self.state = HaState.TRUNCATION
            self._failed(needed)
            self._on_truncation(needed.offset)
        except (OSError, PeerError) as error:
            self.state = HaState.NO_MASTER
            self._failed(error)
        finally:
            self._work.cancel()
            self._work = None

    def _failed(self, error: Exception) -> None:
        reason = str(error) or f"no response ({type(error).__name__})"
        if reason != self.failure:
            log.warning(
                "replication from %s: %s; trying again every %g s",
                self._address,
                reason,
                self._retry_ms / 1_000,
            )
        self.failure = reason

    async def _copy(self) -> None:
        try:
            host, port = split_address(self._address)
        except ValueError as error:  # a name server returned it
            raise PeerError(f"the replication port of the master is malformed: {error}") from None
        loop = asyncio.get_running_loop()
        end = self._store.max_offset
        if self._reports_durable and not await self._store.flusher.wait(end, FLUSH_S_MAX):
            raise OSError(
                f"this log is not synced up to offset {end} after {FLUSH_S_MAX:g} s "
                f"(flushDiskType=SYNC_FLUSH): check the disk of the store"
            )
        session = await self._open_session()
        [(family, kind, number, _, where), *_] = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )
        with socket.socket(family, kind, number) as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(CONNECT_S_MAX):
                await loop.sock_connect(connection, where)
            self._connection = connection, session
            await self._send(session.first_frame())
            reports = asyncio.create_task(self._report_when_idle())
            try:
                await self._receive(connection, session)
            finally:
                reports.cancel()
                with suppress(asyncio.CancelledError):
                    await reports
                self._connection = None

    async def _receive(self, connection: socket.socket, session: Session) -> None:
        stream = session.stream
        self.state, self.failure = HaState.TRANSFER, ""
        self._heard_ms = self._clock.steady_ms()
        log.info("replication from %s begins", self._address)
        view, was_compared = memoryview(self._buffer), stream.is_compared
        while True:
            try:
                size = await self._received(connection, is_partial=stream.is_partial)
                if not size:
                    raise ConnectionResetError("the master closed the connection")
            except OSError:
                self._append(stream)  # whole records of the last, incomplete transfer
                raise
            self.read_ms, self._heard_ms = self._clock.now_ms(), self._clock.steady_ms()
            stream.feed(view[:size])
            await self._send(session.on_received())
            if stream.is_partial:
                continue
            if self._append(stream) or stream.is_compared > was_compared:
                await self._report()
            was_compared = stream.is_compared

    async def _received(self, connection: socket.socket, *, is_partial: bool) -> int:
        """Receive into the buffer; return the number of bytes.

        Args:
            is_partial: Whether a transfer is in progress; bytes of it that have arrived are then
                received without a turn of the event loop.

        Raises:
            TimeoutError: No byte arrived within haHousekeepingInterval.
            OSError: The connection was lost.
        """
        if is_partial:
            with suppress(BlockingIOError):
                return connection.recv_into(self._buffer)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.idle_ms_max / 1_000):
                while True:
                    await _readable(connection)
                    with suppress(BlockingIOError):
                        return connection.recv_into(self._buffer)
        with suppress(BlockingIOError):  # a late loop has not read what arrived before its timeout
            return connection.recv_into(self._buffer)
        raise TimeoutError

    def _append(self, stream: LogStream) -> int:
        """Append the whole records received so far; return their size in bytes.

        Raises:
            OSError: The log cannot be written.
            ReplicationFault: The received bytes are not a valid log.
        """
        taken = self._store.append_raw(stream.offset, stream.pending)
        stream.take(taken)
        if stream.is_idle and stream.pending.size:
            raise ReplicationFault(
                f"the master's log ends inside the record at log offset {stream.offset}: its "
                f"size was damaged on the network or at the master (run duemq store verify there)"
            )
        self.master_offset = stream.master_offset
        return taken

    @property
    def _reports_durable(self) -> bool:
        return self._store.config.flush_disk_type == SYNC_FLUSH

    async def _report(self) -> None:
        """Report the end of this log; with SYNC_FLUSH, as soon as it is synced."""
        end = self._store.max_offset
        if self._reports_durable and self._store.durable_offset < end:
            self._store.flusher.when_durable(end, self._report_soon)
            return
        await self._send_report(end)

    def _report_soon(self) -> None:
        if self._connection is not None:
            asyncio.get_running_loop().create_task(self._send_quietly())

    async def _send_quietly(self) -> None:
        with suppress(OSError):
            await self._send_report(self._store.durable_offset)

    async def _send_report(self, log_end: int) -> None:
        if self._connection is not None and self._connection[1].stream.is_compared:
            await self._send(self._connection[1].report(log_end))

    async def _send(self, data: bytes) -> None:
        if data and self._connection is not None:
            self.written_ms = self._clock.now_ms()
            await asyncio.get_running_loop().sock_sendall(self._connection[0], data)

    async def _report_when_idle(self) -> None:
        never = asyncio.Event()
        while True:
            until_ms = self._clock.now_ms() + self._config.heartbeat_ms
            await self._clock.wait(never, until_ms=until_ms)
            await self._report()


async def _readable(connection: socket.socket) -> None:
    """Wait until a socket has bytes, or has ended."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
