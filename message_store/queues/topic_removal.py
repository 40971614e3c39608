"""Removal of a topic's queues: one step in memory, then the work on disk.

    detach    the topic's directory gets a name outside of the queues, numbering starts at 0 again
    erase     the note of it (`Deletions`) is written, the files are removed    in any thread

Whatever ends the process between both, the next start erases the rest. Its records stay in the log
until retention removes them; the note keeps them out of queues that are written again.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from message_store.log.commit_log import sync_directory

if TYPE_CHECKING:
    from message_store.queues.consume_queues import QueueSet
    from message_store.store import MessageStore


def remove_topic(store: MessageStore, name: str) -> None:
    """Remove a topic's queues, in the calling thread.

    Raises:
        OSError: The disk refused the sync before it, and nothing was removed; or a note of it: a
            crash would bring the queues back.
    """
    if not store.queues.holds(name):
        return
    store.flush()  # what is removed is on the disk before its removal is
    erase(store.queues, store.detach_topic(name))


async def remove_topic_in_thread(store: MessageStore, name: str) -> None:
    """Remove a topic's queues; the event loop goes on meanwhile. A name without queues is nothing.

    Raises:
        OSError: As `remove_topic`, or the log was not on the disk in time.
    """
    if store.queues.holds(name):
        if not await store.wait_durable(store.max_offset, always=True):
            raise OSError("the messages before are not on the disk in time")
        await asyncio.to_thread(erase, store.queues, store.detach_topic(name))
    elif store.queues.deletions.unwritten:
        await asyncio.to_thread(store.queues.deletions.write)


def erase(queues: QueueSet, detached: Path | None) -> None:
    """Write the notes of removals and remove the files of one. Any thread may call it.

    Raises:
        OSError: The disk refused the note, also after the files had made room.
    """
    try:
        queues.deletions.write()
    except OSError:
        _remove_files(detached)
        queues.deletions.write()
    _remove_files(detached)
    sync_directory(queues.directory)


def _remove_files(detached: Path | None) -> None:
    if detached is not None:
        shutil.rmtree(detached, ignore_errors=True)  # the next start removes what is left


def erase_left_over(removed: Path) -> None:
    """Remove the files of topics that a process which was killed had detached."""
    shutil.rmtree(removed, ignore_errors=True)
