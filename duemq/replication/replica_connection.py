"""One replica's connection to this master: reports in, log out.

    readable socket --> MasterProtocol.receive --> report --> InSyncReplicas
    log grew ---------> views of the mapped log, each with a header --sendmsg--> replica

Nothing is copied into this process's memory: what the socket does not take stays in the log. A
short range is sent on the event loop; a long one is read by a thread, as its pages may have to come
from the disk.

If messages wait for replicas, what was appended is sent at once. Otherwise it is collected for a
few milliseconds: fewer and larger transfers cost both sides less.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from duemq.replication.master_protocol import MasterProtocol
from message_store.clock import Clock, Signal
from message_store.errors import ReplicationFault
from message_store.store import MessageStore

RECEIVE_BYTES: Final = 4_096
ROUND_BYTES: Final = 2 << 20  # of the log, in one call of sendmsg
ROUND_TRANSFERS: Final = 128
LOOP_BYTES: Final = 1 << 20  # a longer range is sent by a thread
COLLECT_MS: Final = 5  # between two transfers that no message waits for
RATE_MS: Final = 1_000
NEWS_MS: Final = 100  # until a replica without new log is sent a new confirm offset
Parts = list[memoryview | bytes]


class ReplicaConnection:
    """A connection; `run` serves it until it ends.

    Args:
        connection: Connected, not blocking; closed by `run`.
        address: `host:port` of the replica.
        transfer_bytes: Maximum bytes of log in one transfer.
        heartbeat_ms: Pause after which an idle connection gets a heartbeat.
        idle_ms: Time without a report after which the connection ends.
        on_report: Called after each report.
    Attributes:
        protocol: What the replica reported.
        offset: Log offset of the next transfer, None before the first report.
        reported_ms: When the replica reported last, ms since 1970.
        transferred: Bytes that the socket took, headers included.
    """

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        store: MessageStore,
        protocol: MasterProtocol,
        clock: Clock,
        *,
        transfer_bytes: int,
        heartbeat_ms: int,
        idle_ms: int,
        on_report: Callable[[], None],
        bulk: Executor,
    ) -> None:
        self.address, self.protocol = address, protocol
        self._socket, self._store, self._clock = connection, store, clock
        self._transfer_bytes, self._bulk = transfer_bytes, bulk
        self._heartbeat_ms, self._idle_ms, self._on_report = heartbeat_ms, idle_ms, on_report
        self._grown, self._never = Signal(), Signal()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.offset: int | None = None
        self.reported_ms = clock.now_ms()
        self._read_ms = self._written_ms = self._sent_ms = clock.steady_ms()
        self.transferred = 0
        self._rate = self._read_ms, 0, 0  # since when, bytes before that, bytes per second before

    @property
    def acknowledged(self) -> int | None:
        """End of the replica's log as it reported last, None before its first report."""
        return self.protocol.acknowledged if self.protocol.start is not None else None

    @property
    def replica_id(self) -> int | None:
        """Id of the replica; None before the handshake, and in DefaultHA."""
        return self.protocol.replica_id

    @property
    def is_learner(self) -> bool:
        """Whether the replica never joins the sync state set."""
        return self.protocol.is_learner

    def bytes_per_s(self) -> int:
        """Return the bytes per second since this was asked last, a second ago or more."""
        now_ms, (since_ms, before, rate) = self._clock.steady_ms(), self._rate
        if now_ms - since_ms >= RATE_MS:
            rate = (self.transferred - before) * 1_000 // (now_ms - since_ms)
            self._rate = now_ms, self.transferred, rate
        return rate

    def log_grew(self) -> None:
        """Send what was appended."""
        self._grown.set()

    async def run(self) -> None:
        """Serve the replica until the connection ends.

        Raises:
            OSError: It was lost.
            PeerError: The replica sends what cannot be, or nothing for too long.
            StoreError: The log cannot be read where the replica continues.
        """
        loop = asyncio.get_running_loop()
        with self._socket:
            loop.add_reader(self._socket, self._on_readable)
            transfers = asyncio.create_task(self._transfer(), name=f"transfers to {self.address}")
            try:
                await asyncio.wait({transfers, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_reader(self._socket)
                transfers.cancel()
                with suppress(asyncio.CancelledError):
                    await transfers
                if self._ended.done():
                    self._ended.exception()  # retrieved, whatever the transfers raise
            if self._ended.done():
                self._ended.result()

    # -- reports --------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Take one piece, so that a replica that sends without a pause leaves room for others."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the replica closed the connection")
            self.reported_ms, self._read_ms = self._clock.now_ms(), self._clock.steady_ms()
            self.protocol.receive(data, self._store.max_offset)
        except BlockingIOError:
            return
        except (OSError, ReplicationFault) as error:
            asyncio.get_running_loop().remove_reader(self._socket)
            if not self._ended.done():
                self._ended.set_exception(error)
            return
        if self.offset is None:
            self._grown.set()  # there may be an answer to send
        self._on_report()

    # -- transfers ------------------------------------------------------------------------------

    async def _transfer(self) -> None:
        while True:
            self._grown.clear()
            if answers := self.protocol.data_to_send():
                await self._send([answers], on_loop=True)
            if self.offset is None and self.protocol.start is not None:
                self.offset = self._first_offset(self.protocol.start)
            if self.offset is None:
                await self._wait(self._grown, self._left_ms)
            elif self.offset < self._store.transfer_end:
                await self._collect(self.offset)
                await self._send_log(self.offset)
            elif (idle_ms := self._clock.steady_ms() - self._written_ms) >= self._header_pause_ms:
                await self._send([self.protocol.transfer_header(self.offset, 0)], on_loop=True)
            else:
                if self.offset < (end := self._store.max_offset):  # with SYNC_FLUSH
                    self._store.flusher.when_durable(end, self._grown.set)
                pause_ms = min(self._heartbeat_ms - idle_ms, self._left_ms)
                if self.protocol.expects_news(self.offset):
                    pause_ms = min(pause_ms, NEWS_MS)
                await self._wait(self._grown, pause_ms)
            self._check_silent()

    @property
    def _header_pause_ms(self) -> int:
        """Pause after which an idle connection is sent a header without log."""
        return NEWS_MS if self.protocol.has_news() else self._heartbeat_ms

    async def _collect(self, start: int) -> None:
        """Wait until the next transfer from `start` is worthwhile."""
        store, since_ms = self._store, self._clock.steady_ms() - self._sent_ms
        is_short = store.transfer_end - start < LOOP_BYTES
        if is_short and since_ms < COLLECT_MS and not store.replicated.required:
            await self._wait(self._never, COLLECT_MS - since_ms)

    def _first_offset(self, start: int) -> int:
        """Return where the transfers begin for a replica that asked for `start`.

        Raises:
            ReplicationFault: Retention has removed that part of the log.
        """
        first = self._store.min_offset
        if not start:
            return first
        if start < first:
            raise ReplicationFault(
                f"the replica's log ends at {start}, before this log begins ({first}): the files "
                f"between them have expired. Empty the replica's store to copy the log again"
            )
        return start

    async def _send_log(self, start: int) -> None:
        """Send a part of the log from `start` on, as several transfers."""
        parts, end = self._next_round(start)
        self.offset, self._sent_ms = end, self._clock.steady_ms()
        await self._send(parts, on_loop=end - start <= LOOP_BYTES)

    def _next_round(self, start: int) -> tuple[Parts, int]:
        """Return headers and views of the log from `start` on, and where the last one ends."""
        log, protocol = self._store.log, self.protocol
        limit = min(self._store.transfer_end, start + ROUND_BYTES)
        parts: Parts = []
        at = start
        while at < limit and len(parts) < 2 * ROUND_TRANSFERS:
            file_end = at - at % log.file_bytes + log.file_bytes
            end = protocol.transfer_end(at, min(limit, file_end, at + self._transfer_bytes))
            parts += protocol.transfer_header(at, end - at), log.view(at, end - at).data
            at = end
        log.unreadable.check(start, at - start)
        return parts, at

    async def _send(self, parts: Parts, *, on_loop: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if on_loop:
                parts = self._send_now(parts)
            else:
                sending = loop.run_in_executor(self._bulk, self._send_now, parts)
                try:
                    parts = await asyncio.shield(sending)
                except asyncio.CancelledError:
                    await asyncio.wait({sending})  # the socket is closed after that
                    raise
            if not parts:
                self._written_ms = self._clock.steady_ms()
                return
            await self._wait_writable()

    def _send_now(self, parts: Parts) -> Parts:
        """Send as much as the socket takes; return the rest. Any thread may call it."""
        while parts:
            try:
                sent = self._socket.sendmsg(parts)
            except BlockingIOError:
                break
            self.transferred += sent
            parts = _rest(parts, sent)
        return parts

    async def _wait_writable(self) -> None:
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._socket, writable.set)
        try:
            await self._wait(writable, self._left_ms)
        finally:
            loop.remove_writer(self._socket)
        self._check_silent()

    # -- time -----------------------------------------------------------------------------------

    async def _wait(self, event: asyncio.Event, duration_ms: int) -> None:
        """Wait for an event, or so long; less if the clock is set meanwhile."""
        await self._clock.wait(event, until_ms=self._clock.now_ms() + duration_ms)

    @property
    def _left_ms(self) -> int:
        """Time that the replica has for its next report."""
        return self._idle_ms - (self._clock.steady_ms() - self._read_ms)

    def _check_silent(self) -> None:
        if self._left_ms <= 0:
            raise ReplicationFault(f"no report in {self._idle_ms} ms (haHousekeepingInterval)")


def _rest(parts: Sequence[memoryview | bytes], sent: int) -> Parts:
    """Return what follows the first `sent` bytes of these parts."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []
