"""Responses to the sends of a batch, sent at once or when the batch is confirmed.

sends parsed by the kernel    encoded by the kernel, one write per connection
refused rows                  encoded in Python, with code and remark
sends decoded in Python       encoded in Python, one response per client batch

With SYNC_FLUSH or SYNC_MASTER, responses are encoded at once and sent when the batch is confirmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import refusal
from duemq.net.layout import PREFIX_BYTES
from duemq.net.meters import RpcMeter
from duemq.net.notices import Notices
from duemq.send.kernels.responses import (
    SCRATCH_BYTES,
    VARIABLE_BYTES_MAX,
    WAIT_ANY,
    WAIT_NO,
    WAIT_YES,
    ResponseText,
    put_responses,
)
from duemq.send.layout import (
    PIECES,
    RESPONSE_COUNT,
    RESPONSE_ENDS,
    RESPONSE_WAIT,
    RESPONSES,
)
from duemq_common.codes import ResponseCode
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Request, Response
from duemq_common.topics import RETRY_PREFIX
from message_store.kernels.kernel import entry
from message_store.layout import PROP_WAIT_FALSE, Row
from message_store.log.batch import PutBatch
from message_store.log.offset_id import encode_offset_id
from message_store.queues.topic_table import TopicTable
from message_store.replication.acknowledgement import Missing

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
UNCONFIRMED_TURNS_MAX: Final = 8  # turns whose responses wait for confirmation
OFFSET_DIGITS: Final = 16  # hexadecimal digits of the log offset in an offset message id
_PLACEHOLDER = "@"


class SendSettings(Struct, frozen=True, kw_only=True):
    """Settings shared by all sends.

    Attributes:
        suffix: Encoded properties that the broker appends to every message.
        store_host: Address bytes and port in records and message ids.
        broker_name: Broker name in recall handles.
        region: Value of MSG_REGION in responses.
        trace_on: Value of TRACE_ON in responses.
        body_bytes_max: Maximum size of a body in bytes (`maxMessageSize`).
        frame_bytes_max: Maximum size of a frame in bytes.
        confirmed: Whether a response is sent only after disk or replicas confirm its message.
    """

    suffix: bytes
    store_host: tuple[bytes, int]
    broker_name: str = ""
    region: str = "DefaultRegion"
    trace_on: bool = True
    body_bytes_max: int = 4 << 20
    frame_bytes_max: int = codec.FRAME_BYTES_MAX
    confirmed: bool = False


class DecodedSend(Struct):
    """Rows of a send that was decoded in Python and added to a batch.

    Attributes:
        first, count: Index of the first row, number of rows.
        queue_id: Queue of the request's topic, for the response.
        transaction_id: UNIQ_KEY of the message; None: it has none.
        before_response: Awaited before the response is sent; None: nothing to await.
        recallable: Whether the response has a recall handle if the message is a timer.
    """

    first: int
    count: int
    queue_id: int
    transaction_id: str | None
    before_response: Callable[[], Awaitable[None]] | None = None
    recallable: bool = True


class MustWait(Exception):
    """Send that must wait: await `prepare()`, which may raise RequestError, then retry."""

    def __init__(self, prepare: Callable[[], Awaitable[None]]) -> None:
        self.prepare = prepare
        super().__init__("a send must wait")


class PendingResponse(Struct):
    """Decoded send whose response is not sent yet."""

    connection: Connection
    request: Request
    serialize_type: int
    send: DecodedSend


Output = list[tuple[Connection, bytes]]
"""Encoded responses by connection."""


class SendResponses:
    """Responses to the batches of one `Ingest`.

    Args:
        on_release: Called after the responses of a confirmed batch are sent.
        meter: Meter of send latency.
        is_ready: Returns whether the kernel is compiled; until then Python encodes each response.
    Attributes:
        pending: Decoded sends of the current batch.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        settings: SendSettings,
        on_release: Callable[[], None],
        meter: RpcMeter,
        *,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_ready = is_ready
        self.pending: list[PendingResponse] = []
        self._store, self._topics, self._settings = store, topics, settings
        self._refused_count = 0  # upper bound for the current batch
        self._put_responses: Callable[..., tuple[int, int]] | None = None
        self._on_release, self._meter = on_release, meter
        self._failed = Notices(log, logging.ERROR)
        self._now_ms = meter.clock.now_ms
        self._since_ms = 0  # start of the turn
        self._unconfirmed_tasks: set[asyncio.Task[None]] = set()
        self._fields = refusal_fields(region=settings.region, trace_on=settings.trace_on)

    @property
    def is_full(self) -> bool:
        """Whether so many batches wait for confirmation that the next turn must wait."""
        return len(self._unconfirmed_tasks) >= UNCONFIRMED_TURNS_MAX

    async def drain(self) -> None:
        """Wait until every response to a stored message is sent."""
        while self._unconfirmed_tasks:
            await asyncio.wait(self._unconfirmed_tasks)

    def begin(self) -> None:
        """Begin a turn; the latency of its sends is measured from now."""
        self._since_ms = self._now_ms()

    def allocate(self, rows_max: int) -> None:
        """Allocate space for the responses of `rows_max` rows."""
        settings = self._settings
        self._text = response_text(
            rows_max,
            region=settings.region,
            trace_on=settings.trace_on,
            broker_name=settings.broker_name,
        )
        self._numbers = self._text.turn.view(np.int64).data  # faster for single numbers

    def refusal(self, error: Exception, request: Request) -> Response:
        """Return the response to a send that failed before it was added to a batch."""
        return refusal(error, request, self._failed, self._fields)

    def respond(
        self, batch: PutBatch, wire: npt.NDArray[np.void], connections: list[Connection]
    ) -> None:
        """Respond to every row of a batch; call after its append.

        Args:
            wire: (n,) WIRE, one row per message.
            connections: Connections by their number in `wire`.
        """
        if not self._settings.confirmed:
            _write(self._stored(batch, wire, connections, WAIT_ANY))
            self._meter.sends(batch.count, self._refused_count, self._since_ms)
        else:
            _write(self._stored(batch, wire, connections, WAIT_NO))
            self._send_when_confirmed(self._stored(batch, wire, connections, WAIT_YES), batch.count)
        if self._refused_count:
            _write(self._refused(batch, wire, connections))
        if self.pending:
            self._respond_decoded(batch)

    # Rows of the kernel.

    def _stored(
        self, batch: PutBatch, wire: npt.NDArray[np.void], connections: list[Connection], wait: int
    ) -> Output:
        text, arrays = self._text, self._topics.arrays
        put = self._put_responses
        if put is None and not self._is_ready():
            self._refused_count = batch.count
            return self._stored_by_row(batch, wire, connections, wait)
        if put is None:  # the array types never change
            put = self._put_responses = entry(
                put_responses, batch.rows, wire, batch.staging, arrays.topics, arrays.names, *text
            )
        numbers = self._numbers
        numbers[RESPONSE_COUNT], numbers[RESPONSE_WAIT] = batch.count, wait
        end, self._refused_count = put(
            batch.rows, wire, batch.staging, arrays.topics, arrays.names, *text
        )
        if end < 0:
            self._refused_count = batch.count
            return self._stored_by_row(batch, wire, connections, wait)
        if len(connections) == 1 and end > SCRATCH_BYTES:
            return [(connections[0], text.out[SCRATCH_BYTES:end].tobytes())]
        responses, start, last = [], SCRATCH_BYTES, end
        ends = numbers[RESPONSE_ENDS : RESPONSE_ENDS + len(connections)].tolist()
        for connection, end in zip(connections, ends, strict=True):
            if end > start:
                responses.append((connection, text.out[start:end].tobytes()))
            start = end
            if end == last:
                break
        return responses

    def _stored_by_row(
        self, batch: PutBatch, wire: npt.NDArray[np.void], connections: list[Connection], wait: int
    ) -> Output:
        """Encode responses in Python, if the kernel is not compiled or an id is too long for it."""
        responses = []
        for index in range(batch.count):
            row, line = batch.rows[index], wire[index]
            waits = WAIT_NO if row["prop_flags"] & PROP_WAIT_FALSE else WAIT_YES
            if not row["status"] and not line["flags"] and wait in (WAIT_ANY, waits):
                send = DecodedSend(index, 1, int(line["queue_id"]), _unique_id(batch, row))
                parts = codec.encode_response(self.response(batch, send), int(line["opaque"]))
                responses.append((connections[line["connection"]], bytes(parts[0])))
        return responses

    def _refused(
        self, batch: PutBatch, wire: npt.NDArray[np.void], connections: list[Connection]
    ) -> Output:
        responses = []
        for index in np.flatnonzero(batch.filled["status"]).tolist():
            line = wire[index]
            if not line["flags"]:
                response = self.response(batch, DecodedSend(index, 1, 0, None))
                parts = codec.encode_response(response, int(line["opaque"]))
                responses.append((connections[line["connection"]], bytes(parts[0])))
        return responses

    # Decoded sends.

    def _respond_decoded(self, batch: PutBatch) -> None:
        pending, self.pending = self.pending, []
        for each in pending:
            response = self.response(batch, each.send)
            waits = self.waits(batch, each.send, response)
            if each.send.before_response is None and not waits:
                each.connection.respond(each.request, response, each.serialize_type)
            elif not each.request.oneway:
                each.connection.spawn(self._respond_later(each, response, waits=waits))

    def waits(self, batch: PutBatch, send: DecodedSend, response: Response) -> bool:
        """Return whether a response must wait until disk or replicas confirm the message."""
        if not self._settings.confirmed or response.code != ResponseCode.SUCCESS:
            return False
        rows = batch.rows[send.first : send.first + send.count]
        return bool((rows["prop_flags"] & PROP_WAIT_FALSE == 0).any())

    async def completed(self, response: Response, send: DecodedSend, *, waits: bool) -> Response:
        """Await `before_response` and, if `waits`, the confirmation; return the response."""
        end_offset = self._store.max_offset
        if send.before_response is not None:
            await send.before_response()
        if waits and (missing := await self._store.wait_confirmed(end_offset)):
            return unconfirmed(response, missing)
        return response

    async def _respond_later(
        self, each: PendingResponse, response: Response, *, waits: bool
    ) -> None:
        response = await self.completed(response, each.send, waits=waits)
        each.connection.respond(each.request, response, each.serialize_type)

    def response(self, batch: PutBatch, send: DecodedSend) -> Response:
        """Return the response to a send whose batch was put."""
        rows = batch.rows[send.first : send.first + send.count]
        for index, status in enumerate(rows["status"].tolist(), send.first):
            if status:
                remark = batch.remarks.get(index) or f"the message was refused with code {status}"
                return Response(status, remark, self._fields)
        host = encode_offset_id(*self._settings.store_host, 0)[:-OFFSET_DIGITS]
        ids = [
            f"{host}{phys_offset:0{OFFSET_DIGITS}X}" for phys_offset in rows["phys_offset"].tolist()
        ]
        fields = send_fields(
            str(send.queue_id),
            send.transaction_id,
            ",".join(ids),
            str(rows[0]["queue_offset"]),
            region=self._settings.region,
            trace_on=self._settings.trace_on,
            recall_handle=self._recall_handle(rows[0], send),
        )
        return Response(ResponseCode.SUCCESS, None, fields)

    def _recall_handle(self, row: Row, send: DecodedSend) -> str | None:
        """Return the recall handle of a timer. SendMessageProcessor.attachRecallHandle"""
        is_timer = row["out_ms"] >= 0 and row["real_topic_index"] >= 0
        if not is_timer or not send.recallable or send.transaction_id is None:
            return None
        topic = self._topics.name(int(row["real_topic_index"]))
        if topic.startswith(RETRY_PREFIX):
            return None
        time_text = str(int(row["out_ms"]) + 1)
        handle = RecallHandle(topic, self._settings.broker_name, time_text, send.transaction_id)
        return handle.encode()

    # Responses that wait for confirmation.

    def _send_when_confirmed(self, output: Output, count: int) -> None:
        if output:
            measured = (count, self._refused_count, self._since_ms)
            release = self._confirm_and_send(self._store.max_offset, output, measured)
            task = asyncio.get_running_loop().create_task(release, name="wait until confirmed")
            self._unconfirmed_tasks.add(task)
            task.add_done_callback(self._confirmation_done)

    async def _confirm_and_send(
        self, end_offset: int, output: Output, measured: tuple[int, int, int]
    ) -> None:
        missing = await self._store.wait_confirmed(end_offset)
        self._meter.sends(*measured)
        if missing:
            output = [(to, unconfirmed_frames(data, missing)) for to, data in output]
        _write(output)

    def _confirmation_done(self, task: asyncio.Task[None]) -> None:
        self._unconfirmed_tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("responses to a batch could not be sent", exc_info=task.exception())
        self._on_release()


