"""Queue offsets of records during recovery, where the header of a record may be damaged.

    queue offsets of one queue, in log order    13   78   15   16     a flipped bit of 14
                                                13   14'  14   15     a record of another queue
                                                13   20   21   22     units 14 to 19 were lost

A broker numbers the records of a queue consecutively, and no checksum of Apache's covers the
number. If a record's number is not the next one of its queue, it is assigned, in this order: the
offset of the unit that points at it, the offset between its neighbours, or none if its neighbours
are consecutive. Otherwise the number is used: records are missing before it, or the topic was
deleted.

    15   16   17   8             unit 8 is that of another record: 18
    15   16   17   22            units 18 to 21 become pre-blanks, and no message is lost: 22
    15   16   17   18 + 2^30     pre-blanks would replace files with units of other records: 18

The last record of a queue has no neighbour after it (`_last_offset`). It is assigned a queue offset
even if its number is impossible, and the next message gets the number after it. No message
therefore gets a number that consumers may have passed already.

Without these rules, recovery would overwrite the unit of another record, or remove the files of a
queue that seems to begin with a wrong number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from message_store.layout import RECORD_FIXED_BYTES, Row, Rows
from message_store.log.commit_log import CommitLog
from message_store.log.frames import frame_at, topic_of
from message_store.queues.consume_queue import ConsumeQueue, is_blank
from message_store.queues.consume_queues import QueueSet

NO_OFFSET = -1
Groups = npt.NDArray[np.int64]


@dataclass(slots=True)
class QueueOffsetCheck:
    """Queue offsets of the records of one walk along the log.

    Attributes:
        wrong: Log offsets of records whose header has a wrong queue offset.
        ahead: Log offsets of records that are the last of their queues, and whose number is used
            although it is not the next one.
        without_queue: Log offsets of records that are in no queue.
    """

    queues: QueueSet
    log: CommitLog
    wrong: list[int] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    without_queue: list[int] = field(default_factory=list)
    _next: dict[int, int] = field(default_factory=dict)  # queue offset after the last, by group

    def correct(self, rows: Rows, groups: Groups) -> npt.NDArray[np.bool_]:
        """Correct queue offsets; return which rows are in their queue.

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
            self._correct_group(rows[first:end], in_queue[first:end], jumps[low:high] - first)
        return in_queue

    def _correct_group(
        self, rows: Rows, in_queue: npt.NDArray[np.bool_], jumps: npt.NDArray[np.int64]
    ) -> None:
        """Correct the records of one queue.

        Args:
            jumps: Indexes from 1 on of records whose number is not the next one of the queue.
        """
        queue, group = self._queue_of(rows[0]), self._group_of(rows[0])
        for at in [0, *jumps.tolist()]:
            following = self._following(rows, in_queue, at, group)
            offset = int(rows[at]["queue_offset"])
            if following is None and self._is_unit(queue, rows[at]):
                continue
            if offset == (queue.max_offset if following is None else following):
                continue
            assigned, is_last = NO_OFFSET, at + 1 == rows.size
            if not at or is_last or not self._is_taken(queue, rows[at - 1], offset):
                assigned = self._assigned_offset(queue, rows, at, following)
            if assigned == NO_OFFSET:
                in_queue[at] = False
                self.without_queue.append(int(rows[at]["phys_offset"]))
            elif assigned != offset:
                rows[at]["queue_offset"] = assigned
                self.wrong.append(int(rows[at]["phys_offset"]))
            elif at and in_queue[at - 1] and assigned == rows[at - 1]["queue_offset"]:
                in_queue[at - 1] = False
                self.without_queue.append(int(rows[at - 1]["phys_offset"]))
            elif is_last and self._is_ahead(queue, rows[at], following):
                self.ahead.append(int(rows[at]["phys_offset"]))
        kept = np.flatnonzero(in_queue)
        if kept.size:
            self._next[group] = int(rows[kept[-1]]["queue_offset"]) + 1

    def _following(
        self, rows: Rows, in_queue: npt.NDArray[np.bool_], at: int, group: int
    ) -> int | None:
        """Return the queue offset after that of the last record before `at`, None if unknown."""
        before = at - 1
        while before >= 0 and not in_queue[before]:
            before -= 1
        return int(rows[before]["queue_offset"]) + 1 if before >= 0 else self._next.get(group)

    def _assigned_offset(
        self, queue: ConsumeQueue, rows: Rows, at: int, following: int | None
    ) -> int:
        """Return the queue offset of rows[at], whose number is not the next one of the queue.

        Args:
            following: Next queue offset of the queue, None if unknown.
        """
        row = rows[at]
        offset, phys_offset = int(row["queue_offset"]), int(row["phys_offset"])
        if self._is_unit(queue, row):
            return offset
        named = queue.offset_from(phys_offset)
        unit = queue.read(named, 1)
        if unit.size and (unit[0]["phys_offset"], unit[0]["size"]) == (
            phys_offset, row["record_size"],
        ):  # fmt: skip
            return named
        is_possible = bool(has_possible_offset(rows[at : at + 1])[0])
        if following is None:
            if not queue.max_offset:
                first = _first_offset(rows[at : at + 3])
                if is_possible or first != offset:
                    return first
                return 0 if self.log.min_offset == 0 else NO_OFFSET
            following = queue.max_offset
        if at + 1 == rows.size:
            return self._last_offset(queue, rows, following) if is_possible else following
        after = int(rows[at + 1]["queue_offset"])
        if after == following and offset != following - 1:
            return NO_OFFSET
        if after == following + 1:
            return following
        return offset if is_possible else NO_OFFSET

    def _last_offset(self, queue: ConsumeQueue, rows: Rows, following: int) -> int:
        """Return the queue offset of the last record, whose number is not the next one."""
        offset = int(rows[-1]["queue_offset"])
        if offset > following:
            in_later_file = following < offset - offset % queue.file_units
            return following if in_later_file and _is_flipped(offset, following) else offset
        if offset == 0 and not _is_flipped(offset, following):
            return offset  # an Apache broker has deleted the topic and created it again
        seen_before = bool((rows[:-1]["queue_offset"] == offset).any())
        return following if seen_before or self._has_owner(queue, rows[-1]) else offset

    def _is_ahead(self, queue: ConsumeQueue, row: Row, following: int | None) -> bool:
        """Return whether records or units are missing before a record."""
        first = following is None and not queue.max_offset and self.log.min_offset > 0
        return not first and not self._is_unit(queue, row)

    def _has_owner(self, queue: ConsumeQueue, row: Row) -> bool:
        """Return whether the unit at a record's queue offset is that of another valid record."""
        unit = queue.read(int(row["queue_offset"]), 1)
        if not unit.size or is_blank(unit)[0]:
            return False
        owner = frame_at(self.log, int(unit[0]["phys_offset"]))
        if owner is None or owner["phys_offset"] == row["phys_offset"]:
            return False
        position = row["queue_id"], row["queue_offset"], self._topic_of(row)
        return (owner["queue_id"], owner["queue_offset"], self._topic_of(owner)) == position

    def _topic_of(self, row: Row) -> str:
        file = self.log.file_of(int(row["phys_offset"]))
        return topic_of(file.data, file.base, row)

    def _is_taken(self, queue: ConsumeQueue, before: Row, offset: int) -> bool:
        """Return whether the unit at a queue offset points at the previous record."""
        return bool(before["queue_offset"] == offset) and self._is_unit(queue, before)

    def _is_unit(self, queue: ConsumeQueue, row: Row) -> bool:
        """Return whether the unit at a record's queue offset points at the record."""
        unit = queue.read(int(row["queue_offset"]), 1)
        return bool(unit.size) and bool(unit[0]["phys_offset"] == row["phys_offset"])

    def _queue_of(self, row: Row) -> ConsumeQueue:
        index, queue_id = int(row["topic_index"]), int(row["queue_id"])
        return self.queues.at(self.queues.topics.slot(index, queue_id, create=True))

    def _group_of(self, row: Row) -> int:
        return int(row["topic_index"]) << 32 | int(row["queue_id"])


def has_possible_offset(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which scanned records have a possible queue offset.

    A queue never has more messages than fit into the log before them.
    """
    offset = rows["queue_offset"]
    return np.asarray((offset >= 0) & (offset <= rows["phys_offset"] // RECORD_FIXED_BYTES))


def _first_offset(rows: Rows) -> int:
    """Return the queue offset of the first record of a queue that has no units.

    Args:
        rows: The record and the two after it, or fewer.
    """
    numbers = rows["queue_offset"].tolist()
    consecutive = len(numbers) == 3 and numbers[2] == numbers[1] + 1 and numbers[1] > 0
    return int(numbers[1] - 1 if consecutive else numbers[0])


def _is_flipped(offset: int, expected: int) -> bool:
    """Return whether two queue offsets differ in one bit."""
    return (offset ^ expected).bit_count() == 1
