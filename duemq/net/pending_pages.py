"""Body of a response to READ_PENDING (9017): one page of pending messages."""

from __future__ import annotations

from typing import Final

import msgspec

PAGE_BYTES_MAX: Final = 2 << 20  # bytes of the records of a page; a longer record is alone
PAGE_MESSAGES_MAX: Final = 8_192


class PendingPage(msgspec.Struct, array_like=True):
    """Page of pending messages, encoded as MessagePack.

    Attributes:
        due_ms: Due time of each message in ms since the epoch.
        sizes: Bytes of each record.
        records: The records as stored, one after the other.
        cursor: Cursor of the next page; empty at the end.
        unreadable: Log offsets of pending messages whose records cannot be read.
    """

    due_ms: list[int]
    sizes: list[int]
    records: bytes
    cursor: str = ""
    unreadable: list[int] = []
