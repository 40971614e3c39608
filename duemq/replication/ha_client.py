"""HA client: copies the log of a master into the store of this replica.

    connect --> report the log's end --> transfers --> MessageStore.append_raw --> report
       ^                                    |
       +------ 5 s after any failure -------+

To a report of 0, Apache's master answers with the last file of its log only. An empty replica
therefore reports the first offset of the master's log, and 1 if that is 0: the byte before it, the
first one of a record's size, is 0, as no record has 16 MiB.

With flushDiskType=SYNC_FLUSH a report is the log on the disk, else the log that was written.

Source: DefaultHAClient
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum

from duemq.net.client import split_address
from duemq.replication.config import ReplicationConfig
from duemq.replication.ha_frames import TransferStream
from duemq.replication.layout import REPORT
from message_store.clock import Clock
from message_store.errors import PeerError, ReplicationFault
from message_store.store import MessageStore

log = logging.getLogger(__name__)
RETRY_MS = 5_000
CONNECT_S_MAX = 5.0
RECEIVE_BYTES = 1 << 20
FIRST_BYTE = b"\0"


class HaState(Enum):
    """What the HA client does."""

    NO_MASTER = "no connection"
    CONNECTING = "connecting"
    TRANSFER = "transfer"
    STOPPED = "stopped"


class HaClient:
    """The connection of a replica to its master.

    Args:
        first_offset: Asks the master for the first offset of its log.
    Attributes:
        state: What it does now.
        master_offset: End of the master's log as far as known; None before the first transfer.
        failure: Why the last connection ended; empty while one is open.
        read_ms, written_ms: When bytes of the master came last, and when a report was sent last.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        clock: Clock,
        first_offset: Callable[[], Awaitable[int]],
    ) -> None:
        self._first_offset = first_offset
        self._store, self._config, self._clock = store, config, clock
        self._address = config.ha_master_address
        self._wake, self._stop = asyncio.Event(), asyncio.Event()
        self._buffer = bytearray(RECEIVE_BYTES)
        self._socket: socket.socket | None = None
        self._work: asyncio.Task[None] | None = None
        self.state = HaState.NO_MASTER
        self.master_offset: int | None = None
        self.failure = ""
        self.read_ms = self.written_ms = 0

    @property
    def address(self) -> str:
        """Replication address of the master, empty while none is known."""
        return self._address

    def follow(self, address: str) -> None:
        """Copy from this address from now on; an address in the configuration stays."""
        if address and not self._config.ha_master_address and address != self._address:
            self._address = address
            self._wake.set()
            if self._work is not None:
                self._work.cancel()

    async def run(self) -> None:
        """Copy until `stop`."""
        while not self._stop.is_set():
            self._wake.clear()
            if self._address:
                await self._attempt()
            until_ms = self._clock.now_ms() + RETRY_MS
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
        except (OSError, PeerError) as error:
            self._failed(error)
        finally:
            self._work.cancel()
            self._work = None
            self.state = HaState.NO_MASTER

    def _failed(self, error: Exception) -> None:
        why = str(error) or f"no answer ({type(error).__name__})"
        if why != self.failure:
            log.warning(
                "replication from %s: %s; trying again every %d s",
                self._address, why, RETRY_MS // 1_000,
            )  # fmt: skip
        self.failure = why

    async def _copy(self) -> None:
        host, port = split_address(self._address)
        loop = asyncio.get_running_loop()
        report, stream = await self._begin()
        [(family, kind, number, _, where), *_] = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )
        with socket.socket(family, kind, number) as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(CONNECT_S_MAX):
                await loop.sock_connect(connection, where)
            self._socket = connection
            reports = asyncio.create_task(self._report_when_idle())
            try:
                await self._receive(connection, report, stream)
            finally:
                reports.cancel()
                with suppress(asyncio.CancelledError):
                    await reports
                self._socket = None

    async def _begin(self) -> tuple[int, TransferStream]:
        """Return the first report of a connection, and what reads the transfers after it.

        Raises:
            PeerError: The first offset of the master's log is unknown.
        """
        end = self._store.max_offset
        if end:
            return end, TransferStream(end)
        if self._config.sync_from_last_file:
            return 0, TransferStream(None)
        first = await self._first_offset()
        if first:
            return first, TransferStream(first)
        return len(FIRST_BYTE), TransferStream(0, FIRST_BYTE)

    async def _receive(
        self, connection: socket.socket, report: int, stream: TransferStream
    ) -> None:
        loop = asyncio.get_running_loop()
        await self._send_report(report)
        self.state, self.failure = HaState.TRANSFER, ""
        log.info("replication from %s begins at log offset %d", self._address, stream.offset)
        view = memoryview(self._buffer)
        while True:
            async with asyncio.timeout(self._config.idle_ms_max / 1_000):
                size = await loop.sock_recv_into(connection, self._buffer)
            if not size:
                raise ConnectionResetError("the master closed the connection")
            self.read_ms = self._clock.now_ms()
            stream.feed(view[:size])
            taken = self._store.append_raw(stream.offset, stream.pending)
            stream.take(taken)
            if stream.is_idle and stream.pending.size:
                raise ReplicationFault(
                    f"the master's log ends inside the record at log offset {stream.offset}: its "
                    f"size was damaged on its way, or at the master (run duemq verify there)"
                )
            self.master_offset = stream.master_offset
            if taken:
                await self._report()

    async def _report(self) -> None:
        """Report the end of this log: on the disk with SYNC_FLUSH."""
        end = self._store.max_offset
        if not end:
            return  # a report of 0 is a request for the last file
        if self._store.config.sync_flush and self._store.durable_offset < end:
            self._store.when_confirmed(end, self._report_soon)
            return
        await self._send_report(end)

    def _report_soon(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().create_task(self._send_quietly())

    async def _send_quietly(self) -> None:
        with suppress(OSError):
            await self._send_report(self._store.durable_offset)

    async def _send_report(self, offset: int) -> None:
        if self._socket is not None:
            self.written_ms = self._clock.now_ms()
            await asyncio.get_running_loop().sock_sendall(self._socket, REPORT.pack(offset))

    async def _report_when_idle(self) -> None:
        never = asyncio.Event()
        while True:
            until_ms = self._clock.now_ms() + self._config.heartbeat_ms
            await self._clock.wait(never, until_ms=until_ms)
            await self._report()
