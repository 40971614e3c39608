"""Messages of occurrences: rows of a batch that the put hook of the timers redirects."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from delayed_delivery.names import MANUAL, NEXT_TIME, PLANNED_TIME, SCHEDULE_NAME
from delayed_delivery.quarantine import NO_HOST
from message_store.log.properties import encode_properties
from recurring_schedules.definition import Definition
from recurring_schedules.names import DELIVER_MS, UNIQUE_KEY, occurrence_key

if TYPE_CHECKING:
    from message_store.log.batch import PutBatch
    from message_store.queues.topic_table import TopicTable


def add_occurrence(
    batch: PutBatch,
    topics: TopicTable,
    definition: Definition,
    planned_ms: int,
    *,
    next_ms: int,
    due_ms: int,
    now_ms: int,
    manual: str = "",
    key_suffix: str = "",
) -> None:
    """Add the message of an occurrence to a batch.

    It is due in the future, at least by a millisecond, so that every occurrence is a timer. If its
    topic is deleted, the delivery puts it into quarantine.

    Args:
        next_ms: Planned time of the following occurrence; 0: none.
        manual: See `names.MANUAL`; empty for a planned occurrence.
        key_suffix: End of the unique key of a manual occurrence.
    """
    key = occurrence_key(definition.name, planned_ms) + key_suffix
    properties = {
        **definition.properties,
        UNIQUE_KEY: key,
        SCHEDULE_NAME: definition.name,
        PLANNED_TIME: str(planned_ms),
        DELIVER_MS: str(max(due_ms, now_ms + 1)),
    }
    if next_ms:
        properties[NEXT_TIME] = str(next_ms)
    if definition.tags:
        properties["TAGS"] = definition.tags
    if definition.keys:
        properties["KEYS"] = definition.keys
    if manual:
        properties[MANUAL] = manual
    index = topics.add(definition.topic)
    queues = max(int(topics.arrays.topics[index]["write_queues"]), 1)
    batch.add(
        topic_index=index,
        queue_id=zlib.crc32(key.encode()) % queues,
        body=definition.body,
        properties=encode_properties(properties),
        born_ms=now_ms,
        born_host=NO_HOST,
        store_host=NO_HOST,
        flag=definition.flag,
        sys_flag=definition.compression,
    )
