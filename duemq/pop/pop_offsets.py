"""Offsets of pops: the offset at which a group continues in a queue.

    committed offset  <--confirmed--  end of the last pop, in memory until its checkpoint is
                                      confirmed by disk and replicas

A table therefore never contains progress whose checkpoint could be lost. Progress that is not yet
in a table is in the log: a start reads the checkpoints after `before`.
Source: PopMessageProcessor.getPopOffset
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from duemq.registry.consumer_offsets import OffsetManager
from duemq_common.errors import RequestError
from duemq_common.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
FROM_FIRST, FROM_LAST = 0, 1  # ConsumeInitMode
MEMORY_SPAN_BYTES = 1 << 30  # a log of this size counts as in memory


class GroupQueue(NamedTuple):
    """One queue of one group."""

    group: str
    topic: str
    queue_id: int


Unconfirmed = tuple[int, int, Sequence[tuple[GroupQueue, int]]]
"""Log offsets before and after the checkpoints of a pop; the ends that it commits."""


class PopOffsets:
    """Offsets of the pops of all groups."""

    def __init__(self, store: MessageStore, offsets: OffsetManager) -> None:
        self._store, self._offsets = store, offsets
        self._ends: dict[GroupQueue, int] = {}  # end of the last pop, if a pop is not confirmed
        self._unconfirmed = deque[Unconfirmed]()
        self._refusal = ""  # last logged refusal of the table

    def __len__(self) -> int:
        """Return the number of queues with pops that are not confirmed."""
        return len(self._ends)

    def popped(self, queue: GroupQueue) -> int | None:
        """Return the end of the last pop, None for a group without one."""
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id)
        return (
            self._ends.get(queue) if committed is None else max(committed, self._ends.get(queue, 0))
        )

    def following(self, queue: GroupQueue, init_mode: int) -> int:
        """Return the offset where the next pop begins, and apply a pending reset."""
        reset = self._offsets.take_reset(queue.group, queue.topic, queue.queue_id)
        if reset is not None:
            self._ends.pop(queue, None)
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, reset)
            return reset
        return self.peek(queue, init_mode)

    def peek(self, queue: GroupQueue, init_mode: int) -> int:
        """Return the offset where the next pop begins, and change nothing."""
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id)
        if committed is None:
            committed = self._first(queue, init_mode)
        return max(committed, self._ends.get(queue, 0))

    def _first(self, queue: GroupQueue, init_mode: int) -> int:
        """Return where a new group begins."""
        low, high = self._store.queue_bounds(queue.topic, queue.queue_id)
        if init_mode == FROM_FIRST or queue.topic.startswith(RETRY_PREFIX):
            return low
        units = self._store.units(queue.topic, queue.queue_id, 0, 1)
        memory_from = self._store.max_offset - MEMORY_SPAN_BYTES
        if low == 0 and units.size and int(units[0]["phys_offset"]) >= memory_from:
            return 0  # initPopOffsetByCheckMsgInMem: a young queue is read from its beginning
        return max(high - 1, 0)

    def put(self, log_offset: int, ends: Sequence[tuple[GroupQueue, int]]) -> None:
        """Keep the ends of a pop until `settle`; its checkpoints were put after a log offset."""
        self._unconfirmed.append((log_offset, self._store.max_offset, ends))

    def settle(self) -> None:
        """Commit the ends of the confirmed pops, even if their confirmation timed out."""
        while self._unconfirmed and self._unconfirmed[0][1] <= self._store.confirm_offset:
            _, _, ends = self._unconfirmed.popleft()
            for key, end in ends:
                try:
                    self.commit(key, end)
                except RequestError as error:
                    self._warn(error)

    def forget_topic(self, topic: str) -> None:
        """Remove the ends of unconfirmed pops of a deleted topic."""
        self._ends = {queue: end for queue, end in self._ends.items() if queue.topic != topic}

    @property
    def before(self) -> int:
        """Return the log offset before which every pop is committed."""
        self.settle()
        return self._unconfirmed[0][0] if self._unconfirmed else self._store.max_offset

    def move(self, queue: GroupQueue, end: int) -> None:
        """Set the offset where the next pop begins."""
        self._ends[queue] = end

    def move_back(self, queue: GroupQueue, start: int, end: int) -> None:
        """Set the offset of the next pop back to `start`, unless the offset was reset meanwhile.

        Messages after `end` that were skipped since then are read again.
        """
        if self._ends.get(queue, -1) >= end:
            self._ends[queue] = start

    def is_reset(self, queue: GroupQueue) -> bool:
        """Return whether the next pop begins at a reset offset."""
        return self._offsets.pending_reset(queue.group, queue.topic, queue.queue_id) is not None

    def stay(self, queue: GroupQueue, start: int) -> None:
        """Commit the offset where an orderly pop began; its acknowledgements advance it.

        Raises:
            RequestError: The table refuses the offset.
        """
        if self._offsets.query(queue.group, queue.topic, queue.queue_id) != start:
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, start)

    def committed(self, queue: GroupQueue) -> int:
        """Return the committed offset, 0 without any."""
        return self._offsets.query(queue.group, queue.topic, queue.queue_id) or 0

    def acknowledged(self, queue: GroupQueue, following: int) -> None:
        """Commit the offset after acknowledged messages of an orderly pop, unless it was reset."""
        if not self.is_reset(queue):
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, following)

    def skip(self, queue: GroupQueue, end: int) -> None:
        """Continue at `end`: the messages before it do not pass the filter."""
        if queue in self._ends:  # an earlier pop is not confirmed
            self._ends[queue] = end
            return
        try:
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, end)
        except RequestError as error:
            self._ends[queue] = end
            self._warn(error)

    def _warn(self, error: RequestError) -> None:
        """Log that the table refuses offsets: pops continue in memory."""
        if error.remark != self._refusal:
            self._refusal = error.remark
            log.warning("offsets of pops are not stored, so a restart repeats pops: %s", error)

    def commit(self, queue: GroupQueue, end: int) -> None:
        """Commit the end of a confirmed pop, unless the offset was reset meanwhile."""
        if self._ends.get(queue, -1) < end:
            return
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id)
        if committed is None or committed < end:
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, end)
        if self._ends[queue] == end:
            del self._ends[queue]
