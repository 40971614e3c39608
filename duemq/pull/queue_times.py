"""Store times of messages by queue offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from message_store.store import MessageStore


def store_ms_at(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """Return when the message at a queue offset was stored, in ms; -1 if it is not there.

    Source: DefaultMessageStore.getMessageStoreTimeStamp
    """
    units = store.units(topic, queue_id, offset, 1) if offset >= 0 else None
    if units is None or units.size == 0:
        return -1
    return store.store_ms(int(units[0]["phys_offset"]))
