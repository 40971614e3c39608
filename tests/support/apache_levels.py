"""Deliveries of level messages as an Apache broker appends them: copies that name no source."""

from __future__ import annotations

from duemq_common.topics import SCHEDULE_TOPIC
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.support.stores import records_of


def deliver_as_apache(store: MessageStore, level: int, first: int, end: int) -> None:
    """Append the deliveries of the units first..end of a level."""
    for record in records_of(store, SCHEDULE_TOPIC, level - 1)[first:end]:
        batch = PutBatch(1)
        batch.add(
            topic_index=store.topics.add(record.properties["REAL_TOPIC"]),
            queue_id=int(record.properties["REAL_QID"]),
            body=record.body,
            properties=record.property_text,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_ms=record.born_ms,
            born_host=record.born_host,
            store_host=record.store_host,
            reconsume_times=record.reconsume_times,
        )
        store.put(batch)
