"""Journal of schedules: one record per change, with the whole state of its schedule.

    DUEMQ_SCHEDULES, queue 0    create A | create B | pause A | resume A | delete B | renew A ...

A record replaces all earlier ones of its name. The occurrences themselves are records in the timer
topic; the last one that follows the schedule's newest record shows how far it is planned. Both are
in the log, so replicas have them, and one append is one change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from delayed_delivery.own_records import put_own
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.topics import SCHEDULES_TOPIC
from recurring_schedules.definition import Definition
from recurring_schedules.names import JOURNAL_QUEUE

if TYPE_CHECKING:
    from message_store.queues.topic_table import TopicTable
    from message_store.store import MessageStore

ACTIVE, PAUSED, DELETED = "active", "paused", "deleted"


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a schedule after one change.

    Attributes:
        revision: Number of the change, from 1 on.
        planned_ms: Planned time of the last occurrence that was appended, or a time after which
            occurrences are planned.
        next_ms: Planned time of the next occurrence to append; 0: the schedule has ended.
        pending_offset: Log offset of the last occurrence's record; -1: none.
        withdrawn_ms: Planned time of the occurrence that a pause cancels; 0: none.
        changed_ms: Time of the change.
    """

    definition: Definition
    state: str = ACTIVE
    revision: int = 1
    planned_ms: int = 0
    next_ms: int = 0
    pending_offset: int = -1
    withdrawn_ms: int = 0
    note: str = ""
    created_ms: int = 0
    changed_ms: int = 0

    def pending_ms(self, now_ms: int) -> int:
        """Return the planned time of the pending occurrence.

        0: none is pending, as of a paused schedule, or while the next time is too far ahead.
        """
        return self.planned_ms if self.state == ACTIVE and self.planned_ms > now_ms else 0


_DECODER: Final = msgspec.json.Decoder(ScheduleRecord)


def topic_fault(topics: TopicTable, topic: str) -> str:
    """Return why messages cannot be sent to a topic; empty: they can."""
    index = topics.find(topic)
    if index >= 0 and topics.arrays.topics[index]["write_queues"]:
        return ""
    return f"topic {topic[:127]} does not exist"


def encode(record: ScheduleRecord) -> bytes:
    """Return the body of a record."""
    return msgspec.json.encode(record)


def decode(body: bytes) -> ScheduleRecord:
    """Return the record of a body.

    Raises:
        ValueError: The body is malformed.
    """
    return _DECODER.decode(body)  # its DecodeError is a ValueError


def append(store: MessageStore, record: ScheduleRecord, now_ms: int) -> None:
    """Append a record; dispatchers of the topic apply it.

    Raises:
        RequestError: The store refuses the append; nothing has changed.
    """
    batch = put_own(store, SCHEDULES_TOPIC, JOURNAL_QUEUE, encode(record), now_ms=now_ms)
    if batch.rows[0]["status"]:
        reason = batch.refusal(0)
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
