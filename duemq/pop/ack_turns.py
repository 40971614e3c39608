"""Acknowledgements (200051) of all connections of one loop turn: one append, one write each.

    frames --decoded, or alike--> offsets by checkpoint --one record each--> revive log
                                                                                 |
    one write per connection <--when disk and replicas have it, if they must-----+

The acknowledgements of one checkpoint in a turn are one record, as Apache's broker stores those of
a batch (200151).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import numpy as np

from delivery.plugin import Peer, Request, Response
from duemq.net import codec
from duemq.net.codes import RequestCode
from duemq.net.connection import Connection
from duemq.net.dispatcher import AccessCheck, refusal
from duemq.net.layout import JSON_TYPE
from duemq.net.notices import Notices
from duemq.pop.ack_templates import (
    COLUMNS,
    INVISIBLE_MS,
    OFFSET,
    OPAQUE,
    POP_MS,
    QUEUE,
    REVIVE_QUEUE,
    START,
    AckTemplate,
)
from duemq.pop.acks import AckProcessor
from duemq.pop.checkpoints import OFFSETS_MAX, Acknowledgement
from duemq.pop.kernels.alike import take_alike
from duemq.pop.names import REVIVE_QUEUES
from duemq.pop.revive_log import ReviveLog
from message_store.errors import RequestError

FRAMES_MAX: Final = 512  # that one call of the kernel reads
UNCONFIRMED_MAX: Final = 16_384  # answers that wait; beyond, requests are handled one by one
Key = tuple[int, str, str, int, int, int, str, int]
"""Revive queue, topic, group, queue, start offset, pop time, broker name, due time."""
Answer = tuple[int, int, Key | None]
"""Opaque, serialize type, and the record that must be stored; None: none."""


class AckMeter(Protocol):
    """Measures acknowledgements."""

    def start(self) -> int: ...
    def acknowledgements(self, code: int, count: int, since_ms: int) -> None: ...


class AckTurns:
    """Collects acknowledgements during a turn of the event loop, and answers them at its end.

    Args:
        access: Checks each request; None: a peer may acknowledge everything.
        is_ready: Returns whether kernels can be called.
        confirms: Whether answers wait for the disk or for replicas.
    """

    codes: Final[frozenset[int]] = frozenset({RequestCode.ACK_MESSAGE})

    def __init__(
        self,
        processor: AckProcessor,
        revive_log: ReviveLog,
        failed: Notices,
        meter: AckMeter,
        *,
        access: AccessCheck | None,
        is_ready: Callable[[], bool],
        confirms: bool,
    ) -> None:
        self._processor, self._revive_log = processor, revive_log
        self._failed, self._meter, self._access = failed, meter, access
        self._is_ready, self._confirms = is_ready, confirms
        self._templates: dict[Connection, AckTemplate] = {}
        self._numbers = np.zeros((FRAMES_MAX, COLUMNS), np.int64)
        self._ends = np.zeros(FRAMES_MAX, np.int64)
        self._waiting: set[asyncio.Task[None]] = set()
        self._unconfirmed = 0
        self._offsets: dict[Key, dict[int, None]] = {}  # in the order of their arrival
        self._answers: dict[Connection, list[Answer]] = {}
        self._bounds: dict[tuple[str, int], tuple[int, int] | None] = {}
        self._since_ms = 0

    # -- during a turn --------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that a turn begins: what it takes was received now."""
        self._since_ms = self._meter.start()
        self._bounds.clear()

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> bool:
        """Take a decoded acknowledgement; return whether it will be answered here.

        Args:
            frame: The frame that it was decoded from.
        """
        if self._unconfirmed > UNCONFIRMED_MAX:
            return False
        request.peer = connection
        try:
            if self._access is not None:
                self._access(request)
            entry = self._processor.admit(request)
        except Exception as error:
            answer = refusal(error, request, self._failed)
            self._meter.acknowledgements(answer.code, 1, self._since_ms)
            connection.respond(request, answer, serialize_type)
            return True
        key = None
        if entry is not None:
            revive_queue, record = entry
            assert isinstance(record, Acknowledgement)
            key = _key_of(revive_queue, record)
            self._offsets.setdefault(key, {}).update(dict.fromkeys(record.offsets))
            self._note_template(connection, request, serialize_type, frame)
        if not request.oneway:
            answers = self._answers.setdefault(connection, [])
            answers.append((request.opaque, serialize_type, key))
        return True

    def _note_template(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> None:
        if self._access is not None or serialize_type != JSON_TYPE or not self._is_ready():
            return  # each has its own signature, or its own form
        if request.oneway or (template := AckTemplate.of(frame, request)) is None:
            return
        if connection not in self._templates:
            connection.on_close(self._forget)
        self._templates[connection] = template

    def _forget(self, peer: Peer) -> None:
        self._templates.pop(cast(Connection, peer), None)

    def take_alike(self, connection: Connection) -> bool:
        """Take the next frames of a connection as far as they repeat its last acknowledgement.

        Returns:
            Whether there were any.
        """
        template = self._templates.get(connection)
        if template is None or self._unconfirmed > UNCONFIRMED_MAX:
            return False
        received = connection.received
        count = take_alike(
            received.data, received.start, received.end, template.parts, self._numbers, self._ends
        )
        rows = self._numbers[:count].tolist()
        taken = self._take_numbers(connection, template, rows) if count else 0
        if taken:
            received.take(int(self._ends[taken - 1]))
        return taken > 0

    def _take_numbers(
        self, connection: Connection, template: AckTemplate, rows: list[list[int]]
    ) -> int:
        """Take the leading rows that are valid; return their number."""
        topic, group, broker_name = template.topic, template.group, template.broker_name
        answers = self._answers.setdefault(connection, [])
        for taken, row in enumerate(rows):
            bounds = self._bounds_of(topic, row[QUEUE])
            if bounds is None or not bounds[0] <= row[OFFSET] <= bounds[1]:
                return taken
            if row[REVIVE_QUEUE] >= REVIVE_QUEUES:
                return taken
            pop_ms = row[POP_MS]
            key = (
                *(row[REVIVE_QUEUE], topic, group, row[QUEUE], row[START], pop_ms),
                *(broker_name, pop_ms + row[INVISIBLE_MS]),
            )
            offsets = self._offsets.get(key)
            if offsets is None:
                offsets = self._offsets[key] = {}
            offsets[row[OFFSET]] = None
            answers.append((row[OPAQUE], JSON_TYPE, key))
        return len(rows)

    def _bounds_of(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Return the offsets of a queue that can be acknowledged, None if none can."""
        place = topic, queue_id
        if place not in self._bounds:
            try:
                self._bounds[place] = self._processor.valid_offsets(topic, queue_id)
            except RequestError:
                self._bounds[place] = None
        return self._bounds[place]

    # -- at its end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Append the records of the turn, and answer, now or when they are confirmed."""
        offsets, answers = self._offsets, self._answers
        if not answers and not offsets:
            return
        self._offsets, self._answers = {}, {}
        since_ms = self._since_ms
        refused = self._put(offsets)
        if self._confirms and len(refused) < len(offsets):
            task = asyncio.create_task(self._answer_confirmed(answers, refused, since_ms))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            self._answer(answers, refused, since_ms)

    def _put(self, offsets: dict[Key, dict[int, None]]) -> dict[Key, RequestError]:
        """Append the records; return why some were refused."""
        pieces = [
            (key, named[at : at + OFFSETS_MAX])
            for key, named in ((key, tuple(each)) for key, each in offsets.items())
            for at in range(0, len(named), OFFSETS_MAX)
        ]
        entries = [(key[0], _record(key, named)) for key, named in pieces]
        refused = self._revive_log.put_each(entries)
        return {pieces[index][0]: error for index, error in refused.items()}

    async def _answer_confirmed(
        self,
        answers: dict[Connection, list[Answer]],
        refused: dict[Key, RequestError],
        since_ms: int,
    ) -> None:
        count = sum(map(len, answers.values()))
        self._unconfirmed += count
        unconfirmed = None
        try:
            await self._revive_log.confirm("the message was acknowledged")
        except RequestError as error:
            unconfirmed = error
        finally:
            self._unconfirmed -= count
        self._answer(answers, refused, since_ms, unconfirmed)

    def _answer(
        self,
        answers: dict[Connection, list[Answer]],
        refused: dict[Key, RequestError],
        since_ms: int,
        unconfirmed: RequestError | None = None,
    ) -> None:
        """Write the answers.

        Args:
            unconfirmed: Error of records that were stored; None: they are confirmed.
        """
        codes: dict[int, int] = {}
        for connection, mine in answers.items():
            parts: list[bytes | memoryview] = []
            for opaque, serialize_type, key in mine:
                error = refused.get(key, unconfirmed) if key is not None else None
                code = 0 if error is None else error.code
                codes[code] = codes.get(code, 0) + 1
                if error is None and serialize_type == JSON_TYPE:
                    parts.append(codec.encode_success(opaque))
                else:
                    answer = Response() if error is None else Response(error.code, error.remark)
                    parts += codec.encode_response(answer, opaque, serialize_type=serialize_type)
            if parts:
                connection.write(b"".join(parts))
        for code, count in codes.items():
            self._meter.acknowledgements(code, count, since_ms)

    async def drain(self) -> None:
        """Return when every answer is out."""
        while self._waiting:
            await asyncio.wait(self._waiting)


def _key_of(revive_queue: int, record: Acknowledgement) -> Key:
    return (
        *(revive_queue, record.topic, record.group, record.queue_id, record.start_offset),
        *(record.pop_ms, record.broker_name, record.due_ms),
    )


def _record(key: Key, offsets: tuple[int, ...]) -> Acknowledgement:
    _, topic, group, queue_id, start_offset, pop_ms, broker_name, due_ms = key
    return Acknowledgement(
        topic=topic,
        group=group,
        queue_id=queue_id,
        start_offset=start_offset,
        pop_ms=pop_ms,
        offsets=offsets,
        broker_name=broker_name,
        due_ms=due_ms,
    )