def _write(output: Output) -> None:
    for connection, data in output:
        connection.write(data)


def _unique_id(batch: PutBatch, row: Row) -> str | None:
    pos, size = int(row["uniq_pos"]), int(row["uniq_len"])
    return batch.staging[pos : pos + size].tobytes().decode() if size else None


def unconfirmed(response: Response, missing: Missing) -> Response:
    """Return the response with code and remark of a missing confirmation instead of success."""
    text = f"the message is stored, but {missing.text}"
    return replace(response, code=missing.code, remark=text)


def unconfirmed_frames(data: bytes, missing: Missing) -> bytes:
    """Return encoded responses with code and remark of a missing confirmation."""
    view, pos, out = memoryview(data), 0, bytearray()
    while (frame := codec.next_frame(view, pos, len(data))) is not None:
        decoded = codec.decode_frame(view, frame)
        assert isinstance(decoded, codec.ReceivedResponse)
        out += codec.encode_response(unconfirmed(decoded.response, missing), decoded.opaque)[0]
        pos = frame.end
    return bytes(out)


def send_fields(
    queue_id: str,
    transaction_id: str | None,
    message_id: str,
    queue_offset: str,
    *,
    region: str,
    trace_on: bool,
    recall_handle: str | None = None,
) -> dict[str, str]:
    """Return the extFields of a send response, in Apache's order. SendMessageResponseHeader"""
    fields = {"queueId": queue_id}
    if transaction_id is not None:
        fields["transactionId"] = transaction_id
    fields["msgId"] = message_id
    fields |= refusal_fields(region=region, trace_on=trace_on)
    if recall_handle is not None:
        fields["recallHandle"] = recall_handle
    fields["queueOffset"] = queue_offset
    return fields


def refusal_fields(*, region: str, trace_on: bool) -> dict[str, str]:
    """Return the extFields common to all responses to sends."""
    return {"TRACE_ON": "true" if trace_on else "false", "MSG_REGION": region}


def response_text(rows_max: int, *, region: str, trace_on: bool, broker_name: str) -> ResponseText:
    """Return the constant pieces of a send response, and space for `rows_max` responses.

    The pieces are cut from a response that the codec encoded.
    """
    pieces = _pieces(region, trace_on, _PLACEHOLDER)
    pieces.append(_pieces(region, trace_on, None)[3])
    pieces.append(broker_name.encode())
    assert len(pieces) == PIECES
    text = np.frombuffer(b"".join(pieces), np.uint8).copy()
    out = np.empty(SCRATCH_BYTES + rows_max * (text.size + VARIABLE_BYTES_MAX), np.uint8)
    turn = np.zeros(1, RESPONSES)
    turn["cuts"] = np.cumsum([0, *map(len, pieces)])
    return ResponseText(text, out, turn)


def _pieces(region: str, trace_on: bool, recall_handle: str | None) -> list[bytes]:
    placeholder = _PLACEHOLDER
    assert placeholder not in region
    fields = send_fields(
        placeholder,
        placeholder,
        placeholder,
        placeholder,
        region=region,
        trace_on=trace_on,
        recall_handle=recall_handle,
    )
    whole = bytes(codec.encode_response(Response(0, None, fields), 0)[0])[PREFIX_BYTES:]
    head, _, tail = whole.partition(b'"opaque":0,')
    return (head + b'"opaque":' + placeholder.encode() + b"," + tail).split(placeholder.encode())
