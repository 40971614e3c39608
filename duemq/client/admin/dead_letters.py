"""Dead letters of consumer groups: count and describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from delayed_delivery.names import OCCURRENCE_NAMES
from duemq.client.admin.messages import MessagesAdmin
from duemq.client.admin.resends import UndeliveredMessage
from duemq.client.message import RESERVED, ReceivedMessage
from duemq_common.topics import DLQ_PREFIX, RETRY_PREFIX

RESENT: Final = "DUEMQ_DEAD_LETTER"
"""Property of a message that was sent again: offset message id of the dead letter."""
KEPT: Final = {"KEYS", "TAGS", "__SHARDINGKEY"}
REMOVED: Final = (
    (RESERVED - KEPT)
    | OCCURRENCE_NAMES
    | frozenset(
        {
            RESENT,
            "1ST_POP_TIME",
            "DELAy",
            "DLQ_ORIGIN_MESSAGE_ID",
            "DLQ_ORIGIN_TOPIC",
            "DUEMQ_DUE_MS",
            "MAX_RECONSUME_TIMES",
            "ORIGIN_MESSAGE_ID",
            "POP_CK",
            "TIMER_DEQUEUE_MS",
            "TIMER_ENQUEUE_MS",
            "TIMER_ROLL_TIMES",
            "__STARTDELIVERTIME",
        }
    )
)
"""Properties of deliveries that a message does not keep when it is sent again."""


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Dead letters of a group.

    Attributes:
        last_stored_at: Time of the last one.
    """

    group: str
    messages: int
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(UndeliveredMessage):
    """Message that a group could not consume."""

    mark: ClassVar[str] = RESENT
    removed: ClassVar[frozenset[str]] = REMOVED

    message: ReceivedMessage


class DeadLettersAdmin(MessagesAdmin):
    """Requests about dead letters."""

    async def dead_letter_counts(self, *, brokers: Sequence[str] = ()) -> list[DeadLetterCount]:
        """Return the groups that have a topic of dead letters, by name.

        Args:
            brokers: Broker names; none: all.
        """
        counts = []
        for topic in await self.topics(brokers=brokers):
            if not topic.name.startswith(DLQ_PREFIX):
                continue
            queues = [
                queue
                for master in await self.masters(list(topic.settings))
                for queue in await self.queue_states(master, topic.name)
            ]
            times = [each.last_stored_at for each in queues if each.last_stored_at]
            group = topic.name.removeprefix(DLQ_PREFIX)
            messages = sum(queue.messages for queue in queues)
            counts.append(DeadLetterCount(group, messages, max(times, default=None)))
        return counts


def dead_letter(group: str, message: ReceivedMessage) -> DeadLetter:
    """Return a message of the topic of a group's dead letters with the topic of its delivery."""
    properties = message.properties
    origin = properties.get("RETRY_TOPIC") or properties.get("DLQ_ORIGIN_TOPIC", "")
    return DeadLetter(
        broker=message.queue.broker_name,
        record=message.record,
        topic="" if origin.startswith(RETRY_PREFIX) else origin,
        group=group,
        original=message.record,
        message=message,
    )
