"""Removal of a topic's queues in the calling thread."""

from __future__ import annotations

from message_store.queues.topic_erasure import erase
from message_store.store import MessageStore


def remove_topic(store: MessageStore, name: str) -> None:
    """Remove a topic's queues, in the calling thread.

    Raises:
        OSError: The sync before the removal failed, and nothing was removed; or the removal could
            not be recorded, so that the queues would exist again after a crash.
    """
    if store.queues.holds(name):
        store.flush()  # the messages must be on the disk before their removal is
        erase(store.queues, store.detach_topic(name))
