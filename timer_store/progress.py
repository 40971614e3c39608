"""Progress of a timer store: cursors, counts of pending timers, settled timers.

    Position         up to where slots are read and loaded, and the queue is enqueued
    PendingCounts    pending timers by real topic and by commit log file; exact, also after a crash
    SettledTimers    timers settled before their due time whose units have no tombstone yet

All three change in the event loop's thread only. A checkpoint copies them as they are at one
instant; a start restores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from message_store.queues.topic_table import TopicTable
from timer_store.kernels import offset_set
from timer_store.kernels.enqueue import count_pending
from timer_store.layout import NO_OFFSETS, Mask, Offsets, Rows

Key = tuple[int, int]  # (due_ms, phys_offset): the order of delivery
Counts = npt.NDArray[np.int64]
SLOTS_MIN = 1_024  # slots of a set of log offsets: a power of 2


class Position(Struct):
    """Cursors of a timer store; `read_ms` and `staged_ms` are start times of slots.

    Attributes:
        read_ms: The first slot that is not completely delivered.
        staged_ms: Slots before it are loaded into the near stage; at least `read_ms`.
        part: The slot at `staged_ms` is loaded up to this timer.
        rolled_ms: Slots before it may have been rolled by the last run.
        queue_offset: The next unit of the timer queue to enqueue.
        handover_offset: The next transfer of the ownership journal to enqueue.
        handover_unit: Units of that transfer before this queue offset of its level are enqueued.
    """

    read_ms: int
    staged_ms: int
    queue_offset: int = 0
    rolled_ms: int = -1
    part: Key | None = None
    handover_offset: int = 0
    handover_unit: int = 0

    @property
    def loaded_ms(self) -> int:
        """Time up to which slots are loaded, or were loaded by the last run."""
        return max(self.staged_ms, self.rolled_ms)

    def is_loaded(self, rows: Rows, slot_ms: Offsets, precision_ms: int) -> Mask:
        """Return which timers are loaded into the near stage.

        Args:
            rows: (n,) with `due_ms` and `phys_offset`.
            slot_ms: (n,) a time within the slot of each row.
        """
        loaded = slot_ms < self.staged_ms
        if self.part is not None:
            in_part = slot_ms < self.staged_ms + precision_ms
            loaded |= in_part & ~is_after(rows, self.part)
        return np.asarray(loaded)


def is_after(rows: Rows, key: Key) -> Mask:
    """Return which rows, (n,) with `due_ms` and `phys_offset`, are delivered after a timer."""
    due_ms, phys_offset = key
    later = rows["due_ms"] > due_ms
    return np.asarray(later | ((rows["due_ms"] == due_ms) & (rows["phys_offset"] > phys_offset)))


class PendingCounts:
    """Numbers of pending timers by real topic and by commit log file.

    Args:
        topics: Names of topics by index.
        file_bytes: size of a commit log file.
    """

    def __init__(self, topics: TopicTable, file_bytes: int) -> None:
        self._topics, self._file_bytes = topics, file_bytes
        self._by_topic: Counts = np.zeros(64, np.int64)  # by topic index + 1; 0: topic unknown
        self._by_file: dict[int, int] = {}  # pending timers, by the first log offset of the file
        self.total = 0

    def change(self, topic_index: npt.NDArray[np.int32], phys_offset: Offsets, sign: int) -> None:
        """Add (`sign` 1) or subtract (-1) timers of these real topics and log offsets."""
        count = int(phys_offset.size)
        if not count:
            return
        self.total += sign * count
        counts = np.bincount(topic_index + 1, minlength=self._by_topic.size)
        if counts.size > self._by_topic.size:
            grown = np.zeros(counts.size * 2, np.int64)
            grown[: self._by_topic.size] = self._by_topic
            self._by_topic = grown
            counts = np.bincount(topic_index + 1, minlength=grown.size)
        self._by_topic += sign * counts
        self._change_files(phys_offset, sign)

    def add_rows(self, rows: Rows) -> None:
        """Add timers, (n,) `layout.TIMED`, with their real topics and log offsets."""
        if not rows.size:
            return
        base = count_pending(rows, self._by_topic, 1, self._file_bytes)
        if base < 0:
            self.change(rows["topic_index"], rows["phys_offset"], 1)
            return
        self.total += rows.size
        self._by_file[base] = self._by_file.get(base, 0) + rows.size

    def _change_files(self, phys_offset: Offsets, sign: int) -> None:
        first, last = int(phys_offset.min()), int(phys_offset.max())
        first, last = first // self._file_bytes, last // self._file_bytes
        counts = np.array([phys_offset.size])
        if first < last:  # else nothing needs a division
            counts = np.bincount(phys_offset // self._file_bytes - first)
        for index in np.flatnonzero(counts).tolist():
            base = (first + index) * self._file_bytes
            self._by_file[base] = self._by_file.get(base, 0) + sign * int(counts[index])
            if not self._by_file[base]:
                del self._by_file[base]

    def of_topic(self, topic_index: int) -> int:
        """Return the number of pending timers for a topic."""
        position = topic_index + 1
        return int(self._by_topic[position]) if position < self._by_topic.size else 0

    def by_topic(self) -> dict[str, int]:
        """Return the number of pending timers by topic name, without topics that have none."""
        positions = np.flatnonzero(self._by_topic).tolist()
        return {self._name(position - 1): int(self._by_topic[position]) for position in positions}

    def _name(self, topic_index: int) -> str:
        return self._topics.name(topic_index) if topic_index >= 0 else ""

    def by_file(self) -> dict[int, int]:
        """Return pending timers by the first log offset of the file that holds their record."""
        return dict(self._by_file)

    @property
    def first_file(self) -> int | None:
        """First log offset of the oldest file with a pending timer, None without any."""
        return min(self._by_file, default=None)

    def restore(self, by_topic: Mapping[str, int], by_file: Mapping[int, int]) -> None:
        """Set all counts."""
        indexes = {self._topics.add(name) if name else -1: n for name, n in by_topic.items()}
        self._by_topic = np.zeros(max([63, *indexes]) + 2, np.int64)
        for index, count in indexes.items():
            self._by_topic[index + 1] = count
        self._by_file = {base: count for base, count in by_file.items() if count}
        self.total = sum(by_topic.values())


class Returned(NamedTuple):
    """Timers that a level owns again: log offsets, ascending, and the positions of their units."""

    first: int
    last: int
    offsets: Offsets
    positions: Offsets


class SettledPart:
    """Settled timers of one checkpoint: a set of log offsets, and the positions of their units.

    Attributes:
        count: Number of timers.
        positions: Positions in the timer log, in pieces; -1: the timer has no unit any more.
    """

    def __init__(self) -> None:
        self.count = 0
        self.positions: list[Offsets] = []
        self._slots: Offsets = np.full(SLOTS_MIN, offset_set.EMPTY, np.int64)
        self._sorted = NO_OFFSETS
        self._added: list[Offsets] = []  # offsets that `_sorted` lacks

    def add(self, offsets: Offsets, positions: Offsets) -> None:
        """Add timers."""
        if not offsets.size:
            return
        if (self.count + offsets.size) * 2 > self._slots.size:
            slots = 1 << ((self.count + offsets.size) * 4 - 1).bit_length()
            former, self._slots = self._slots, np.full(slots, offset_set.EMPTY, np.int64)
            offset_set.add_offsets(self._slots, former)
        self.count += offset_set.add_offsets(self._slots, offsets)
        self.positions.append(positions)
        self._added.append(offsets)

    def extend(self, later: SettledPart) -> None:
        """Add the timers of another part."""
        self.add(later.offsets, np.concatenate([NO_OFFSETS, *later.positions]))

    def mark(self, offsets: Offsets, is_settled: Mask) -> None:
        """Set is_settled[i] if offsets[i] is in this part."""
        if self.count:
            offset_set.mark_present(self._slots, offsets, is_settled)

    @property
    def offsets(self) -> Offsets:
        """Log offsets, ascending."""
        if self._added:
            self._sorted = merged(self._sorted, np.sort(np.concatenate(self._added)))
            self._added.clear()
        return self._sorted


def merged(*ascending: Offsets) -> Offsets:
    """Return the values of ascending arrays, ascending: NumPy's stable sort merges such runs."""
    return np.sort(np.concatenate([NO_OFFSETS, *ascending]), kind="stable")


