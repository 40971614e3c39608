"""Survey of timers before they are linked: their slots, kinds, earliest time, and counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from message_store.kernels.kernel import kernel
from timer_store.layout import TIMED_PLAIN, Rows


class Cursors(NamedTuple):
    """Values that all slots of a survey depend on, in ms; see `timer_store.log.slot_choice`."""

    read_ms: int
    staged_ms: int
    window_ms: int
    precision_ms: int


@kernel
def survey(rows: Rows, cursors: Cursors) -> tuple[int, int, bool]:
    """Set `slot_ms` of each row.

    Args:
        rows: (n,) `layout.TIMED`, n > 0.
    Returns:
        Number of rows that are TIMED_PLAIN, earliest due time or start of a slot, and whether a
        row may be in a slot that is loaded, or due before its slot begins.
    """
    plain, earliest_ms, near = 0, np.int64(np.iinfo(np.int64).max), False
    for index in range(rows.size):
        row = rows[index]
        due_ms = row["due_ms"]
        # the slot of a due time ends at it
        own_ms = due_ms - 1
        # beyond the roll window the timer goes into an earlier slot, whole windows before its own
        laps = max(own_ms - cursors.staged_ms, 0) // cursors.window_ms
        # an overdue timer goes into the slot that is read
        slot_ms = max(own_ms - laps * cursors.window_ms, cursors.read_ms)
        row["slot_ms"] = slot_ms
        earliest_ms = min(earliest_ms, slot_ms, due_ms)
        # the slot may be loaded already: such a timer goes into the near stage as well
        near = near or slot_ms < cursors.staged_ms + cursors.precision_ms or due_ms <= slot_ms
        if row["kind"] == TIMED_PLAIN:
            plain += 1
    return plain, earliest_ms, near


@kernel
def count_pending(rows: Rows, by_topic: npt.NDArray[np.int64], sign: int, file_bytes: int) -> int:
    """Add `sign` for each row to the counts by topic, if one file has all records.

    Args:
        rows: (n,) `layout.TIMED`, n > 0.
        by_topic: (topics + 1,) i8: counts by topic index + 1.
    Returns:
        First log offset of the file; -1: several files, or a new topic; nothing is changed.
    """
    number = rows[0]["phys_offset"] // file_bytes
    for index in range(rows.size):
        row = rows[index]
        # the counts of a file must change together
        if row["phys_offset"] // file_bytes != number or row["topic_index"] + 1 >= by_topic.size:
            return -1
    for index in range(rows.size):
        by_topic[rows[index]["topic_index"] + 1] += sign
    return number * file_bytes
