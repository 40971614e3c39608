"""Frames: columns of log records by log offset, and walks that continue after damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from duemq_common.errors import RecordUnreadable
from message_store import layout
from message_store.kernels import scan
from message_store.kernels.verify import find_record
from message_store.layout import Row
from message_store.log.commit_log import CommitLog

Bytes = npt.NDArray[np.uint8]
Chunk = tuple[int, int, int]
ReadChunk = Callable[[int], Chunk]
"""Read records from a file position; return (rows, next position, scan.STOP_*)."""


def frame_at(log: CommitLog, offset: int) -> Row | None:
    """Return the positional columns of the valid record at a log offset, None without one."""
    try:
        file = log.file_of(offset)
    except RecordUnreadable:
        return None
    row = np.zeros(1, layout.SCANNED)[0]
    end = min(file.size, log.end - file.base)
    size = scan.read_frame(file.data, offset - file.base, end, offset, row)
    return row if size > 0 else None


def topic_bytes(data: Bytes, base: int, row: Row) -> bytes:
    """Return the topic of a record; data[0] has the log offset `base`."""
    pos = int(row["phys_offset"]) - base + int(row["topic_pos"])
    return data[pos : pos + int(row["topic_len"])].tobytes()


def topic_of(data: Bytes, base: int, row: Row) -> str:
    """Return the topic of a record as text; bytes that are not UTF-8 become U+FFFD."""
    return topic_bytes(data, base, row).decode("utf-8", "replace")


def read_past_damage(
    data: Bytes, base: int, pos: int, end: int, read_chunk: ReadChunk
) -> Iterator[int]:
    """Yield the row count of each chunk in data[pos:end]; skip bytes that are not records.

    Args:
        base: Log offset of data[0].
        read_chunk: Fills its rows from a position on; it is called until the end.
    """
    scratch = np.zeros(1, layout.SCANNED)[0]
    while pos < end:
        count, pos, stop = read_chunk(pos)
        if count:
            yield count
        if stop == scan.STOP_BLANK:
            return
        if stop == scan.STOP_INVALID:
            pos = int(find_record(data, int(pos) + 1, end, base, scratch))
            if pos < 0:
                return
