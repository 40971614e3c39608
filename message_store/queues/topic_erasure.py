"""Erasure of a removed topic's queues, which were detached from the others."""

from __future__ import annotations

import shutil
from pathlib import Path

from duemq_common.directories import sync_directory
from message_store.queues.consume_queues import QueueSet


def erase(queues: QueueSet, detached: Path | None) -> None:
    """Record the removals and remove the files of one. Any thread may call it.

    Raises:
        OSError: The disk refused the record, even after the files were removed.
    """
    try:
        queues.deletions.write()
    except OSError:
        _remove_files(detached)  # this may make the room that the record needs
        queues.deletions.write()
    _remove_files(detached)
    sync_directory(queues.directory)


def _remove_files(detached: Path | None) -> None:
    if detached is not None:
        shutil.rmtree(detached, ignore_errors=True)  # the next start removes what is left
