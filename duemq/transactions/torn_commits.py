"""Search for commits whose op record was lost by a crash or a full disk.

    log   ... half ... half | commit(prepared_offset: half) ... commit | <-- op record lost
              ^ the search starts at the first unfinished half message

A commit contains the log offset of its half message, so the half messages that have a commit can be
found in the log. The search runs once, before plugins deliver and before the port is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from duemq.transactions.half_messages import half_identity
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import HALF_TOPIC, ROCKSDB_HALF_TOPIC
from message_store import layout
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

# Log bytes that are searched; of a longer part, only the tail that recovery has read.
SEARCH_BYTES_MAX: Final = 64 << 20


def torn_commits(store: MessageStore, halves: Mapping[int, int]) -> list[Record]:
    """Return the half messages that have a commit in the log.

    Args:
        halves: Half messages without an op record: queue offset by log offset.
    """
    if not halves:
        return []
    offsets = np.fromiter(halves, np.int64, len(halves))
    records: dict[int, Record] = {}
    for rows in store.scan(_search_start(store, int(offsets.min()))):
        kind = rows["sys_flag"] & layout.SYS_TRANSACTION_MASK
        hits = (kind == layout.SYS_COMMIT) & np.isin(rows["prepared_offset"], offsets)
        for half in _committed(store, rows[hits]):
            records[half.phys_offset] = half
    return list(records.values())


def _search_start(store: MessageStore, first_half: int) -> int:
    """Return the log offset of the record at which the search starts."""
    recovered = store.recovered
    if store.max_offset - first_half <= SEARCH_BYTES_MAX or recovered is None:
        return first_half
    return max(first_half, recovered.start)


def _committed(store: MessageStore, rows: npt.NDArray[np.void]) -> Iterator[Record]:
    """Yield the half messages of commits; skip records that only have the form of a commit."""
    for row in rows:
        try:
            commit = store.read_record(int(row["phys_offset"]))
            half = store.read_queued(int(row["prepared_offset"]))
        except RecordUnreadable:
            continue
        identity = half_identity(half)
        is_half = half.topic in (HALF_TOPIC, ROCKSDB_HALF_TOPIC)
        if is_half and identity is not None and identity == half_identity(commit):
            yield half
