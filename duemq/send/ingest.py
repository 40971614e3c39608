"""Send ingest: frames of all connections, batched and appended once per event loop turn.

    turn n        sockets --> receive buffers --> ready()          (one call_soon for all)
    turn n + 1    per connection: kernel: frames --> PUT and WIRE rows
                                  other frames: decoded in Python; sends are added to this batch
                  put hooks, append                                (once)
                     within it, kernel: rows --> responses         (once), one write per connection

Kernel and Python add the rows of a connection in frame order, so its messages are appended in the
order in which they were sent. Connections with many bytes, or with the frequent pulls and commits
of offsets, have a queue of their own; without time for both, each is first every second turn.
While too many responses wait for confirmation, no turn runs; the next batch has the frames
received meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from delayed_delivery.later_copies import SENT_BYTES_MAX
from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.layout import WORD_BYTES
from duemq.net.meters import RpcMeter
from duemq.net.notices import Notices
from duemq.send import layout
from duemq.send.batched_requests import BatchedRequests
from duemq.send.grants import Grants, SendAccess
from duemq.send.kernels.ingest import take_sends
from duemq.send.layout import ROWS_MAX
from duemq.send.put_path import PutPath
from duemq.send.request_turns import CONSUMER_STARTS, RequestTurns
from duemq.send.responses import (
    MustWait,
    PendingResponse,
    SendResponses,
    SendSettings,
)
from duemq.send.send import SendProcessor
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode
from duemq_common.errors import FrameError
from duemq_common.request import Request
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import entry
from message_store.kernels.preparation import Preparation
from message_store.log.batch import ALL_KINDS, PutBatch
from message_store.queues.topic_table import TopicArrays, TopicTable

log = logging.getLogger(__name__)
SEND_CODES: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
KERNELS: Final = "ingest"
DECODED_FRAMES_MAX: Final = 64  # frames of one connection decoded in Python per turn
CONNECTIONS_PER_CLOCK_READ: Final = 4  # connections parsed between two checks of TURN_S
TURN_S: Final = 0.005  # time limit for parsing frames, and another for starting requests
FEW_BYTES: Final = 1 << 12  # connections with more unparsed bytes are in the second queue
STAGING_BYTES: Final = 1 << 20
STAGING_BYTES_REUSED_MAX: Final = 8 << 20  # a larger batch is replaced after its append


class Ingest:
    """Parser of the frames of all connections, run once per event loop turn (a `FrameHandler`).

    Args:
        poll_s: How long the loop does not sleep after two turns within this time; 0: it sleeps.
    """

    def __init__(
        self,
        path: PutPath,
        topics: TopicTable,
        sender: SendProcessor,
        settings: SendSettings,
        meter: RpcMeter,
        *,
        access: SendAccess | None = None,
        time_s: Callable[[], float] | None = None,
        kernels: Preparation | None = None,
        batched: BatchedRequests | None = None,
        poll_s: float = 0.0,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self._kernels, self._batched = kernels or Preparation(), batched
        self._path, self._topics, self._sender = path, topics, sender
        self._settings, self._access = settings, access
        self._grants = Grants(access, topics)
        self._responses = SendResponses(
            path.store, topics, settings, self._schedule, meter, is_ready=self._is_ready
        )
        self._no_topics = TopicTable()
        self._arrays: TopicArrays | None = None  # the source of `_names`
        self._prompt, self._bulk = deque[Connection](), deque[Connection]()  # ready connections
        self._is_prompt_first = True
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_turn: list[Connection] = []
        self._unanswered: list[Connection] | None = None  # connections of the batch that is put
        self._malformed: list[tuple[Connection, FrameError]] = []
        self._turn_exceeded = False
        self._accepts = self._has_batched = False  # whether `_batched` has begun its turn
        self._time_s = time_s or SystemClock().monotonic_s
        self._poll_s, self._ended_s, self._is_polling = poll_s, 0.0, False
        self._requests = RequestTurns(self._time_s, self._add_ready, dispatcher)  # but sends
        self._failed = Notices(log, logging.ERROR)
        self._suffix = np.frombuffer(settings.suffix, np.uint8).copy()
        self._turn = np.zeros(1, layout.TURN)
        self._turn["store_host"] = layout.host_column(*settings.store_host)
        self._state: npt.NDArray[np.int64] = self._turn["state"][0]
        self._numbers = self._state.data  # the same memory, faster for single numbers
        self._take_sends: Callable[..., tuple[int, int]] | None = None
        self._state[layout.STATE_FRAME_MAX] = settings.frame_bytes_max
        self._state[layout.STATE_BODY_MAX] = settings.body_bytes_max
        self._state[layout.STATE_PROPERTIES_MAX] = SENT_BYTES_MAX
        self._new_batch()

    # Turns.

    def ready(self, connection: Connection) -> None:
        """Schedule a turn for a connection whose `received` has grown."""
        if not connection.in_turn:
            connection.in_turn = True
            self._add_ready(connection)
            self._schedule()

    def _add_ready(self, connection: Connection) -> None:
        received = connection.received
        is_bulk = len(received) > FEW_BYTES or received.begins_with(*CONSUMER_STARTS)
        (self._bulk if is_bulk else self._prompt).append(connection)

    def _schedule(self) -> None:
        if self._scheduled:
            return
        requests = self._requests.count
        if not (self._prompt or self._bulk or requests or self._malformed):
            return
        if requests or not self._responses.is_full:
            self._scheduled = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()  # before Python 3.12 a system call
            self._loop.call_soon(self.run_turn)

    def run_turn(self) -> None:
        """Handle the frames of the connections that are ready.

        After `TURN_S` the remaining connections wait for the next turn, so that the loop can read
        and write in between.
        """
        self._scheduled = False
        begun_s = self._time_s()
        if not self._responses.is_full:
            if self._prompt or self._bulk:
                self._responses.begin()
                self._use_topics()
                self._take_ready(begun_s + TURN_S)
                if self._requests.has_handled:
                    self._requests.end_turn()
            self._finish()
            if self._batched is not None and self._has_batched:
                self._has_batched = False
                self._batched.finish()
        if self._requests.count:
            self._requests.begin(self._time_s() + TURN_S)
        if self._malformed:
            self._close_malformed()
        self._schedule()
        if self._poll_s:
            ended_s, self._ended_s = self._ended_s, self._time_s()
            if begun_s - ended_s < self._poll_s and not self._is_polling:
                self._poll()

    def _poll(self) -> None:
        """Keep the loop awake: a wake-up takes about as long as a client's next request."""
        self._is_polling = self._time_s() - self._ended_s < self._poll_s
        if self._is_polling and self._loop is not None:
            self._loop.call_soon(self._poll)

    def _take_ready(self, end_s: float) -> None:
        if self._turn_exceeded:  # each of the two queues is first every second time
            self._is_prompt_first = not self._is_prompt_first
        self._turn_exceeded = False
        prompt, bulk = self._prompt, self._bulk  # those that become ready now have the next turn
        queues = [prompt] * len(prompt) + [bulk] * len(bulk)
        if not self._is_prompt_first:
            queues.reverse()
        queued = self._requests if self._requests.count else None
        for index, queue in enumerate(queues, 1):
            connection = queue.popleft()
            if queued and connection in queued:  # its earlier requests are handled first
                queued.hold_frames(connection)
                continue
            connection.in_turn = False
            if connection.writes_stalled and not connection.closed:
                continue  # `resume_writing` calls `ready` again
            try:
                self._take(connection, end_s)
                connection.end_turn()
            except FrameError as error:
                self._malformed.append((connection, error))
            except Exception as error:
                self._failed("%r: parsing failed; connection closed", connection, exc_info=error)
                connection.close()
            is_read = index % CONNECTIONS_PER_CLOCK_READ == 0 or self._turn_exceeded
            if is_read and index < len(queues) and self._time_s() > end_s:
                self._turn_exceeded = True
                return

    def _close_malformed(self) -> None:
        """Close connections that sent a malformed frame, if no earlier request is queued."""
        malformed, self._malformed = self._malformed, []
        for connection, error in malformed:
            if connection in self._requests:
                self._malformed.append((connection, error))
            else:
                connection.close_malformed(error)

    async def drain(self) -> None:
        """Handle all received frames, and wait until every response is sent."""
        self.run_turn()
        while self._prompt or self._bulk or self._requests.count or self._malformed:
            await self._responses.drain()
            self.run_turn()
        await self._responses.drain()
        if self._batched is not None:
            await self._batched.drain()

    # Frames to rows.

    def _take(self, connection: Connection, end_s: float) -> None:
        received = connection.received
        if connection.sender is None:
            connection.sender = self._grants.sender(connection.born_host)
        sender = connection.sender.record
        if self._access is not None:
            sender = self._grants.record(connection.sender)
        self._begin_connection(connection)
        if connection.is_prepared and not connection.closed:
            connection.is_prepared = False
            self._decode_frame(connection)
        take = self._take_sends or self._load_kernel(connection)
        decoded_left = DECODED_FRAMES_MAX
        while not connection.closed and not connection.in_turn:
            stop, pos = take(
                received.data, received.start, received.end, sender, self._output, self._names
            )
            received.take(pos)
            if stop == layout.STOP_INCOMPLETE:
                return
            if stop == layout.STOP_FULL:
                self._make_room(connection)
                if self._time_s() > end_s:
                    self._continue_next_turn(connection)
            elif stop == layout.STOP_MALFORMED:
                self._raise_malformed(connection)
            elif (batched := self._batched_turn()) and batched.take_matching(connection):
                if not len(received):
                    return
                if self._time_s() > end_s:
                    self._continue_next_turn(connection)
            elif self._requests.precede_commit(connection):
                connection.in_turn = True  # parsed after them, the commit needs no queue
                self._requests.hold_frames(connection)
            else:
                decoded_left -= self._decode_frame(connection)
                self._turn_exceeded = self._turn_exceeded or self._time_s() > end_s
                if decoded_left <= 0 or self._turn_exceeded:
                    self._continue_next_turn(connection)

    def _continue_next_turn(self, connection: Connection) -> None:
        """Schedule the connection's remaining frames for the next turn."""
        if not connection.in_turn:
            connection.in_turn = self._turn_exceeded = True
            self._add_ready(connection)

    def _load_kernel(self, connection: Connection) -> Callable[..., tuple[int, int]]:
        """Return the kernel `take_sends` for the array types of this class and `ReceiveBuffer`.

        Until it is compiled, return a substitute that stops at every frame, for Python to decode.
        """
        if not self._is_ready():
            return self._stop_at_frame
        data, sender = connection.received.data, self._grants.record(connection.sender)
        self._take_sends = entry(take_sends, data, 0, 0, sender, self._output, self._names)
        return self._take_sends

    def _is_ready(self) -> bool:
        return self._kernels.is_ready(KERNELS)

    def _stop_at_frame(self, data: Bytes, pos: int, end: int, *others: object) -> tuple[int, int]:
        """Stop at the next frame, as `take_sends` does at a frame that Python must decode."""
        try:
            frame = codec.next_frame(data.data, pos, end, bytes_max=self._settings.frame_bytes_max)
        except FrameError:
            return layout.STOP_MALFORMED, pos
        if frame is None:
            return layout.STOP_INCOMPLETE, pos
        self._state[layout.STATE_FRAME_END] = frame.end
        return layout.STOP_DECODE, pos

    def _use_topics(self) -> None:
        """Pass the current topics to the kernel.

        While sends are not accepted, the kernel gets no topics, so that Python refuses each send.
        """
        self._accepts = self._accepts or self._sender.accepts()
        arrays = (self._topics if self._accepts else self._no_topics).arrays
        if arrays is not self._arrays:  # the table replaces its arrays when it grows
            self._arrays = arrays
            self._names = (arrays.topics, arrays.names, arrays.table)

    def _begin_connection(self, connection: Connection) -> None:
        """Assign the following rows to `connection`."""
        if len(self._in_turn) == layout.CONNECTIONS_MAX:
            self._finish()
        self._numbers[layout.STATE_CONNECTION] = len(self._in_turn)
        self._in_turn.append(connection)

    def _raise_malformed(self, connection: Connection) -> None:
        """Raise the codec's error for a malformed frame."""
        received, bytes_max = connection.received, self._settings.frame_bytes_max
        codec.next_frame(received.view, received.start, received.end, bytes_max=bytes_max)
        raise AssertionError("the codec accepts a frame that the kernel reports as malformed")

    def _make_room(self, connection: Connection) -> None:
        """Append the batch to free its rows; if it is empty, enlarge it for this frame."""
        state = self._state
        if state[layout.STATE_ROWS]:
            self._finish()
            self._begin_connection(connection)
            return
        size = int(state[layout.STATE_FRAME_END]) - connection.received.start
        self._batch.reserve(1, size + self._suffix.size + 1)
        self._use_batch()

    def _decode_frame(self, connection: Connection) -> int:
        """Decode one frame, with a commit also those that follow it; return how many.

        A send is added to the batch, any other request is queued. If a send must wait, its frame
        stays in the buffer, and no frames of the connection are parsed until `_prepare` ends.
        """
        received, is_commit = connection.received, False
        item = codec.next_command(received.view, received.start, received.end)
        if item is None:
            return 0
        command, end = item
        frame = received.view[received.start : end]
        serialize_type = frame[WORD_BYTES]
        if isinstance(command, Request) and command.code in SEND_CODES:
            try:
                self._fill_send(connection, command, serialize_type)
            except MustWait as wait:
                connection.in_turn = True
                work = self._prepare(connection, command, serialize_type, len(frame), wait)
                connection.spawn(work)
                return 1
        elif isinstance(command, Request):
            if not self._take_batched(connection, command, frame):
                is_commit = self._requests.add(connection, command, serialize_type)
        else:
            connection.dispatch(command, serialize_type)
        received.take(end)
        return 1 + (self._requests.take_commits(connection) if is_commit else 0)

    def _batched_turn(self) -> BatchedRequests | None:
        """Return the batched handler, which begins its turn at the first frame for it."""
        if self._batched is not None and not self._has_batched:
            self._has_batched = True
            self._batched.begin()
        return self._batched

    def _take_batched(self, connection: Connection, request: Request, frame: memoryview) -> bool:
        """Add a request to the batched handler; return False if the dispatcher must handle it."""
        batched = self._batched_turn()
        if batched is None or request.code not in batched.codes:
            return False
        return batched.take(connection, request, frame[WORD_BYTES], bytes(frame))

    def _fill_send(self, connection: Connection, request: Request, serialize_type: int) -> None:
        request.peer = connection
        batch = self._batch
        self._sync_batch()
        count, staged = batch.count, batch.staging_len
        try:
            if self._access is not None:
                self._access(request)
            send = self._sender.fill(request, connection.born_host, batch)
        except Exception as error:
            batch.count, batch.staging_len = count, staged
            self._use_batch()
            if isinstance(error, MustWait):
                raise
            refusal = self._responses.refusal(error, request)
            connection.respond(request, refusal, serialize_type)
            return
        self._use_batch()
        self._numbers[layout.STATE_KINDS] = ALL_KINDS
        if self._access is not None and self._is_ready():
            self._grants.extend(connection.sender, request)
        lines = self._wire[send.first : send.first + send.count]
        lines["connection"] = self._state[layout.STATE_CONNECTION]
        lines["flags"] = layout.WIRE_DECODED
        self._responses.pending.append(PendingResponse(connection, request, serialize_type, send))

    async def _prepare(
        self,
        connection: Connection,
        request: Request,
        serialize_type: int,
        frame_bytes: int,
        wait: MustWait,
    ) -> None:
        """Await the preparation of the connection's next send; refuse the send on failure."""
        connection.in_flight_bytes += len(request.body)  # it may wait for many others
        connection.update_charge()
        try:
            await wait.prepare()
            connection.is_prepared = True
        except Exception as error:
            refusal = self._responses.refusal(error, request)
            received = connection.received
            if not connection.closed:
                received.take(received.start + frame_bytes)
            connection.respond(request, refusal, serialize_type)
        finally:
            connection.in_flight_bytes -= len(request.body)
            connection.update_charge()
        connection.in_turn = False
        self.ready(connection)

    # The batch.

    def _new_batch(self) -> None:
        self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)
        self._wire: npt.NDArray[np.void] = np.zeros(0, layout.WIRE)
        self._numbers[layout.STATE_KINDS] = 0
        self._use_batch()

    def _use_batch(self) -> None:
        """Pass the batch to the kernels; call after Python has added rows or enlarged it."""
        batch = self._batch
        if self._wire.size != batch.rows.size:
            wire = np.zeros(batch.rows.size, layout.WIRE)
            wire[: self._wire.size] = self._wire
            self._wire = wire
            self._responses.allocate(wire.size)
        self._state[layout.STATE_ROWS] = batch.count
        self._state[layout.STATE_STAGED] = batch.staging_len
        self._output = (batch.rows, self._wire, batch.staging, self._suffix, self._turn)

    def _sync_batch(self) -> None:
        self._batch.count = self._numbers[layout.STATE_ROWS]
        self._batch.staging_len = self._numbers[layout.STATE_STAGED]
        self._batch.kinds = self._numbers[layout.STATE_KINDS]

    def _finish(self) -> None:
        """Append the batch, send its responses, begin the next batch; never put a batch twice."""
        self._sync_batch()
        batch, connections = self._batch, self._in_turn
        self._in_turn = []
        if not batch.count:
            return
        self._unanswered = connections
        batch.on_appended = self._respond
        try:
            self._path.put(batch)
            self._respond()  # unless the put has called it
        finally:
            large = batch.rows.size > ROWS_MAX or batch.staging.size > STAGING_BYTES_REUSED_MAX
            if large or self._unanswered is not None:
                self._unanswered = None
                self._new_batch()
            else:
                batch.clear()
                self._use_batch()  # a hook may have enlarged the staging buffer
                self._numbers[layout.STATE_KINDS] = 0

    def _respond(self) -> None:
        """Respond to every row of the batch, unless that was done; never raise."""
        connections = self._unanswered
        if connections is None:
            return
        try:
            self._responses.respond(self._batch, self._wire, connections)
            self._unanswered = None
        except Exception:
            count = self._batch.count
            log.exception("responding to %d messages failed; connections closed", count)
            self._responses.pending.clear()
            for connection in connections:
                connection.close()
