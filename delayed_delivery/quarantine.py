"""Quarantine topic: undeliverable messages, each with its reason.

A quarantine record names the same origin as a delivery would, so a message is either delivered or
quarantined, exactly once. Its body is the complete pending record, as stored in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from duemq_common.codes import ResponseCode
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable

if TYPE_CHECKING:  # loads the kernels, which commands do not need
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
LOGGED_MAX: Final = 10  # maximum messages of one batch with a log line each
NO_HOST = (b"\x7f\x00\x00\x01", 0)
DETAIL_CHARS_MAX = 500
VALUE_BYTES_MAX = 4_000


class Reason(StrEnum):
    """Why a message cannot be delivered; values of the property DUEMQ_REASON."""

    UNREADABLE = "unreadable"  # no valid record at the log offset of the unit
    WRONG_RECORD = "wrong_record"  # another record than that of the unit
    NO_TARGET = "no_target"  # REAL_TOPIC or REAL_QID is missing or invalid
    NO_TIME = "no_time"  # a timer without a due time
    TOPIC_MISSING = "topic_missing"
    HALF_MESSAGE = "half_message"
    ILLEGAL = "illegal"  # the store refuses its size


class Undeliverable(Struct, frozen=True):
    """A pending message that goes to quarantine.

    Attributes:
        level: Level of the message, 0 for a timer.
        queue_offset: Position in the schedule or timer queue, -1 if unknown.
        record: Decoded record, None if it cannot be decoded.
        data: Bytes of the record, empty if the log no longer has them.
        due_ms: Due time of a timer, -1 for a level message or if unknown.
        topic: Topic of a message that was popped, empty for a pending one.
        group: Group that popped it.
    """

    reason: Reason
    detail: str
    phys_offset: int
    level: int
    queue_offset: int
    record: Record | None = None
    data: bytes = b""
    due_ms: int = -1
    topic: str = ""
    group: str = ""

    @property
    def origin(self) -> int:
        """Value of preparedTransactionOffset: only the end of a pending message is negative."""
        return self.phys_offset if self.topic else origin_of(self.phys_offset)

    def with_data(self, data: bytes) -> Undeliverable:
        """Return a copy with different record bytes."""
        return replace(self, data=data)


def report(items: Sequence[Undeliverable]) -> None:
    """Log messages of one batch that went to quarantine: a line for each of the first ones."""
    for item in items[:LOGGED_MAX]:
        kind = f"level {item.level}" if item.level else "timer"
        log.warning(
            "%s offset %d (log offset %d) went to quarantine, %s: %s",
            kind,
            item.queue_offset,
            item.phys_offset,
            item.reason.value,
            item.detail,
        )
    if len(items) > LOGGED_MAX:
        log.warning("%d more messages went to quarantine", len(items) - LOGGED_MAX)


def origin_of(phys_offset: int) -> int:
    """Return the value of preparedTransactionOffset that names an origin."""
    return -(phys_offset + 1)


def quarantine(batch: PutBatch, topics: TopicTable, item: Undeliverable, *, now_ms: int) -> None:
    """Add the quarantine record of `item` to `batch`."""
    record = item.record
    batch.add(
        topic_index=topics.add(QUARANTINE_TOPIC),
        queue_id=0,
        body=item.data,
        properties=encode_properties(_properties(item)),
        born_ms=record.born_ms if record else now_ms,
        born_host=record.born_host if record else NO_HOST,
        store_host=record.store_host if record else NO_HOST,
        reconsume_times=record.reconsume_times if record else 0,
        prepared_offset=item.origin,
    )


def put_quarantined(
    store: MessageStore, batch: PutBatch, item: Undeliverable, *, now_ms: int
) -> str:
    """Append the quarantine record of `item`; return the reason if it is refused, otherwise ''.

    If the store refuses the size of the record, it is appended without a body.

    Args:
        batch: Batch with room for one message; its contents are cleared.
    """
    for data in (item.data, b""):
        batch.clear()
        batch.trusted = True
        quarantine(batch, store.topics, item.with_data(data), now_ms=now_ms)
        store.put(batch)
        if batch.rows[0]["status"] != ResponseCode.MESSAGE_ILLEGAL:
            break
    return batch.refusal(0) if batch.rows[0]["status"] else ""


def _properties(item: Undeliverable) -> dict[str, str]:
    had = item.record.properties if item.record else {}
    kept = {
        "KEYS": had.get("KEYS"),
        "UNIQ_KEY": had.get("UNIQ_KEY"),
        "DUEMQ_TOPIC": item.topic or had.get("REAL_TOPIC"),
        "DUEMQ_QUEUE_ID": had.get("REAL_QID"),
    }
    facts = {
        "DUEMQ_REASON": item.reason.value,
        "DUEMQ_GROUP": item.group,
        "DUEMQ_DETAIL": item.detail[:DETAIL_CHARS_MAX],
        "DUEMQ_LEVEL": str(item.level) if item.level else "",
        "DUEMQ_DUE_MS": str(item.due_ms) if item.due_ms >= 0 else "",
        "DUEMQ_QUEUE_OFFSET": str(item.queue_offset) if item.queue_offset >= 0 else "",
        "DUEMQ_PHYS_OFFSET": str(item.phys_offset),
    }
    shown = {k: v for k, v in kept.items() if v and len(v.encode()) <= VALUE_BYTES_MAX}
    return shown | {k: v for k, v in facts.items() if v}
