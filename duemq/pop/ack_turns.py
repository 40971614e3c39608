"""Acknowledgements (200051) that all connections send during one turn of the event loop.

frames --codec or kernel--> offsets by checkpoint --> records
                       +--> responses by connection
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.layout import JSON_TYPE, PREFIX_BYTES
from duemq.pop.acks import AckProcessor
from duemq.pop.checkpoints import Entry
from duemq.pop.kernels.acks import (
    ALL_KNOWN,
    COLUMNS,
    GROUP_COLUMNS,
    OPAQUE,
    UNKNOWN,
    AckRows,
    group_acks,
)
from duemq.pop.kernels.matching_frames import read_matching
from duemq.pop.merged_acks import AckKey, MergedAcks
from duemq.pop.templates.ack_templates import AckTemplate
from duemq.pop.templates.frame_templates import ConnectionTemplates
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.kernels.bytes import POWERS, Bytes

FRAMES_MAX: Final = 512  # per call of the kernel
TOPICS_MAX: Final = 1_024  # topics with an allocated array of queue bounds
NO_OFFSET: Final = (1, 0)  # bounds of a queue in which no offset is valid
SUCCESS_HEAD, SUCCESS_TAIL = codec.SUCCESS
SUCCESS_PARTS: Final[tuple[Bytes, Bytes]] = (
    np.frombuffer(SUCCESS_HEAD, np.uint8).copy(),
    np.frombuffer(SUCCESS_TAIL, np.uint8).copy(),
)
RESPONSE_BYTES_MAX: Final = PREFIX_BYTES + sum(map(len, codec.SUCCESS)) + POWERS.size
Bounds = npt.NDArray[np.int64]


class DecodedAck(Struct, frozen=True):
    """Response to an acknowledgement that the codec decoded.

    Attributes:
        key: Key of the record that must be stored; None: an orderly pop, which has no record.
    """

    opaque: int
    serialize_type: int
    key: AckKey | None

    def count(self) -> int:
        """Return the number of acknowledgements."""
        return 1

    def rows(self) -> Iterator[tuple[int, int, AckKey | None]]:
        """Yield opaque number, serialize type and key of the acknowledgement."""
        yield self.opaque, self.serialize_type, self.key


class MatchingAcks(Struct, frozen=True):
    """Responses to acknowledgements that the kernel read.

    Attributes:
        responses: Frames of all responses if every record is stored.
        opaques: (n,) i8: opaque number of each acknowledgement.
        group_of: (n,) i8: index in `keys` of each acknowledgement.
        keys: Keys of the records that must be stored.
    """

    responses: bytes
    opaques: npt.NDArray[np.int64]
    group_of: npt.NDArray[np.int64]
    keys: list[AckKey]

    def count(self) -> int:
        """Return the number of acknowledgements."""
        return self.opaques.size

    def rows(self) -> Iterator[tuple[int, int, AckKey | None]]:
        """Yield opaque number, serialize type and key of each acknowledgement."""
        for opaque, group in zip(self.opaques.tolist(), self.group_of.tolist(), strict=True):
            yield opaque, JSON_TYPE, self.keys[group]


AckResponses = DecodedAck | MatchingAcks
"""Responses to acknowledgements of one connection, in the order of their requests."""


class AckTurns:
    """Collector of the acknowledgements of a turn.

    Args:
        uses_templates: Returns whether the kernel may read frames. A frame that matches a template
            has the permissions of the request from which the template was derived.
    """

    def __init__(self, processor: AckProcessor, uses_templates: Callable[[], bool]) -> None:
        self._processor, self._uses_templates = processor, uses_templates
        self._templates = ConnectionTemplates[AckTemplate]()
        self._rows = AckRows(
            numbers=np.zeros((FRAMES_MAX, COLUMNS), np.int64),
            frame_ends=np.zeros(FRAMES_MAX, np.int64),
            group_of=np.zeros(FRAMES_MAX, np.int64),
            groups=np.zeros((FRAMES_MAX, GROUP_COLUMNS), np.int64),
            offsets=np.zeros(FRAMES_MAX, np.int64),
            responses=np.zeros(FRAMES_MAX * RESPONSE_BYTES_MAX, np.uint8),
        )
        self._merged = MergedAcks()
        self._responses: dict[Connection, list[AckResponses]] = {}
        self._bounds: dict[str, Bounds] = {}
        self._loaded: list[tuple[Bounds, int]] = []  # queues with bounds of this turn

    # -- during a turn --------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a turn: discard the queue bounds of the last turn."""
        for bounds, queue_id in self._loaded:
            bounds[queue_id] = UNKNOWN
        self._loaded.clear()

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> None:
        """Add a decoded acknowledgement.

        Args:
            request: An acknowledgement that is not one-way.
            frame: Frame of the request, with its prefix.
        Raises:
            RequestError: The acknowledgement is invalid.
        """
        entry, key = self._processor.admit(request), None
        if entry is not None:
            revive_queue, record = entry
            key = self._merged.add(revive_queue, record)
            self._add_template(connection, request, serialize_type, frame)
        responses = self._responses.setdefault(connection, [])
        responses.append(DecodedAck(request.opaque, serialize_type, key))

    def _add_template(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> None:
        if serialize_type != JSON_TYPE or not self._uses_templates():
            return
        if self._templates.accepts(connection):
            template = AckTemplate.of(frame, request)
            if template is not None:
                self._templates.add(connection, template)

    def take_matching(self, connection: Connection) -> bool:
        """Consume the leading frames of a connection that match one of its templates.

        Returns:
            Whether at least one frame was consumed.
        """
        cache = self._templates.of(connection)
        if cache is None:
            return False
        for index, template in enumerate(cache.templates):
            if self._take_frames(connection, template):
                cache.matched(index)
                return True
        return False

    def _take_frames(self, connection: Connection, template: AckTemplate) -> bool:
        """Consume the leading frames that match a template and are valid.

        Returns:
            Whether at least one frame was consumed.
        """
        received, rows = connection.received, self._rows
        count = read_matching(
            received.data,
            received.start,
            received.end,
            template.parts,
            rows.numbers,
            rows.frame_ends,
        )
        if not count:
            return False
        bounds = self._bounds_of(template.topic)
        while True:
            valid, groups, size, missing = group_acks(count, bounds, SUCCESS_PARTS, rows)
            if missing == ALL_KNOWN:
                break
            bounds[missing] = self._queue_bounds(template.topic, missing)
            self._loaded.append((bounds, missing))
        if not valid:
            return False
        self._add_groups(connection, template, valid, groups, rows.responses[:size].tobytes())
        received.take(int(rows.frame_ends[valid - 1]))
        return True

    def _add_groups(
        self,
        connection: Connection,
        template: AckTemplate,
        count: int,
        group_count: int,
        responses: bytes,
    ) -> None:
        """Add the groups that the kernel wrote to `_rows` to the records of the turn."""
        topic, group, broker_name = template.topic, template.group, template.broker_name
        rows, keys, first = self._rows, [], 0
        offsets = rows.offsets[:count].tolist()
        for each in rows.groups[:group_count].tolist():
            revive_queue, queue_id, start, pop_ms, invisible_ms, end = each
            key = (
                revive_queue,
                topic,
                group,
                queue_id,
                start,
                pop_ms,
                broker_name,
                pop_ms + invisible_ms,
            )
            self._merged.extend(key, offsets[first:end])
            keys.append(key)
            first = end
        self._responses.setdefault(connection, []).append(
            MatchingAcks(
                responses, rows.numbers[:count, OPAQUE].copy(), rows.group_of[:count].copy(), keys
            )
        )

    def _bounds_of(self, topic: str) -> Bounds:
        """Return the lowest and highest valid offset of each queue of a topic.

        Returns:
            (queues, 2) i8; `UNKNOWN` for a queue whose bounds are not loaded in this turn.
        """
        bounds, queues = self._bounds.get(topic), self._processor.queue_count(topic)
        if bounds is None or len(bounds) != queues:
            if len(self._bounds) >= TOPICS_MAX:
                self._bounds.clear()
            bounds = self._bounds[topic] = np.full((queues, 2), UNKNOWN, np.int64)
        return bounds

    def _queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        try:
            return self._processor.valid_offsets(topic, queue_id)
        except RequestError:
            return NO_OFFSET

    # -- at the end of the turn -----------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the turn has no acknowledgements."""
        return not (self._responses or self._merged)

    def take_all(self) -> TurnAcks:
        """Remove and return the acknowledgements of the turn."""
        responses, self._responses = self._responses, {}
        keys, entries = self._merged.take()
        return TurnAcks(entries, keys, responses)


class TurnAcks(Struct):
    """Acknowledgements of one turn.

    Attributes:
        entries: Records to append to the revive topic.
        keys: Key of each record.
        by_connection: Responses by connection.
    """

    entries: list[Entry]
    keys: list[AckKey]
    by_connection: dict[Connection, list[AckResponses]]

    @property
    def count(self) -> int:
        """Number of acknowledgements."""
        return sum(each.count() for acks in self.by_connection.values() for each in acks)

    def responses(
        self,
        refused: Mapping[int, RequestError],
        unconfirmed: RequestError | None,
        counts: Counter[int],
    ) -> Iterator[tuple[Connection, list[bytes | memoryview]]]:
        """Yield the buffers of each connection's responses.

        Args:
            refused: Errors of records, by index in `entries`.
            unconfirmed: Error of stored records; None: disk and replicas have confirmed them.
            counts: Number of responses by code; these responses are added.
        """
        errors = {self.keys[index]: error for index, error in refused.items()}
        for connection, acks in self.by_connection.items():
            parts: list[bytes | memoryview] = []
            for each in acks:
                if isinstance(each, MatchingAcks) and not errors and unconfirmed is None:
                    counts[0] += each.count()
                    parts.append(each.responses)
                    continue
                for opaque, serialize_type, key in each.rows():
                    error = errors.get(key, unconfirmed) if key is not None else None
                    counts[0 if error is None else error.code] += 1
                    parts += _response(opaque, serialize_type, error)
            yield connection, parts


def _response(
    opaque: int, serialize_type: int, error: RequestError | None
) -> list[bytes | memoryview]:
    if error is None and serialize_type == JSON_TYPE:
        return [codec.encode_success(opaque)]
    response = Response() if error is None else Response(error.code, error.remark)
    return codec.encode_response(response, opaque, serialize_type=serialize_type)
