"""Counts of pending timers by real topic and by commit log file; exact, also after a crash.

Counts change when a timer is enqueued or settled, always in the event loop's thread; a checkpoint
copies them together with the positions of the same instant.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from message_store.queues.topic_table import TopicTable
from timer_store.kernels.survey import count_pending
from timer_store.layout import Offsets, Rows

Counts = npt.NDArray[np.int64]


class PendingCounts:
    """Pending timers.

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
        self._change_files(phys_offset // self._file_bytes, sign)

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

    def _change_files(self, numbers: Offsets, sign: int) -> None:
        first = int(numbers.min())
        counts = np.bincount(numbers - first)
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
        found = np.flatnonzero(self._by_topic).tolist()
        return {self._name(position - 1): int(self._by_topic[position]) for position in found}

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
