"""Store times of messages by queue offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from message_store.store import MessageStore


def store_ms_at(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """Return the store time in ms of the message at a queue offset; -1 if it does not exist.

    Source: DefaultMessageStore.getMessageStoreTimeStamp
    """
    units = store.units(topic, queue_id, offset, 1) if offset >= 0 else None
    if units is None or units.size == 0:
        return -1
    return store.store_ms(int(units[0]["phys_offset"]))
