"""Keys of records at the end of the log, which the index does not have yet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from message_store import layout
from message_store.index.index_service import BATCH_KEYS, IndexService
from message_store.kernels import index as index_kernels
from message_store.layout import Rows
from message_store.log.commit_log import CommitLog, LogFile
from message_store.log.frames import Chunk, read_past_damage


def keys_of_log(log: CommitLog, start: int, end: int) -> Iterator[Rows]:
    """Yield (n,) `layout.KEYED`, as for the index, of the records in start..end."""
    keyed, scratch = np.zeros(BATCH_KEYS, layout.KEYED), np.zeros(1, layout.SCANNED)
    for file in log.files_from(start):
        pos, stop_at = max(start - file.base, 0), min(end - file.base, file.size)

        def read_chunk(position: int, file: LogFile = file, stop_at: int = stop_at) -> Chunk:
            base = file.base + position
            return index_kernels.collect_keys(file.data, position, stop_at, base, scratch, keyed)

        for count in read_past_damage(file.data, file.base, pos, stop_at, read_chunk):
            yield keyed[:count]


def newest_in_tail(log: CommitLog, index: IndexService, key_hash: int, bytes_max: int) -> list[int]:
    """Return log offsets with a key hash in the part of the log without index, newest first.

    Args:
        bytes_max: Maximum bytes of the log without index; with more, nothing is searched.
    """
    _, position = index.indexed()
    end = log.end
    if not index.enabled or end - position > bytes_max or position >= end:
        return []  # while a large index is rebuilt, only indexed records are found
    offsets = [
        offset
        for keyed in keys_of_log(log, position, end)
        for offset in keyed["phys_offset"][keyed["key_hash"] == key_hash].tolist()
    ]
    return offsets[::-1]
