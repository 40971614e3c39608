"""Acknowledgements (200051) that one turn of the loop takes from all connections.

    frames --decoded, or alike--> offsets by checkpoint --> records, answers by connection

The acknowledgements of one checkpoint in a turn are one record, as Apache's broker stores those of
a batch (200151).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from delivery.plugin import Peer, Request, Response
from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.layout import JSON_TYPE
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
from duemq.pop.revive_log import Entry
from message_store.errors import RequestError

FRAMES_MAX: Final = 512  # that one call of the kernel reads
Key = tuple[int, str, str, int, int, int, str, int]
"""Revive queue, topic, group, queue, start offset, pop time, broker name, due time."""
Answer = tuple[int, int, Key | None]
"""Opaque, serialize type, and the record that must be stored; None: none."""


class AckTurns:
    """Collects acknowledgements during a turn of the event loop.

    Args:
        uses_templates: Returns whether frames may be read by the kernel, with the access of the
            frame that they repeat.
    """

    def __init__(self, processor: AckProcessor, uses_templates: Callable[[], bool]) -> None:
        self._processor, self._uses_templates = processor, uses_templates
        self._templates: dict[Connection, AckTemplate] = {}
        self._numbers = np.zeros((FRAMES_MAX, COLUMNS), np.int64)
        self._ends = np.zeros(FRAMES_MAX, np.int64)
        self._offsets: dict[Key, dict[int, None]] = {}  # in the order of their arrival
        self._answers: dict[Connection, list[Answer]] = {}
        self._bounds: dict[tuple[str, int], tuple[int, int] | None] = {}

    # -- during a turn --------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that a turn begins."""
        self._bounds.clear()

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> None:
        """Take a decoded acknowledgement.

        Args:
            request: Not one-way.
            frame: The frame that it was decoded from.
        Raises:
            RequestError: It is refused.
        """
        entry, key = self._processor.admit(request), None
        if entry is not None:
            revive_queue, record = entry
            assert isinstance(record, Acknowledgement)
            key = _key_of(revive_queue, record)
            self._offsets.setdefault(key, {}).update(dict.fromkeys(record.offsets))
            self._note_template(connection, request, serialize_type, frame)
        answers = self._answers.setdefault(connection, [])
        answers.append((request.opaque, serialize_type, key))

    def _note_template(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> None:
        if serialize_type != JSON_TYPE or not self._uses_templates():
            return
        if (template := AckTemplate.of(frame, request)) is None:
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
        if template is None:
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

    def take_all(self) -> TakenAcks:
        """Return what the turn took; the next turn begins empty."""
        offsets, self._offsets = self._offsets, {}
        answers, self._answers = self._answers, {}
        pieces = [
            (key, named[at : at + OFFSETS_MAX])
            for key, named in ((key, tuple(each)) for key, each in offsets.items())
            for at in range(0, len(named), OFFSETS_MAX)
        ]
        entries: list[Entry] = [(key[0], _record(key, named)) for key, named in pieces]
        return TakenAcks(entries, [key for key, _ in pieces], answers)


@dataclass(slots=True)
class TakenAcks:
    """Acknowledgements of one turn.

    Attributes:
        entries: Records to put.
        keys: What names each record in `answers`.
        answers: Answers by connection.
    """

    entries: list[Entry]
    keys: list[Key]
    answers: dict[Connection, list[Answer]]

    @property
    def count(self) -> int:
        return sum(map(len, self.answers.values()))

    def frames(
        self, refused: Mapping[int, RequestError], unconfirmed: RequestError | None
    ) -> Iterator[tuple[Connection, Counter[int], list[bytes | memoryview]]]:
        """Yield the answers of each connection: how many with which code, and their bytes.

        Args:
            refused: Errors of entries by their index.
            unconfirmed: Error of entries that were stored; None: they are confirmed.
        """
        errors = {self.keys[index]: error for index, error in refused.items()}
        for connection, answers in self.answers.items():
            codes: Counter[int] = Counter()
            parts: list[bytes | memoryview] = []
            for opaque, serialize_type, key in answers:
                error = errors.get(key, unconfirmed) if key is not None else None
                codes[0 if error is None else error.code] += 1
                if error is None and serialize_type == JSON_TYPE:
                    parts.append(codec.encode_success(opaque))
                else:
                    answer = Response() if error is None else Response(error.code, error.remark)
                    parts += codec.encode_response(answer, opaque, serialize_type=serialize_type)
            yield connection, codes, parts


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
