"""Commits without an op record: found after a crash or a full disk.

    log   ... half ... half | commit(prepared_offset: half) ... commit | <-- op torn off here
              ^ open halves are searched in all records after the first of them

A commit names the half message it was made from, so the log itself shows which open half messages
are finished. The search runs once, before plugins deliver and before the port listens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from duemq.transactions.half_messages import HALF_TOPIC, same_half
from message_store import layout
from message_store.errors import RecordUnreadable
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

SEARCH_BYTES_MAX: Final = 64 << 20  # of the log; further back only what recovery read anyway


def torn_commits(store: MessageStore, halves: Mapping[int, int]) -> list[Record]:
    """Return the half messages that the log has a commit of.

    Args:
        halves: Half messages without an op record, queue offsets by log offset.
    """
    if not halves:
        return []
    offsets = np.fromiter(halves, np.int64, len(halves))
    found: dict[int, Record] = {}
    for rows in store.scan(_search_start(store, int(offsets.min()))):
        kind = rows["sys_flag"] & layout.SYS_TRANSACTION_MASK
        hits = (kind == layout.SYS_COMMIT) & np.isin(rows["prepared_offset"], offsets)
        for half in _committed(store, rows[hits]):
            found[half.phys_offset] = half
    return list(found.values())


def _search_start(store: MessageStore, first_half: int) -> int:
    """Return where the search begins: the start of a record."""
    recovered = store.recovered
    if store.max_offset - first_half <= SEARCH_BYTES_MAX or recovered is None:
        return first_half
    return max(first_half, recovered.start)


def _committed(store: MessageStore, rows: npt.NDArray[Any]) -> Iterator[Record]:
    for row in rows:
        try:
            commit = store.read_record(int(row["phys_offset"]))
            half = store.read_queued(int(row["prepared_offset"]))
        except RecordUnreadable:
            continue
        same = same_half(half)
        if half.topic == HALF_TOPIC and same is not None and same == same_half(commit):
            yield half
