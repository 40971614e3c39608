"""All consume queues of a store, written a batch at a time."""

from __future__ import annotations

import errno
import itertools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from duemq_common.errors import CorruptStore
from duemq_common.existence import exists, is_directory
from message_store.descriptors import descriptor_limit, queue_files_max
from message_store.hooks import Dispatcher
from message_store.kernels import encode
from message_store.kernels.kernel import entry
from message_store.layout import UNIT_BYTES, Rows
from message_store.queues.consume_queue import ConsumeQueue, FileCache
from message_store.queues.deleted_topics import Deletions
from message_store.queues.lost_queues import LostQueues
from message_store.queues.queue_sums import QueueSums
from message_store.queues.topic_table import NAME_BYTES_MAX, QUEUES_MAX, TopicTable

logger = logging.getLogger(__name__)
QUEUE_ID_DIGITS_MAX = 9
REMOVED = "removed"  # directory of removed topics' files until they are erased


class QueueSet:
    """Consume queues under `<root>/consumequeue/<topic>/<queueId>`, found by slot."""

    def __init__(
        self, directory: Path, file_bytes: int, topics: TopicTable, deletions: Deletions
    ) -> None:
        self.directory, self.deletions = directory, deletions
        self.removed = directory.parent / REMOVED
        self.file_bytes = -(-file_bytes // UNIT_BYTES) * UNIT_BYTES
        self.topics = topics
        self._discarded: set[str] = set()  # slots of lost queues
        self.lost = LostQueues(directory.parent / "config" / "unreadableQueues")
        self.sums = QueueSums(directory, directory.parent / "sums" / directory.name)
        open_max = queue_files_max(descriptor_limit())
        self.files = FileCache(open_max, unreadable=self.lost.add, sums=self.sums)
        self._by_slot: list[ConsumeQueue] = []
        self._by_name: dict[tuple[str, int], ConsumeQueue] = {}  # cache of `find`
        self._counts = np.zeros(1024, np.int32)
        self._touched = np.zeros((1024, 4), np.int64)
        self._units = np.zeros(1024 * UNIT_BYTES, np.uint8)
        self._group_units: dict[np.dtype[np.void], Callable[..., int]] = {}
        self._dispatchers: dict[str, list[Dispatcher]] = {}  # by topic
        self._backlog: list[tuple[int, int, bytes]] = []

    def load(self) -> None:
        """Open every queue directory; set each slot's next offset. Stray names are ignored."""
        self.deletions.load()
        self.lost.load()
        shutil.rmtree(self.removed, ignore_errors=True)  # left by a crash within a removal
        self.directory.mkdir(parents=True, exist_ok=True)
        self.files.file_system.open(self.directory)
        paths = [p for p in self.directory.iterdir() if is_directory(p) and is_topic_name(p.name)]
        for topic_path in sorted(paths):
            topic_index = self.topics.add(topic_path.name)
            for path in sorted(topic_path.iterdir()):
                if is_directory(path) and is_queue_id(path.name):
                    queue = self.of_slot(self.topics.slot(topic_index, int(path.name), create=True))
                    self._load(queue, f"{topic_path.name}/{path.name}")
        self.number_slots()

    def _load(self, queue: ConsumeQueue, name: str) -> None:
        """Open a queue; remove the files of one that the disk cannot read."""
        try:
            queue.load()
        except CorruptStore as error:
            if name not in self.lost.names:
                raise
            logger.warning("%s", error)
        if name in self.lost.names:
            self._discard(queue, name)

    def until_readable(self, work: Callable[[], None]) -> None:
        """Run work that reads queues; repeat it without the files of unreadable queues.

        Raises:
            CorruptStore: The store has another fault.
        """
        while True:
            try:
                return work()
            except CorruptStore:
                if not self._discard_lost():
                    raise

    def _discard_lost(self) -> bool:
        """Remove the files of queues that the disk cannot read; return whether there were any."""
        has_discarded = False
        for name in sorted(self.lost.names - self._discarded):
            topic, _, queue_id = name.partition("/")
            queue = self.find(topic, int(queue_id))
            if queue is not None:
                self._discard(queue, name)
                has_discarded = True
        self.number_slots()
        return has_discarded

    def _discard(self, queue: ConsumeQueue, name: str) -> None:
        logger.warning("queue %s cannot be read: it is rebuilt from the log", name)
        queue.discard()
        self._discarded.add(name)

    def number_slots(self) -> None:
        """Set the next queue offset of every queue to that after its last unit."""
        for slot, queue in enumerate(self._by_slot):
            self.topics.set_next_offset(slot, queue.max_offset)

    def of_slot(self, slot: int) -> ConsumeQueue:
        """Return the queue of a slot."""
        while len(self._by_slot) <= slot:
            topic_index, queue_id = self.topics.queue_of(len(self._by_slot))
            path = self.directory / self.topics.name(topic_index) / str(queue_id)
            queue = ConsumeQueue(path, self.file_bytes, self.files)
            queue.dispatchers = self.dispatchers_of(self.topics.name(topic_index))
            self._by_slot.append(queue)
        return self._by_slot[slot]

    def dispatchers_of(self, topic: str) -> list[Dispatcher]:
        """Return the functions that are called with batches for queues of a topic; changeable."""
        return self._dispatchers.setdefault(topic, [])

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue by name, or None."""
        queue = self._by_name.get((topic, queue_id))
        if queue is None:
            topic_index = self.topics.find(topic)
            slot = (
                self.topics.slot(topic_index, queue_id) if min(topic_index, queue_id) >= 0 else -1
            )
            if slot >= 0:
                queue = self._by_name[topic, queue_id] = self.of_slot(slot)
        return queue

    def all(self) -> list[ConsumeQueue]:
        """Return every queue, by slot."""
        return [self.of_slot(slot) for slot in range(self.topics.queue_count)]

    def append(
        self,
        rows: Rows,
        first: int,
        end: int,
        of_topics: dict[Dispatcher, None] | None = None,
        slots: dict[int, None] | None = None,
    ) -> None:
        """Write the units of rows[first:end], grouped by queue.

        Args:
            rows: (n,) `layout.PUT` or `layout.QUEUED`.
            of_topics: The dispatchers of the queues' topics are added to it.
            slots: The queues' slots are added to it.
        Raises:
            OSError: The disk refused a write; the units are in the backlog.
        """
        self._grow(end - first)
        group_units = self._group_units.get(rows.dtype)
        if group_units is None:
            group_units = self._group_units[rows.dtype] = entry(
                encode.group_units, rows, 0, 0, self._counts, self._touched, self._units
            )
        assert rows.flags.c_contiguous
        blocks = group_units(rows, first, end, self._counts, self._touched, self._units)
        data = self._units.data
        failure = None
        for slot, start, first_offset, stop in self._touched[:blocks].tolist():
            block = data[start * UNIT_BYTES : stop * UNIT_BYTES]
            if slots is not None:
                slots[slot] = None
            queue = self.of_slot(slot)
            if queue.dispatchers and of_topics is not None:
                of_topics.update(dict.fromkeys(queue.dispatchers))
            if failure is None and not self._backlog:
                try:
                    queue.write(first_offset, block)
                    continue
                except OSError as error:
                    failure = error
            self._backlog.append((slot, first_offset, bytes(block)))
        if failure is not None:
            raise failure

    @property
    def ends_sum(self) -> int:
        """The sum of all queues' ends: the number of messages that were ever numbered."""
        return int(self.topics.arrays.queues["next_offset"].sum())

    @property
    def has_backlog(self) -> bool:
        """Whether units are missing because the disk was full."""
        return bool(self._backlog)

    def catch_up(self) -> None:
        """Write the backlog.

        Raises:
            OSError: The disk is still full; part of the backlog may be written.
        """
        while self._backlog:
            slot, first_offset, block = self._backlog[0]
            self.of_slot(slot).write(first_offset, memoryview(block))
            self._backlog.pop(0)

    def _grow(self, count: int) -> None:
        if self._touched.shape[0] < count:
            self._touched = np.zeros((count * 2, 4), np.int64)
            self._units = np.zeros(count * 2 * UNIT_BYTES, np.uint8)
        if self._counts.size < self.topics.queue_count:
            self._counts = np.zeros(self.topics.queue_count * 2, np.int32)

    def truncate(self, log_end: int) -> None:
        """Remove units of records that the log does not have."""
        for queue in self.all():
            queue.truncate(log_end)

    def cut_at_holes(self) -> None:
        """Truncate every queue at the first unit that a power cut lost."""
        for queue in self.all():
            queue.cut_at_hole()

    def correct_min(self, log_min: int) -> None:
        """Remove units of records that retention removed."""
        for queue in self.all():
            queue.correct_min(log_min)

    def holds(self, name: str) -> bool:
        """Return whether a topic has or had queues with messages."""
        return any(self.topics.next_offset(slot) for slot in self._slots_of(name))

    def detach_topic(self, name: str, log_end: int) -> Path | None:
        """Move a topic's directory out of the queues; numbering starts at 0 again.

        Returns:
            Directory of its files, None if there are none.

        Raises:
            OSError: The disk refused it; nothing has changed.
        """
        detached = self._move_away(self.directory / name)
        if detached is not None:
            self.sums.move(name, detached)
        slots = self._slots_of(name)
        self._backlog = [block for block in self._backlog if block[0] not in slots]
        for slot in slots:
            self.of_slot(slot).forget()
            self.topics.set_next_offset(slot, 0)
        self.deletions.add(name, log_end)
        return detached

    def remove_before(self, name: str, log_offset: int) -> None:
        """Remove a topic's queues whose first record is before a log offset.

        Their numbering starts at 0 again.
        """
        for slot in self._slots_of(name):
            queue = self.of_slot(slot)
            if queue.min_offset > 0 or queue.log_offset(0) < log_offset:
                self.restart(slot)

    def restart(self, slot: int) -> None:
        """Remove the files of a queue; its numbering starts at 0 again."""
        self._backlog = [block for block in self._backlog if block[0] != slot]
        self.of_slot(slot).discard()
        self.topics.set_next_offset(slot, 0)

    def _slots_of(self, name: str) -> list[int]:
        index = self.topics.find(name)
        if index < 0:
            return []
        count = int(self.topics.arrays.topics[index]["slots_len"])
        slots = [self.topics.slot(index, queue_id) for queue_id in range(count)]
        return [slot for slot in slots if slot >= 0]

    def _move_away(self, path: Path) -> Path | None:
        if not is_directory(path):
            return None
        self.removed.mkdir(exist_ok=True)
        names = (self.removed / f"{number:08d}" for number in itertools.count())
        target = next(name for name in names if not exists(name))
        try:
            path.rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:  # the queues have a file system of their own
                raise
            shutil.rmtree(path)
            return None
        return target

    def close(self) -> None:
        """Close all files."""
        self.sums.seal_all()
        self.files.close()


def is_queue_id(name: str) -> bool:
    """Return whether a directory's name is a queue id as brokers write it."""
    plain = name.isascii() and name.isdigit() and len(name) <= QUEUE_ID_DIGITS_MAX
    return plain and str(int(name)) == name and int(name) < QUEUES_MAX


def is_topic_name(name: str) -> bool:
    """Return whether a text can be the name of a topic's directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False
