"""Records of a replica's log that are compared with the master's log."""

from __future__ import annotations

from typing import NamedTuple

from delayed_delivery.redirected import owner_letter
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import Row
from message_store.store import MessageStore


class OwnRecord(NamedTuple):
    """A record of this log.

    Attributes:
        start: Its log offset.
        data: Bytes of the record.
        letter_at: Index in `data` of the letter that names the owner of a level message; -1: none.
            A migration rewrites this letter in place, on each member of a group independently.
    """

    start: int
    data: bytes
    letter_at: int = -1

    @property
    def end(self) -> int:
        """Log offset after the record."""
        return self.start + len(self.data)


def record_before(store: MessageStore, offset: int) -> OwnRecord | None:
    """Return the last record that ends at or before a log offset; None: none, or unreadable.

    For an offset before the end of the log, scans the log file from its start.
    """
    start = store.last_record if offset == store.max_offset else _last_start(store, offset)
    row = store.frame_at(start) if start >= 0 else None
    if row is None:
        return None
    try:
        data = bytes(store.record_bytes(start, int(row["record_size"])))
    except RecordUnreadable:
        return None
    return OwnRecord(start, data, _letter_at(data, row))


def _letter_at(data: bytes, row: Row) -> int:
    topic_pos, prop_pos = int(row["topic_pos"]), int(row["prop_pos"])
    if data[topic_pos : topic_pos + int(row["topic_len"])] != SCHEDULE_TOPIC.encode():
        return -1
    letter = owner_letter(data[prop_pos : prop_pos + int(row["prop_len"])])
    return prop_pos + letter if letter >= 0 else -1


def _last_start(store: MessageStore, offset: int) -> int:
    """Return the log offset of the last record that begins before `offset`; -1: none."""
    for file in reversed(store.log_files):
        start = -1
        if file.base < offset:
            for rows in store.scan(file.base, min(offset, file.base + file.size)):
                start = int(rows[-1]["phys_offset"])
        if start >= 0:
            return start
    return -1
