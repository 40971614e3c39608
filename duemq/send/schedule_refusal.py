"""Put hook that refuses messages with properties of schedules if no plugin runs schedules.

Without it, a message that creates a schedule would be delivered once, as an ordinary one.
"""

from __future__ import annotations

from delayed_delivery.kinds import SCHEDULE_KIND
from delayed_delivery.schedule_rows import schedule_rows
from duemq_common.codes import ResponseCode
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable

REMARK = (
    "the message has a property of recurring schedules (DUEMQ_SCHEDULE...), but this broker has "
    "no plugin recurring_schedules: see brokerPluginDisabled"
)


class ScheduleRefusal:
    """Put hook; retries and dead letters of occurrences are accepted."""

    kinds = SCHEDULE_KIND

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics

    def __call__(self, batch: PutBatch, now_ms: int) -> None:
        """Refuse rows with a property of schedules."""
        for index in schedule_rows(batch, self._topics):
            batch.refuse(index, ResponseCode.SERVICE_NOT_AVAILABLE, REMARK)
