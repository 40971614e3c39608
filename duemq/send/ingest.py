"""Ingest of sends: all connections of one loop turn, one batch, one append.

    loop turn     sockets --> receive buffers --> ready()          (one call_soon for all)
    next turn     per connection: kernel: frames --> PUT and WIRE rows
                                  a frame it leaves: decoded here, a send fills the same batch
                  put hooks, append                                (once)
                  kernel: rows --> answers                         (once), one write per connection

A turn's rows are in the order of their frames, connection after connection: messages of a
connection are appended in the order they were sent, whichever way they went. While too many answers
wait for the disk, turns wait as well, which makes the next batch bigger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from delivery.plugin import Request
from duemq.net import codec
from duemq.net.codes import RequestCode
from duemq.net.connection import Connection
from duemq.net.fair_queue import FairQueue
from duemq.net.layout import PREFIX_BYTES
from duemq.net.notices import Notices
from duemq.send import layout
from duemq.send.answers import Answering, PlainAnswer, PlainSend, SendMeter, SendSettings
from duemq.send.grants import Grants, SendAccess
from duemq.send.kernels.ingest import take_sends
from duemq.send.put_path import PutPath
from message_store.clock import SystemClock
from message_store.errors import FrameError
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import entry
from message_store.kernels.preparation import Preparation
from message_store.log.batch import PutBatch
from message_store.log.properties import PROPERTIES_BYTES_MAX
from message_store.queues.topic_table import TopicArrays, TopicTable

log = logging.getLogger(__name__)
SEND_CODES: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
KERNELS: Final = "ingest"
ROWS_MAX: Final = 1_024  # of one batch; a client's own batch may be bigger
PLAIN_FRAMES_MAX: Final = 64  # of one connection in one turn
TAKEN_UNTIMED: Final = 4  # connections handled between two readings of the time
TURN_S: Final = 0.005  # of taking frames, and of handling requests
STAGING_BYTES: Final = 1 << 20
STAGING_BYTES_KEPT: Final = 8 << 20
WAITING_BYTES_MAX: Final = 1 << 20  # received while its turn waits; beyond: reading pauses


class NotYet(Exception):
    """A send must wait: await `prepare()`, which may raise RequestError, then fill again."""

    def __init__(self, prepare: Callable[[], Awaitable[None]]) -> None:
        self.prepare = prepare
        super().__init__("a send must wait")


class PlainSender(Protocol):
    """Ingest of frames that the kernel leaves to Python."""

    def accepts(self) -> bool:
        """Return whether sends are accepted now; if not, `fill` raises the reason."""
        ...

    def fill(self, request: Request, born_host: tuple[bytes, int], batch: PutBatch) -> PlainSend:
        """Add the request's messages to `batch`.

        Raises:
            RequestError: It is refused.
            NotYet: Something must be awaited first.
        """
        ...


class FrameRuns(Protocol):
    """Takes the requests of some codes together, once per turn, as `Ingest` does with sends."""

    @property
    def codes(self) -> frozenset[int]: ...

    def begin(self) -> None:
        """Note that a turn begins."""
        ...

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> bool:
        """Take a decoded request; return False if its handler must."""
        ...

    def take_alike(self, connection: Connection) -> bool:
        """Take frames of `connection.received` that need no decoding; return whether it did."""
        ...

    def finish(self) -> None:
        """Handle what the turn took."""
        ...

    async def drain(self) -> None:
        """Return when every response is sent."""
        ...


class Ingest:
    """Takes the frames of all connections once per turn of the event loop (a `FrameTaker`)."""

    def __init__(
        self,
        path: PutPath,
        topics: TopicTable,
        sender: PlainSender,
        settings: SendSettings,
        meter: SendMeter | None = None,
        *,
        access: SendAccess | None = None,
        time_s: Callable[[], float] | None = None,
        kernels: Preparation | None = None,
        runs: FrameRuns | None = None,
    ) -> None:
        self._kernels, self._runs = kernels or Preparation(), runs
        self._path, self._topics, self._sender = path, topics, sender
        self._settings, self._access = settings, access
        self._grants = Grants(access, topics)
        self._answering = Answering(
            path.store, topics, settings, self._schedule, meter, is_ready=self._is_ready
        )
        self._no_topics = TopicTable()
        self._arrays: TopicArrays | None = None  # those in `_names`
        self._ready: list[Connection] = []
        self._scheduled = False
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._in_turn: list[Connection] = []
        self._asked: FairQueue[Connection, tuple[Request, int]] = FairQueue()  # no sends
        self._lost: list[tuple[Connection, FrameError]] = []
        self._overran = self._light_first = False
        self._time_s = time_s or SystemClock().monotonic_s
        self._failed = Notices(log, logging.ERROR)
        self._suffix = np.frombuffer(settings.suffix, np.uint8).copy()
        self._turn = np.zeros(1, layout.TURN)
        self._turn["home"] = layout.host_column(*settings.store_host)
        self._state: npt.NDArray[np.int64] = self._turn["state"][0]
        self._numbers = self._state.data  # the same: quicker for single numbers
        self._take_sends: Callable[..., tuple[int, int]] | None = None
        self._state[layout.STATE_FRAME_MAX] = settings.frame_bytes_max
        self._state[layout.STATE_BODY_MAX] = settings.body_bytes_max
        self._state[layout.STATE_PROPERTIES_MAX] = PROPERTIES_BYTES_MAX
        self._new_batch()

    # Turns.

    def ready(self, connection: Connection) -> None:
        """Note that `connection.received` has grown."""
        if not connection.in_turn:
            connection.in_turn = True
            self._ready.append(connection)
            self._schedule()
        elif len(connection.received) > WAITING_BYTES_MAX:
            connection.pause()

    def _schedule(self) -> None:
        if self._scheduled or not (self._ready or self._asked.queues or self._lost):
            return
        if self._asked.queues or not self._answering.is_behind:
            self._scheduled = True
            if self._call_soon is None:
                self._call_soon = asyncio.get_running_loop().call_soon
            self._call_soon(self.run_turn)

    def run_turn(self) -> None:
        """Handle the frames of the connections that are ready.

        After `TURN_S` the rest is left to the next turn: the loop reads and writes in between.
        """
        self._scheduled = False
        if not self._answering.is_behind:
            if self._ready:
                self._answering.begin()
                if self._runs is not None:
                    self._runs.begin()
                self._use_topics()
                self._take_ready(self._time_s() + TURN_S)
            self._finish()
            if self._runs is not None:
                self._runs.finish()
        if self._asked.queues:
            end_s = self._time_s() + TURN_S
            while self._asked:
                connection, (request, serialize_type) = self._asked.pop()
                connection.dispatch(request, serialize_type)
                if self._time_s() > end_s:
                    break
        if self._lost:
            self._lose()
        if self._ready or self._asked.queues or self._lost:
            self._schedule()

    def _take_ready(self, end_s: float) -> None:
        ready, self._ready = self._ready, []
        if self._overran:  # those with little to take go first, every other time
            self._light_first = not self._light_first
            if self._light_first:
                ready.sort(key=_waiting_bytes)
        self._overran = False
        asked = set(self._asked.queues) if self._asked.queues else None
        for index, connection in enumerate(ready, 1):
            if asked and connection in asked:  # its earlier requests come first
                self._ready.append(connection)
                continue
            connection.in_turn = False
            if connection.writes_stalled and not connection.closed:
                continue  # it is ready again when its peer has read
            try:
                self._take(connection, end_s)
                if not connection.in_turn:
                    connection.taken()
            except FrameError as error:
                self._lost.append((connection, error))
            except Exception as error:
                self._failed("%r: its frames failed; closed", connection, exc_info=error)
                connection.close()
            if index % TAKEN_UNTIMED == 0 and index < len(ready) and self._time_s() > end_s:
                self._overran = True
                self._ready = ready[index:] + self._ready
                return

    def _lose(self) -> None:
        """Close connections with a broken frame, after the answers to what came before it."""
        lost, self._lost = self._lost, []
        for connection, why in lost:
            if connection in self._asked:
                self._lost.append((connection, why))
            else:
                connection.lose(why)

    async def drain(self) -> None:
        """Handle what was received, and wait until every response is sent."""
        self.run_turn()
        while self._ready or self._asked or self._lost:
            await self._answering.drain()
            self.run_turn()
        await self._answering.drain()
        if self._runs is not None:
            await self._runs.drain()

    # Frames to rows.

    def _take(self, connection: Connection, end_s: float) -> None:
        received = connection.received
        if connection.sender is None:
            connection.sender = self._grants.sender(connection.born_host)
        self._enter(connection)
        if connection.waited:
            self._take_waited(connection)
        take = self._take_sends or self._find_take_sends(connection)
        plain_left = PLAIN_FRAMES_MAX
        while not connection.closed and not connection.in_turn:
            stop, pos = take(
                received.data, received.start, received.end,
                self._grants.record(connection.sender), self._into, self._names,
            )  # fmt: skip
            received.take(pos)
            if stop == layout.STOP_INCOMPLETE:
                return
            if stop == layout.STOP_FULL:
                self._make_room(connection)
                if self._time_s() > end_s:
                    self._again(connection)
            elif stop == layout.STOP_BROKEN:
                self._broken(connection)
            elif self._runs is not None and self._runs.take_alike(connection):
                if self._time_s() > end_s:
                    self._again(connection)
            else:
                self._plain_frame(connection)
                plain_left -= 1
                if not plain_left:
                    self._again(connection)

    def _again(self, connection: Connection) -> None:
        """Leave the rest of what a connection sent to the next turn."""
        if not connection.in_turn:
            connection.in_turn = self._overran = True
            self._ready.append(connection)

    def _find_take_sends(self, connection: Connection) -> Callable[..., tuple[int, int]]:
        """Find the kernel for arrays as they always are here and in `ReceiveBuffer`.

        While it is compiled, every frame is decoded here.
        """
        if not self._is_ready():
            return self._take_none
        data, sender = connection.received.data, self._grants.record(connection.sender)
        find: Callable[..., Any] = entry
        found: Callable[..., tuple[int, int]] = find(
            take_sends, data, 0, 0, sender, self._into, self._names
        )
        self._take_sends = found
        return found

    def _is_ready(self) -> bool:
        return self._kernels.is_ready(KERNELS)

    def _take_none(self, data: Bytes, pos: int, end: int, *others: object) -> tuple[int, int]:
        """Take no frame, as `take_sends` if all were for the plain way."""
        try:
            frame = codec.next_frame(data.data, pos, end, bytes_max=self._settings.frame_bytes_max)
        except FrameError:
            return layout.STOP_BROKEN, pos
        if frame is None:
            return layout.STOP_INCOMPLETE, pos
        self._state[layout.STATE_FRAME_END] = frame.end
        return layout.STOP_PLAIN, pos

    def _use_topics(self) -> None:
        """Have the kernel see the topics as they are now.

        It sees none, so that every send is decoded, while sends are not accepted.
        """
        arrays = (self._topics if self._sender.accepts() else self._no_topics).arrays
        if arrays is not self._arrays:  # they are replaced when the table grows
            self._arrays = arrays
            self._names = (arrays.topics, arrays.names, arrays.table)

    def _take_waited(self, connection: Connection) -> None:
        """Handle the frame at which a connection waited: its response may have to wait, too."""
        received = connection.received
        frame = codec.next_frame(received.view, received.start, received.end)
        connection.waited = False
        if frame is not None and not connection.closed:
            self._state[layout.STATE_FRAME_END] = frame.end
            self._plain_frame(connection)

    def _enter(self, connection: Connection) -> None:
        """Make `connection` the one that rows belong to."""
        if len(self._in_turn) == layout.CONNECTIONS_MAX:
            self._finish()
        self._numbers[layout.STATE_CONNECTION] = len(self._in_turn)
        self._in_turn.append(connection)

    def _broken(self, connection: Connection) -> None:
        """Raise the error of a malformed frame, by decoding it with the codec."""
        received, bytes_max = connection.received, self._settings.frame_bytes_max
        codec.next_frame(received.view, received.start, received.end, bytes_max=bytes_max)
        raise AssertionError("the kernel and the codec disagree about a frame")

    def _make_room(self, connection: Connection) -> None:
        """Put the rows of the batch; if it is empty, grow it for this frame."""
        state = self._state
        if state[layout.STATE_ROWS]:
            self._finish()
            self._enter(connection)
            return
        size = int(state[layout.STATE_FRAME_END]) - connection.received.start
        self._batch.reserve(1, size + self._suffix.size + 1)
        self._use_batch()

    def _plain_frame(self, connection: Connection) -> None:
        """Decode one frame; a send goes into the batch, all else to its handler.

        If a send must wait, its frame stays where it is, and the connection is in a turn until
        `_prepare` ends it.
        """
        received, end = connection.received, int(self._state[layout.STATE_FRAME_END])
        frame = codec.next_frame(received.view, received.start, end)
        assert frame is not None
        command = codec.decode_frame(received.view, frame)
        if isinstance(command, Request) and command.code in SEND_CODES:
            try:
                self._plain_send(connection, command, frame.serialize_type)
            except NotYet as wait:
                connection.in_turn = True
                connection.spawn(self._prepare(connection, command, frame, wait))
                return
        elif isinstance(command, Request):
            if not self._take_run(connection, command, frame):
                self._asked.add(connection, (command, frame.serialize_type))
        else:
            connection.dispatch(command, frame.serialize_type)
        received.take(end)

    def _take_run(self, connection: Connection, request: Request, frame: codec.Frame) -> bool:
        """Have a request handled together with others of its code; return whether it is."""
        if self._runs is None or request.code not in self._runs.codes:
            return False
        start = frame.header_start - PREFIX_BYTES
        data = bytes(connection.received.view[start : frame.end])
        return self._runs.take(connection, request, frame.serialize_type, data)

    def _plain_send(self, connection: Connection, request: Request, serialize_type: int) -> None:
        request.peer = connection
        batch = self._batch
        self._to_batch()
        count, staged = batch.count, batch.staging_len
        try:
            if self._access is not None:
                self._access(request)
            send = self._sender.fill(request, connection.born_host, batch)
        except Exception as error:
            batch.count, batch.staging_len = count, staged
            self._use_batch()
            if isinstance(error, NotYet):
                raise
            refusal = self._answering.refusal(error, request)
            connection.respond(request, refusal, serialize_type)
            return
        self._use_batch()
        if self._access is not None and self._is_ready():
            self._grants.extend(connection.sender, request)
        lines = self._wire[send.first : send.first + send.count]
        lines["connection"] = self._state[layout.STATE_CONNECTION]
        lines["flags"] = layout.WIRE_PLAIN
        self._answering.plain.append(PlainAnswer(connection, request, serialize_type, send))

    async def _prepare(
        self, connection: Connection, request: Request, frame: codec.Frame, wait: NotYet
    ) -> None:
        """Await the preparation of a connection's next send; if that fails, refuse the send."""
        try:
            await wait.prepare()
            connection.waited = True
        except Exception as error:
            refusal = self._answering.refusal(error, request)
            received = connection.received
            frame_bytes = frame.end - frame.header_start + PREFIX_BYTES
            if not connection.closed:
                received.take(received.start + frame_bytes)
            connection.respond(request, refusal, frame.serialize_type)
        connection.in_turn = False
        self.ready(connection)

    # The batch.

    def _new_batch(self) -> None:
        self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)
        self._wire: npt.NDArray[Any] = np.zeros(0, layout.WIRE)
        self._use_batch()

    def _use_batch(self) -> None:
        """Have the kernels write into the batch as it is now: Python may have grown it."""
        batch = self._batch
        if self._wire.size != batch.rows.size:
            wire = np.zeros(batch.rows.size, layout.WIRE)
            wire[: self._wire.size] = self._wire
            self._wire = wire
            self._answering.use(wire.size)
        self._state[layout.STATE_ROWS] = batch.count
        self._state[layout.STATE_STAGED] = batch.staging_len
        self._into = (batch.rows, self._wire, batch.staging, self._suffix, self._turn)

    def _to_batch(self) -> None:
        self._batch.count = self._numbers[layout.STATE_ROWS]
        self._batch.staging_len = self._numbers[layout.STATE_STAGED]

    def _finish(self) -> None:
        """Append the batch, answer it, and begin the next; no batch is ever put twice."""
        self._to_batch()
        batch, connections = self._batch, self._in_turn
        self._in_turn = []
        if not batch.count:
            return
        answered = False
        try:
            self._path.put(batch)
            self._answering.answer(batch, self._wire, connections)
            answered = True
        except Exception:
            log.exception("the answers to %d messages failed; connections closed", batch.count)
            for connection in connections:
                connection.close()
        finally:
            if not answered:
                self._answering.plain.clear()
            large = batch.rows.size > ROWS_MAX or batch.staging.size > STAGING_BYTES_KEPT
            if large or not answered:
                self._new_batch()
            else:
                batch.clear()
                self._numbers[layout.STATE_ROWS] = self._numbers[layout.STATE_STAGED] = 0


def _waiting_bytes(connection: Connection) -> int:
    return len(connection.received)
