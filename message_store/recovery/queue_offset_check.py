"""Queue offsets of records during recovery, where the header of a record may be damaged.

    queue offsets of one queue, in log order    13   78   15   16     78: a damaged header
                                                13   14   64   15     64: a record of another queue
                                                13   20   21   22     units 14 to 19 were lost

A broker numbers the records of a queue consecutively. A record is in its queue if its queue offset
is the next one, if the unit there points at it, if the records after it continue from it, or if the
checksum of its block shows that the disk has not changed it. All other records are reported, and
are in no queue: a wrong queue offset would overwrite the unit of another record, or remove the
files of a queue that seems to begin there.

Without a checksum, as in an Apache broker's log, the last record of a queue is in it if its queue
offset is 0, because an Apache broker may have deleted the topic and created it again, or if it is
higher, but in the same file of the queue: the units before it are lost, and become pre-blanks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from message_store.layout import RECORD_FIXED_BYTES, Row, Rows
from message_store.log.commit_log import CommitLog
from message_store.queues.consume_queue import ConsumeQueue
from message_store.queues.consume_queues import QueueSet

Groups = npt.NDArray[np.int64]
AFTER_MAX: Final = 2  # records after one that may continue from it; one of them may be damaged


class QueueOffsetCheck(Struct):
    """Queue offsets of the records of one walk along the log.

    Attributes:
        ahead: Log offsets of records that are the last of their queues, and whose queue offset is
            used although it is not the next one.
        without_queue: Log offsets of records that are in no queue.
    """

    queues: QueueSet
    log: CommitLog
    ahead: list[int] = field(default_factory=list)
    without_queue: list[int] = field(default_factory=list)
    _next: dict[int, int] = field(default_factory=dict)  # queue offset after the last, by group

    def check(self, rows: Rows, groups: Groups) -> npt.NDArray[np.bool_]:
        """Return which rows are in their queue.

        Args:
            rows: (n,) `layout.SCANNED` with possible queues, ordered by group, each group in log
                order.
            groups: (n,) i8: topic_index << 32 | queue_id.
        """
        in_queue = np.ones(rows.size, np.bool_)
        edges = (np.flatnonzero(np.diff(groups)) + 1).tolist()
        jumps = np.flatnonzero(np.diff(rows["queue_offset"]) != 1) + 1
        for first, end in pairwise([0, *edges, rows.size] if rows.size else ()):
            low, high = np.searchsorted(jumps, [first + 1, end]).tolist()
            self._check_group(rows[first:end], in_queue[first:end], jumps[low:high] - first)
        return in_queue

    def _check_group(
        self, rows: Rows, in_queue: npt.NDArray[np.bool_], jumps: npt.NDArray[np.int64]
    ) -> None:
        """Check the records of one queue.

        Args:
            jumps: Indexes from 1 on of records whose queue offset does not continue the one before.
        """
        queue, group = self._queue_of(rows[0]), self._group_of(rows[0])
        following = self._next.get(group, queue.max_offset or None)
        last = -1  # index of the last record before `index` that is in the queue
        for index in [0, *jumps.tolist()]:
            if index and in_queue[index - 1]:
                last, following = index - 1, int(rows[index - 1]["queue_offset"]) + 1
            if self._is_in_queue(queue, rows, index, following, index - last - 1):
                if last >= 0 and rows[index]["queue_offset"] == rows[last]["queue_offset"]:
                    self._drop(rows, in_queue, last)
            else:
                self._drop(rows, in_queue, index)
        kept = np.flatnonzero(in_queue)
        if kept.size:
            self._next[group] = int(rows[kept[-1]]["queue_offset"]) + 1

    def _drop(self, rows: Rows, in_queue: npt.NDArray[np.bool_], position: int) -> None:
        in_queue[position] = False
        self.without_queue.append(int(rows[position]["phys_offset"]))

    def _is_in_queue(
        self, queue: ConsumeQueue, rows: Rows, position: int, following: int | None, dropped: int
    ) -> bool:
        """Return whether a record is in the queue that its header names.

        Args:
            following: Next queue offset of the queue, None if the queue is empty.
            dropped: Number of records before this one that are in no queue.
        """
        row = rows[position]
        offset, phys_offset = int(row["queue_offset"]), int(row["phys_offset"])
        if (following or 0) <= offset <= (following or 0) + dropped:
            return True
        if self._is_unit(queue, row):
            return True
        if (
            position
            and rows[position - 1]["queue_offset"] == offset
            and self._is_unit(queue, rows[position - 1])
        ):
            return False
        if not has_possible_offset(rows[position : position + 1])[0]:
            return False
        after = rows["queue_offset"][position + 1 : position + 1 + AFTER_MAX]
        if (after - offset == np.arange(1, after.size + 1)).any():
            return True
        has_changed = self.log.sums.has_changed(phys_offset, int(row["record_size"]))
        if has_changed is not None or after.size:
            return has_changed is False
        if following is None:
            self._report_ahead(row, offset > 0 and self.log.min_offset == 0)
            return True
        file_end = following - following % queue.file_units + queue.file_units
        self._report_ahead(row, following < offset < file_end)
        return offset == 0 or following <= offset < file_end

    def _report_ahead(self, row: Row, is_ahead: bool) -> None:
        if is_ahead:
            self.ahead.append(int(row["phys_offset"]))

    def _is_unit(self, queue: ConsumeQueue, row: Row) -> bool:
        """Return whether the unit at a record's queue offset points at the record."""
        unit = queue.read(int(row["queue_offset"]), 1)
        return bool(unit.size) and bool(unit[0]["phys_offset"] == row["phys_offset"])

    def _queue_of(self, row: Row) -> ConsumeQueue:
        index, queue_id = int(row["topic_index"]), int(row["queue_id"])
        return self.queues.of_slot(self.queues.topics.slot(index, queue_id, create=True))

    def _group_of(self, row: Row) -> int:
        return int(row["topic_index"]) << 32 | int(row["queue_id"])


def has_possible_offset(rows: Rows | Row) -> npt.NDArray[np.bool_]:
    """Return which of scanned records, or whether one, has a possible queue offset.

    A queue never has more messages than fit into the log before them.
    """
    offset = rows["queue_offset"]
    return np.asarray((offset >= 0) & (offset <= rows["phys_offset"] // RECORD_FIXED_BYTES))
