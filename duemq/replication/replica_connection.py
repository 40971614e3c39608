"""Connection of one replica to this master: receives reports, sends log.

    readable socket --> MasterProtocol.receive --> report --> InSyncReplicas
    log grew ---------> views of the mapped log, each with a header --sendmsg--> replica

Log bytes are sent from the mapped log files and are not copied into the process's memory. A short
range is sent on the event loop, a long one by a thread: its pages may have to be read from disk.

If messages wait for replicas, appended log is sent at once. Otherwise it is collected for
`COLLECT_MS`: fewer and larger transfers cost less CPU time on both sides.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from duemq.replication.master_protocol import MasterProtocol
from duemq_common.clock import Clock, Signal
from duemq_common.errors import ReplicationFault
from message_store.store import MessageStore

RECEIVE_BYTES: Final = 4_096
ROUND_BYTES: Final = 2 << 20  # bytes of log in one call of sendmsg
ROUND_TRANSFERS: Final = 128  # transfers in one call of sendmsg
LOOP_BYTES: Final = 1 << 20  # a longer range is sent by a thread
COLLECT_MS: Final = 5  # between two transfers while no message waits for replicas
RATE_MS: Final = 1_000
CONFIRM_MS: Final = 100  # pause after which an idle replica is sent a new confirm offset
Buffers = list[memoryview | bytes]


class ReplicaConnection:
    """Connection of a replica; `run` serves it until it ends.

    Args:
        connection: Connected, non-blocking socket; closed by `run`.
        address: `host:port` of the replica.
        protocol: Framing of the connection.
        transfer_bytes: Maximum bytes of log in one transfer.
        heartbeat_ms: Pause in ms after which an idle connection is sent a heartbeat.
        idle_ms: Time in ms without a report after which the connection is closed.
        on_report: Called after each receive.
        bulk: Threads that send long ranges.
    Attributes:
        offset: Log offset of the next transfer; None before the first report.
        reported_ms: Time of the last bytes from the replica, in ms since the epoch.
        transferred: Bytes that the socket accepted, headers included.
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
        self._rate = self._read_ms, 0, 0  # start of the period, bytes until then, bytes/s before it

    @property
    def acknowledged(self) -> int | None:
        """End of the replica's log in its last report; None before its first report."""
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
        """Return the bytes sent per second, in the last period of at least `RATE_MS`."""
        now_ms, (since_ms, before, rate) = self._clock.steady_ms(), self._rate
        if now_ms - since_ms >= RATE_MS:
            rate = (self.transferred - before) * 1_000 // (now_ms - since_ms)
            self._rate = now_ms, self.transferred, rate
        return rate

    def log_grew(self) -> None:
        """Send the appended log; called after each append."""
        self._grown.set()

    async def run(self) -> None:
        """Serve the replica until the connection ends.

        Raises:
            OSError: The connection was lost.
            PeerError: The replica sent an invalid frame, or no report within `idle_ms`.
            StoreError: The log cannot be read at the replica's offset.
        """
        loop = asyncio.get_running_loop()
        with self._socket:
            loop.add_reader(self._socket, self._on_readable)
            transfers = asyncio.create_task(self._transfer(), name=f"transfers to {self.address}")
            try:
                await asyncio.wait({transfers, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_reader(self._socket)
                if self._ended.done():
                    self._ended.exception()  # retrieved, because the transfers may raise, too
                transfers.cancel()
                with suppress(asyncio.CancelledError):
                    await transfers
            if self._ended.done():
                self._ended.result()

    # -- reports --------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Receive at most `RECEIVE_BYTES`, so that one replica cannot block the event loop."""
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
            self._grown.set()  # `_transfer` may have a response to send
        self._on_report()

    # -- transfers ------------------------------------------------------------------------------

    async def _transfer(self) -> None:
        while True:
            self._grown.clear()
            if responses := self.protocol.data_to_send():
                await self._send([responses], on_loop=True)
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
                if self.protocol.awaits_confirmation(self.offset):
                    pause_ms = min(pause_ms, CONFIRM_MS)
                await self._wait(self._grown, pause_ms)
            self._check_silent()

    @property
    def _header_pause_ms(self) -> int:
        """Pause in ms after which an idle connection is sent a header without log."""
        return CONFIRM_MS if self.protocol.has_new_confirm_offset() else self._heartbeat_ms

    async def _collect(self, start: int) -> None:
        """Wait while more log may be collected for the next transfer from `start`."""
        store, since_ms = self._store, self._clock.steady_ms() - self._sent_ms
        is_short = store.transfer_end - start < LOOP_BYTES
        if is_short and since_ms < COLLECT_MS and not store.replicated.required:
            await self._wait(self._never, COLLECT_MS - since_ms)

    def _first_offset(self, start: int) -> int:
        """Return the log offset of the first transfer to a replica that requested `start`.

        Raises:
            ReplicationFault: Retention has removed the log at `start`.
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
        buffers, end = self._next_round(start)
        self.offset, self._sent_ms = end, self._clock.steady_ms()
        await self._send(buffers, on_loop=end - start <= LOOP_BYTES)

    def _next_round(self, start: int) -> tuple[Buffers, int]:
        """Return headers and views of the log from `start` on, and the end of the last view."""
        store, protocol = self._store, self.protocol
        file_bytes = store.config.commitlog_file_bytes
        limit = min(self._store.transfer_end, start + ROUND_BYTES)
        buffers: Buffers = []
        position = start
        while position < limit and len(buffers) < 2 * ROUND_TRANSFERS:
            file_end = position - position % file_bytes + file_bytes
            end = protocol.transfer_end(
                position, min(limit, file_end, position + self._transfer_bytes)
            )
            buffers += (
                protocol.transfer_header(position, end - position),
                store.log_view(position, end - position).data,
            )
            position = end
        store.unreadable.check(start, position - start)
        return buffers, position

    async def _send(self, buffers: Buffers, *, on_loop: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if on_loop:
                buffers = self._send_now(buffers)
            else:
                sending = loop.run_in_executor(self._bulk, self._send_now, buffers)
                try:
                    await asyncio.wait({sending})
                except asyncio.CancelledError:
                    await asyncio.wait({sending})  # `run` closes the socket after this
                    sending.exception()  # retrieved: the connection has ended for another reason
                    raise
                buffers = sending.result()
            if not buffers:
                self._written_ms = self._clock.steady_ms()
                return
            await self._wait_writable()

    def _send_now(self, buffers: Buffers) -> Buffers:
        """Send as much as the socket accepts; return the rest. Any thread may call it."""
        while buffers:
            try:
                sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                break
            self.transferred += sent
            buffers = _rest(buffers, sent)
        return buffers

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
        """Wait for an event, at most `duration_ms`; less if the wall clock is set forward."""
        await self._clock.wait(event, until_ms=self._clock.now_ms() + duration_ms)

    @property
    def _left_ms(self) -> int:
        """Time in ms until the replica must have sent its next report."""
        return self._idle_ms - (self._clock.steady_ms() - self._read_ms)

    def _check_silent(self) -> None:
        if self._left_ms <= 0:
            self._on_readable()  # after a stall, its reports have arrived, but were not read
        if self._left_ms <= 0 and not self._ended.done():
            raise ReplicationFault(f"no report in {self._idle_ms} ms (haHousekeepingInterval)")


def _rest(buffers: Sequence[memoryview | bytes], sent: int) -> Buffers:
    """Return the bytes after the first `sent` bytes of these buffers."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []
