"""Responses to the sends of one batch: immediate, or when it is confirmed.

rows that the kernel took     answered by the kernel, one write per connection
rows that were refused        their code and remark, from here
sends that Python filled      one answer for all rows of a client's batch, from here
SYNC_FLUSH, SYNC_MASTER       written now, sent when the batch is confirmed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from delivery.plugin import Request, Response
from duemq.messages.recall_handle import RecallHandle
from duemq.net import codec
from duemq.net.codes import ResponseCode
from duemq.net.connection import Connection
from duemq.net.dispatcher import refusal
from duemq.net.layout import PREFIX_BYTES
from duemq.net.notices import Notices
from duemq.registry.topic_config import RETRY_PREFIX
from duemq.send.kernels.answers import (
    SCRATCH_BYTES,
    VARIABLE_BYTES_MAX,
    WAIT_ANY,
    WAIT_NO,
    WAIT_YES,
    AnswerText,
    put_answers,
)
from duemq.send.layout import ANSWERS, PIECES
from duemq.send.put_path import LogStore
from message_store.clock import Clock
from message_store.kernels.kernel import entry
from message_store.layout import PROP_WAIT_FALSE
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from message_store.replication.acknowledgement import Missing
from message_store.text import encode_offset_id

log = logging.getLogger(__name__)
HELD_TURNS_MAX: Final = 8  # turns whose responses wait for disk or replicas
_PLACEHOLDER = "@"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """What is the same for every send.

    Attributes:
        suffix: encoded properties that the broker adds to every message.
        store_host: address bytes and port that records and message ids name.
        broker_name: what recall handles name.
        confirmed: Whether responses wait for the disk or for replicas.
    """

    suffix: bytes
    store_host: tuple[bytes, int]
    broker_name: str = ""
    region: str = "DefaultRegion"
    trace_on: bool = True
    body_bytes_max: int = 4 << 20
    frame_bytes_max: int = codec.FRAME_BYTES_MAX
    confirmed: bool = False


@dataclass(slots=True)
class PlainSend:
    """A send that Python put into a batch.

    Attributes:
        first, count: its rows.
        queue_id: of the request's topic, for the answer.
        transaction_id: UNIQ_KEY, if there is one.
        recallable: the answer to a timer carries its recall handle.
        before_answer: awaited before the answer goes out.
    """

    first: int
    count: int
    queue_id: int
    transaction_id: str | None
    before_answer: Callable[[], Awaitable[None]] | None = None
    recallable: bool = True


@dataclass(slots=True)
class PlainAnswer:
    """The request that a plain send answers."""

    connection: Connection
    request: Request
    serialize_type: int
    send: PlainSend


Written = list[tuple[Connection, bytes]]


class SendMeter(Protocol):
    """Meter of the latency of sends."""

    @property
    def clock(self) -> Clock:
        """The clock that latencies are measured with."""
        ...

    def sends(self, count: int, refused: int, since_ms: int) -> None:
        """Note a batch of sends, `refused` of them not stored, received at `since_ms`."""
        ...


class Answering:
    """Answers the batches of one `Ingest`.

    Args:
        on_release: Called when waiting responses were sent.
        meter: Meter of the latency of sends.
        is_ready: Whether the kernel is compiled; until then Python answers each row.
    Attributes:
        plain: sends of the batch in hand that Python filled.
    """

    def __init__(
        self,
        store: LogStore,
        topics: TopicTable,
        settings: SendSettings,
        on_release: Callable[[], None],
        meter: SendMeter | None = None,
        *,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_ready = is_ready
        self.plain: list[PlainAnswer] = []
        self._store, self._topics, self._settings = store, topics, settings
        self._refused_count = 0  # of the batch in hand, or more
        self._put_answers: Callable[..., tuple[int, int]] | None = None
        self._on_release, self._meter = on_release, meter
        self._failed = Notices(log, logging.ERROR)
        self._now_ms = None if meter is None else meter.clock.now_ms
        self._since_ms = 0  # when the turn began
        self._held: set[asyncio.Task[None]] = set()
        self._fields = refusal_fields(region=settings.region, trace_on=settings.trace_on)

    @property
    def is_behind(self) -> bool:
        """Whether too many responses wait, so that the next turn should wait too."""
        return len(self._held) >= HELD_TURNS_MAX

    async def drain(self) -> None:
        """Return when every answer is out."""
        while self._held:
            await asyncio.wait(self._held)

    def begin(self) -> None:
        """Note that a turn begins: its sends are received now."""
        if self._now_ms is not None:
            self._since_ms = self._now_ms()

    def use(self, rows_max: int) -> None:
        """Make room for the responses of `count` rows."""
        settings = self._settings
        self._text = answer_text(
            rows_max, region=settings.region, trace_on=settings.trace_on,
            broker_name=settings.broker_name,
        )  # fmt: skip

    def refusal(self, error: Exception, request: Request) -> Response:
        """Return the answer to a send that could not be filled."""
        return refusal(error, request, self._failed, self._fields)

    def answer(
        self, batch: PutBatch, wire: npt.NDArray[Any], connections: list[Connection]
    ) -> None:
        """Answer every row of a batch that was appended.

        Args:
            wire: (n,) WIRE, one row a message.
            connections: by the number that `wire` names.
        """
        if not self._settings.confirmed:
            _write(self._stored(batch, wire, connections, WAIT_ANY))
            if self._meter is not None:
                self._meter.sends(batch.count, self._refused_count, self._since_ms)
        else:
            _write(self._stored(batch, wire, connections, WAIT_NO))
            self._hold(self._stored(batch, wire, connections, WAIT_YES), batch.count)
        if self._refused_count:
            _write(self._refused(batch, wire, connections))
        if self.plain:
            self._answer_plain(batch)

    # Rows that the kernel took.

    def _stored(
        self, batch: PutBatch, wire: npt.NDArray[Any], connections: list[Connection], wait: int
    ) -> Written:
        text, arrays = self._text, self._topics.arrays
        put = self._put_answers
        if put is None and not self._is_ready():
            self._refused_count = batch.count
            return self._stored_slowly(batch, wire, connections, wait)
        if put is None:  # arrays are always of these types: a turn's batch is not a log's view
            find: Callable[..., Any] = entry
            put = self._put_answers = find(
                put_answers, batch.rows, wire, batch.staging, arrays.topics, arrays.names, *text
            )
        turn = text.turn[0]
        turn["count"], turn["wait"] = batch.count, wait
        end, self._refused_count = put(
            batch.rows, wire, batch.staging, arrays.topics, arrays.names, *text
        )
        if end < 0:
            self._refused_count = batch.count
            return self._stored_slowly(batch, wire, connections, wait)
        if len(connections) == 1 and end > SCRATCH_BYTES:
            return [(connections[0], text.out[SCRATCH_BYTES:end].tobytes())]
        found, start, last = [], SCRATCH_BYTES, end
        for connection, end in zip(
            connections, turn["ends"][: len(connections)].tolist(), strict=True
        ):
            if end > start:
                found.append((connection, text.out[start:end].tobytes()))
            start = end
            if end == last:
                break
        return found

    def _stored_slowly(
        self, batch: PutBatch, wire: npt.NDArray[Any], connections: list[Connection], wait: int
    ) -> Written:
        """Answer row by row: a hook gave a message an id that the kernel does not write."""
        found = []
        for index in range(batch.count):
            row, line = batch.rows[index], wire[index]
            waits = WAIT_NO if row["prop_flags"] & PROP_WAIT_FALSE else WAIT_YES
            if not row["status"] and not line["flags"] and wait in (WAIT_ANY, waits):
                send = PlainSend(index, 1, int(line["queue_id"]), _unique_id(batch, row))
                parts = codec.encode_response(self.response(batch, send), int(line["opaque"]))
                found.append((connections[line["connection"]], bytes(parts[0])))
        return found

    def _refused(
        self, batch: PutBatch, wire: npt.NDArray[Any], connections: list[Connection]
    ) -> Written:
        found = []
        for index in np.flatnonzero(batch.filled["status"]).tolist():
            line = wire[index]
            if not line["flags"]:
                response = self.response(batch, PlainSend(index, 1, 0, None))
                parts = codec.encode_response(response, int(line["opaque"]))
                found.append((connections[line["connection"]], bytes(parts[0])))
        return found

    # Sends that Python filled.

    def _answer_plain(self, batch: PutBatch) -> None:
        plain, self.plain = self.plain, []
        for each in plain:
            response = self.response(batch, each.send)
            waits = self.waits(batch, each.send, response)
            if each.send.before_answer is None and not waits:
                each.connection.respond(each.request, response, each.serialize_type)
            elif not each.request.oneway:
                each.connection.spawn(self._respond_later(each, response, waits=waits))

    def waits(self, batch: PutBatch, send: PlainSend, response: Response) -> bool:
        """Return whether a response must wait for the disk or for replicas."""
        if not self._settings.confirmed or response.code != ResponseCode.SUCCESS:
            return False
        rows = batch.rows[send.first : send.first + send.count]
        return bool((rows["prop_flags"] & PROP_WAIT_FALSE == 0).any())

    async def completed(self, response: Response, send: PlainSend, *, waits: bool) -> Response:
        """Return a response once what it waits for has happened."""
        end_offset = self._store.max_offset
        if send.before_answer is not None:
            await send.before_answer()
        if waits and (missing := await self._store.wait_confirmed(end_offset)):
            return _unconfirmed(response, missing)
        return response

    async def _respond_later(self, each: PlainAnswer, response: Response, *, waits: bool) -> None:
        response = await self.completed(response, each.send, waits=waits)
        each.connection.respond(each.request, response, each.serialize_type)

    def response(self, batch: PutBatch, send: PlainSend) -> Response:
        """Return the answer to a send whose rows have their results."""
        rows = batch.rows[send.first : send.first + send.count]
        for index, status in enumerate(rows["status"].tolist(), send.first):
            if status:
                remark = batch.remarks.get(index) or f"the message was refused with code {status}"
                return Response(status, remark, self._fields)
        address, port = self._settings.store_host
        ids = (encode_offset_id(address, port, at) for at in rows["phys_offset"].tolist())
        fields = send_fields(
            str(send.queue_id), send.transaction_id, ",".join(ids), str(rows[0]["queue_offset"]),
            region=self._settings.region, trace_on=self._settings.trace_on,
            recall_handle=self._recall_handle(rows[0], send),
        )  # fmt: skip
        return Response(ResponseCode.SUCCESS, None, fields)

    def _recall_handle(self, row: Any, send: PlainSend) -> str | None:
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

    # Answers that wait for disk and replicas.

    def _hold(self, answers: Written, count: int) -> None:
        if answers:
            noted = (count, self._refused_count, self._since_ms)
            release = self._release(self._store.max_offset, answers, noted)
            task = asyncio.get_running_loop().create_task(release, name="wait until confirmed")
            self._held.add(task)
            task.add_done_callback(self._released)

    async def _release(
        self, end_offset: int, answers: Written, noted: tuple[int, int, int]
    ) -> None:
        missing = await self._store.wait_confirmed(end_offset)
        if self._meter is not None:
            self._meter.sends(*noted)
        if missing:
            answers = [(to, _all_unconfirmed(data, missing)) for to, data in answers]
        _write(answers)

    def _released(self, task: asyncio.Task[None]) -> None:
        self._held.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("answers were lost", exc_info=task.exception())
        self._on_release()


def _write(answers: Written) -> None:
    for connection, data in answers:
        connection.write(data)


def _unique_id(batch: PutBatch, row: Any) -> str | None:
    pos, size = int(row["uniq_pos"]), int(row["uniq_len"])
    return batch.staging[pos : pos + size].tobytes().decode() if size else None


def _unconfirmed(response: Response, missing: Missing) -> Response:
    text = f"the message is stored, but {missing.text}"
    return replace(response, code=missing.code, remark=text)


def _all_unconfirmed(data: bytes, missing: Missing) -> bytes:
    """Return JSON answers with the code of what is missing instead of success."""
    view, pos, out = memoryview(data), 0, bytearray()
    while (frame := codec.next_frame(view, pos, len(data))) is not None:
        answer = codec.decode_frame(view, frame)
        assert isinstance(answer, codec.Answer)
        out += codec.encode_response(_unconfirmed(answer.response, missing), answer.opaque)[0]
        pos = frame.end
    return bytes(out)


def send_fields(
    queue_id: str, transaction_id: str | None, message_id: str, queue_offset: str, *, region: str,
    trace_on: bool, recall_handle: str | None = None,
) -> dict[str, str]:  # fmt: skip
    """Return the extFields of a send's answer, in Apache's order. SendMessageResponseHeader"""
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
    """Return the extFields that every answer to a send has."""
    return {"TRACE_ON": "true" if trace_on else "false", "MSG_REGION": region}


def answer_text(rows_max: int, *, region: str, trace_on: bool, broker_name: str) -> AnswerText:
    """Return the constant pieces of a send's answer, and room for `rows_max` answers.

    The pieces are cut from an answer that the codec encoded.
    """
    pieces = _pieces(region, trace_on, _PLACEHOLDER)
    pieces.append(_pieces(region, trace_on, None)[3])
    pieces.append(broker_name.encode())
    assert len(pieces) == PIECES
    text = np.frombuffer(b"".join(pieces), np.uint8).copy()
    out = np.empty(SCRATCH_BYTES + rows_max * (text.size + VARIABLE_BYTES_MAX), np.uint8)
    turn = np.zeros(1, ANSWERS)
    turn["cuts"] = np.cumsum([0, *map(len, pieces)])
    return AnswerText(text, out, turn)


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
