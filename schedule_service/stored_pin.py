"""Retention pin of level messages without the level service, read from the store's files.

It is used while the plugin of the level service is disabled or not installed. No level message is
delivered then, so retention keeps the records of all pending ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayed_delivery.records import first_log_offset
from duemq_common.errors import CorruptStore
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.retention.pins import UNKNOWN, FirstPending, first_pending
from schedule_service.recovery import Saved, is_supported, load_saved

if TYPE_CHECKING:
    from message_store.store import MessageStore


def stored_pin(store: MessageStore) -> FirstPending:
    """Return the log offset of the first pending level message according to delayOffset.json.

    None if no message is pending, `UNKNOWN` if the file cannot be read.
    """
    try:
        saved = load_saved(store)
    except CorruptStore:
        return UNKNOWN
    if saved is None or not is_supported(store, saved):
        saved = Saved()  # every unit of the queues may be pending
    topic = store.topics.find(SCHEDULE_TOPIC)
    if topic < 0:
        return None
    queues = int(store.topics.arrays.topics[topic]["slots_len"])
    return first_pending(
        first_log_offset(store, SCHEDULE_TOPIC, queue, saved.offsets.get(queue + 1, 0))
        for queue in range(queues)
    )
