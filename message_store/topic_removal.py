"""Removal of a topic's queues: one step in memory, then the work on disk.

    detach    moves the topic's directory out of the queues; queue offsets start at 0 again
    erase     records the removal (`Deletions`) and removes the files; in any thread

After a crash between the two, the next start erases the files. The topic's records stay in the log
until retention removes them; `Deletions` excludes them from rebuilt queues.
"""

from __future__ import annotations

import asyncio

from message_store.queues.topic_erasure import erase
from message_store.store import MessageStore


async def remove_topic_in_thread(store: MessageStore, name: str) -> None:
    """Remove a topic's queues without blocking the event loop.

    Raises:
        OSError: The log was not on the disk in time, and nothing was removed; or the removal could
            not be recorded, so that the queues would exist again after a crash.
    """
    if store.queues.holds(name):
        if not await store.wait_durable(store.max_offset):
            raise OSError("the messages before the removal are not on the disk in time")
        await asyncio.to_thread(erase, store.queues, store.detach_topic(name))
    elif store.queues.deletions.unwritten:
        await asyncio.to_thread(store.queues.deletions.write)
