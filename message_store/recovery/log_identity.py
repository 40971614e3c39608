"""Identity of a log at an offset, for files that say how far something has come.

Such a file contains the last record of the log at its time. It is valid only for a log that has
this record: not for another store, and not for a log that was truncated and has grown again.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from message_store.layout import RECORD_HEAD_BYTES
from message_store.log.commit_log import CommitLog
from message_store.log.frames import frame_at


class LastRecord(NamedTuple):
    """Last record of a log: its log offset, and the CRC of its first 88 bytes.

    These contain its log offset, queue, times, hosts and the CRC of its body.
    """

    offset: int
    crc: int


NO_RECORD: Final = LastRecord(-1, 0)
"""Last record of an empty log."""


def last_record(log: CommitLog, offset: int) -> LastRecord:
    """Return the record at a log offset, `NO_RECORD` if the log has none there."""
    if frame_at(log, offset) is None:
        return NO_RECORD
    return LastRecord(offset, zlib.crc32(log.view(offset, RECORD_HEAD_BYTES).data))
