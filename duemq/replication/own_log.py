"""Records of this broker's log that a master has to have, too."""

from __future__ import annotations

from message_store.errors import RecordUnreadable
from message_store.log.frames import frame_at
from message_store.store import MessageStore


def record_before(store: MessageStore, offset: int) -> tuple[int, bytes] | None:
    """Return offset and bytes of the last record that ends at a log offset or before.

    None: there is none, or it cannot be read. Before the end of the log it is found by reading
    its file from the start.
    """
    start = store.last_record if offset == store.max_offset else _last_start(store, offset)
    row = frame_at(store.log, start) if start >= 0 else None
    if row is None:
        return None
    try:
        return start, bytes(store.record_bytes(start, int(row["record_size"])))
    except RecordUnreadable:
        return None


def _last_start(store: MessageStore, offset: int) -> int:
    """Return where the last record before a log offset begins, -1 without one."""
    for file in reversed(store.log.files):
        start = -1
        if file.base < offset:
            for rows in store.scan(file.base, min(offset, file.base + file.size)):
                start = int(rows[-1]["phys_offset"])
        if start >= 0:
            return start
    return -1
