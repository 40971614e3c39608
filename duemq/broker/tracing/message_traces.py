"""Spans of messages, derived from batches that the store has appended and from pulled bytes.

    accept   the broker has appended the message of a producer: arrival to end of the turn
    due      promised time to store time of the delivery: its lateness
    stored   the message is in its topic: store time to end of the turn
    pulled   a response has the message

All spans of a message are children of its producer's span, so nothing is written into the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from opentelemetry.trace import SpanKind

from delayed_delivery.pending import PendingMessages
from duemq.broker.tracing.contexts import TraceContext, sampled_contexts
from duemq.broker.tracing.span_export import Attributes, SpanExport
from duemq.net.notices import Notices
from duemq.registry.internal_topics import is_internal
from duemq_common.clock import Clock
from duemq_common.errors import RecordUnreadable
from message_store.layout import Row
from message_store.log.batch import PutBatch
from message_store.log.properties import decode_properties
from message_store.log.record import split_records

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
SECOND_MS: Final = 1_000
SPARSE_MAX: Final = 4  # bytes between messages to bytes of messages, for one search of all


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """Share of the sampled messages that are traced, and maximum of events in a second."""

    ratio: float
    messages_max: int


class MessageTraces:
    """Spans of the messages of one store; used by the event loop.

    Args:
        ports: Returns the components that own pending messages.
    """

    def __init__(
        self,
        store: MessageStore,
        ports: Callable[[], Sequence[PendingMessages]],
        clock: Clock,
        export: SpanExport,
        limits: TraceLimits,
    ) -> None:
        self._store, self._ports, self._clock = store, ports, clock
        self._export, self._limits = export, limits
        self._second, self._left = 0, limits.messages_max
        self._exceeded = Notices(log)

    def on_append(self, batch: PutBatch) -> None:
        """Add the spans of an appended batch."""
        order = None
        for position, context in self._contexts(batch):
            if order is None:
                order = np.argsort(batch.filled["prop_pos"], kind="stable")
                starts = batch.filled["prop_pos"][order]
            index = int(np.searchsorted(starts, position, "right")) - 1
            if index < 0:
                continue  # in a body
            row = batch.filled[order[index]]
            end = int(row["prop_pos"]) + int(row["prop_len"])
            if position < end and row["status"] == 0 and self._has_room():
                text = batch.staging[row["prop_pos"] : end].tobytes()
                self._add_row(row, decode_properties(text), context)

    def _contexts(self, batch: PutBatch) -> Iterator[tuple[int, TraceContext]]:
        """Yield the sampled contexts in the staging buffer, with their positions.

        The messages of a delivery by level may be far from each other in a file of the log.
        """
        rows, ratio = batch.filled, self._limits.ratio
        if not rows.size:
            return
        starts, ends = rows["prop_pos"], rows["prop_pos"] + rows["prop_len"]
        first, end = int(starts.min()), int(ends.max())
        pieces = [(first, end)]
        if end - first > SPARSE_MAX * int(rows["prop_len"].sum() + rows["body_len"].sum()):
            pieces = list(zip(starts.tolist(), ends.tolist(), strict=True))
        for start, stop in pieces:
            for position, context in sampled_contexts(batch.staging[start:stop].data, ratio):
                yield start + position, context

    def on_pulled(self, body: bytes, topic: str, group: str) -> None:
        """Add the spans of the messages in a response."""
        if next(sampled_contexts(body, self._limits.ratio), None) is None:
            return
        now_ms = self._clock.now_ms()
        try:
            records = split_records(body, check_crc=False)
        except RecordUnreadable:
            return
        for record in records:
            sampled = next(sampled_contexts(record.property_text, self._limits.ratio), None)
            if sampled is not None and self._has_room():
                more = {"messaging.consumer.group.name": group}
                attributes = _attributes("pulled", topic, record.properties) | more
                self._add("pulled", sampled[1], (now_ms, now_ms), attributes, SpanKind.CLIENT)

    def _add_row(self, row: Row, properties: dict[str, str], context: TraceContext) -> None:
        store_ms, now_ms = int(row["store_ms"]), self._clock.now_ms()
        is_pending, is_delivery = row["real_topic_index"] >= 0, row["prepared_offset"] < 0
        index = int(row["real_topic_index"] if is_pending else row["topic_index"])
        topic = self._store.topics.name(index)
        if is_internal(topic) or (is_pending and is_delivery):  # the latter: a moved message
            return
        stay = store_ms, max(now_ms, store_ms)
        if is_delivery:
            due_ms = self._due_ms(-int(row["prepared_offset"]) - 1)
            if due_ms >= 0:
                more = {"messaging.rocketmq.message.delivery_timestamp": due_ms}
                attributes = _attributes("due", topic, properties) | more
                lateness = min(due_ms, store_ms), store_ms
                self._add("due", context, lateness, attributes, SpanKind.INTERNAL)
        else:
            attributes = _attributes("accept", topic, properties)
            self._add("accept", context, stay, attributes, SpanKind.SERVER)
        if not is_pending:
            attributes = _attributes("stored", topic, properties)
            self._add("stored", context, stay, attributes, SpanKind.INTERNAL)

    def _due_ms(self, log_offset: int) -> int:
        """Return the due time of a delivered record, -1 if it is not known."""
        offsets = np.array([log_offset], np.int64)
        return max((int(port.promised(offsets)[0]) for port in self._ports()), default=-1)

    def _add(
        self,
        name: str,
        context: TraceContext,
        times_ms: tuple[int, int],
        attributes: Attributes,
        kind: SpanKind,
    ) -> None:
        start_ms, end_ms = times_ms
        self._export.add(
            name, context, start_ms=start_ms, end_ms=end_ms, kind=kind, attributes=attributes
        )

    def _has_room(self) -> bool:
        """Return whether another event of this second may be recorded."""
        second = self._clock.now_ms() // SECOND_MS
        if second != self._second:
            self._second, self._left = second, self._limits.messages_max
        self._left -= 1
        if self._left == -1:
            self._exceeded(
                "more than %d traced messages in a second: the others are not traced; see "
                "otelMessagesMax and otelSampleRatio",
                self._limits.messages_max,
            )
        return self._left >= 0


def _attributes(operation: str, topic: str, properties: dict[str, str]) -> dict[str, str | int]:
    """Return the attributes of a span, named by OpenTelemetry's conventions for messaging."""
    attributes: dict[str, str | int] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
        "messaging.message.id": properties.get("UNIQ_KEY", ""),
    }
    for name, key in (("keys", "KEYS"), ("tag", "TAGS"), ("delay_time_level", "DELAY")):
        if value := properties.get(key):
            attributes[f"messaging.rocketmq.message.{name}"] = value
    return attributes
