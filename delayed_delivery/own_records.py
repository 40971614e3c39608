"""Records that the broker writes for itself: one per append, without born host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayed_delivery.quarantine import NO_HOST
from message_store.log.batch import PutBatch

if TYPE_CHECKING:
    from message_store.store import MessageStore


def put_own(
    store: MessageStore, topic: str, queue_id: int, body: bytes, *, now_ms: int
) -> PutBatch:
    """Append one record to a queue of an internal topic; its row has the result."""
    batch = PutBatch(1, 1)
    batch.add(
        topic_index=store.topics.add(topic),
        queue_id=queue_id,
        body=body,
        properties=b"",
        born_ms=now_ms,
        born_host=NO_HOST,
        store_host=NO_HOST,
    )
    batch.trusted = True
    store.put(batch)
    return batch
