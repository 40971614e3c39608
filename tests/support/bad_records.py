"""Damage of one record in the log."""

from __future__ import annotations

import os

from message_store.store import MessageStore


def damage(store: MessageStore, log_offset: int, body: bytes) -> None:
    """Change the first byte of the body of a record, on the disk."""
    file = store.log.file_of(log_offset)
    with file.path.open("r+b") as opened:
        opened.seek(log_offset - file.base)
        position = opened.tell() + opened.read(500).index(body)
        os.pwrite(opened.fileno(), b"?", position)