class SettledTimers:
    """Log offsets of settled timers, with the positions of their units in the timer log.

    The deciding record of a cancelled, moved or fired timer is in the commit log. The next
    checkpoint writes the tombstone, after that record is on the disk. Until then the timer is
    recorded here. No step of a bulk decision or a checkpoint visits all of them in Python: those of
    the checkpoint in progress are apart, and new offsets are merged into the sorted ones.
    """

    def __init__(self) -> None:
        self._own = SettledPart()
        self._captured = SettledPart()  # those that the checkpoint in progress writes
        self._returned: list[Returned] = []
        self._sorted: Offsets | None = NO_OFFSETS  # None: to be made again
        self._recorded: list[Offsets] | None = None

    def __len__(self) -> int:
        return self._own.count + self._captured.count

    def add(self, phys_offset: Offsets, pos: Offsets) -> None:
        """Add timers and the positions of their units (-1: in no slot any more)."""
        offsets = phys_offset.copy()
        self._own.add(offsets, pos.copy())
        self._note(offsets)

    def add_returned(self, phys_offset: Offsets, pos: Offsets) -> None:
        """Add timers that were returned to a level; they may be transferred again."""
        if not phys_offset.size:
            return
        order = np.argsort(phys_offset, kind="stable")
        offsets = phys_offset[order]
        self._returned.append(Returned(int(offsets[0]), int(offsets[-1]), offsets, pos[order]))
        self._note(offsets)

    def _note(self, offsets: Offsets) -> None:
        self._sorted = None
        if self._recorded is not None:
            self._recorded.append(offsets)

    @property
    def returning(self) -> bool:
        """Whether units of returned timers lack tombstones; then no unit may be transferred."""
        return bool(self._returned)

    @property
    def returned_count(self) -> int:
        """Number of returned timers until the next checkpoint; each takes 16 bytes."""
        return sum(item.offsets.size for item in self._returned)

    def start_recording(self) -> None:
        """Record timers that are added from now on, even if a checkpoint writes them meanwhile."""
        self._recorded = []

    def stop_recording(self) -> Offsets:
        """Return the log offsets of timers added since `start_recording`, and stop recording."""
        recorded, self._recorded = self._recorded, None
        return np.concatenate([NO_OFFSETS, *(recorded or ())])

    def has(self, phys_offset: Offsets) -> Mask:
        """Return which of these timers are settled."""
        is_settled = np.zeros(phys_offset.size, np.bool_)
        if len(self):
            listed = np.ascontiguousarray(phys_offset)
            self._own.mark(listed, is_settled)
            self._captured.mark(listed, is_settled)
        if not self._returned or not is_settled.size:
            return is_settled
        low, high = int(phys_offset.min()), int(phys_offset.max())
        for first, last, offsets, _ in self._returned:
            if high < first or last < low:
                continue
            position = np.minimum(np.searchsorted(offsets, phys_offset), offsets.size - 1)
            is_settled |= offsets[position] == phys_offset
        return is_settled

    @property
    def offsets(self) -> Offsets:
        """Log offsets, ascending."""
        if self._sorted is None:
            parts = self._captured.offsets, self._own.offsets
            self._sorted = merged(*parts, *(item.offsets for item in self._returned))
        return self._sorted

    def capture(self) -> list[Offsets]:
        """Return the unit positions of the settled timers, in pieces, for the next checkpoint.

        The result does not change. Those of a checkpoint that failed are included.
        """
        if self._captured.count:
            self._captured.extend(self._own)
        else:
            self._captured = self._own
        self._own = SettledPart()
        return list(self._captured.positions)

    def capture_returned(self) -> list[Offsets]:
        """Return the positions of units returned to a level, for the next checkpoint."""
        return [item.positions for item in self._returned]

    def remove_written(self, returned_batches: int = 0) -> None:
        """Remove the captured timers, whose tombstones a checkpoint wrote.

        Args:
            returned_batches: Length of the result of `capture_returned`.
        """
        self._captured = SettledPart()
        del self._returned[:returned_batches]
        self._sorted = None

    def clear(self) -> None:
        """Remove all timers, after a rebuild without settled timers."""
        self._own, self._captured = SettledPart(), SettledPart()
        self._returned.clear()
        self._sorted = None
