"""Pairing of checkpoints with acknowledgements, for one revive queue: pure decisions.

    records in queue order --add--> open checkpoints --due(time)--> messages to revive --settle-->
                                          ^                              |
                                          +---------- postpone ----------+

A checkpoint is open until `settle` closes it, or until all of its messages are acknowledged. An
acknowledgement without an open checkpoint is late or forged, and changes nothing.

Pops of a clock that was ahead are visible again at a time of the present clock. Their records come
earlier than at their due times, so they show nothing about other records.
"""

from __future__ import annotations

import heapq
from typing import Final

from duemq.pop.checkpoints import Acknowledgement, Key, PopCheckpoint, is_ahead

RETRY_MS: Final = 1_000  # pause after the first failure
RETRY_MS_MAX: Final = 60_000


class Pairing:
    """Open checkpoints of one revive queue.

    Args:
        next_offset: Queue offset of the record to add next.
    Attributes:
        next_offset: Queue offset of the record to add next.
        read_due_ms: Latest due time of the added records, in ms since the epoch.
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.read_due_ms = 0
        self._now_ms = 0
        # revive times of checkpoints that are ahead of the clock, by queue offset
        self._ahead: dict[int, int] = {}
        self._open: dict[int, PopCheckpoint] = {}  # by queue offset, ascending
        self._by_key: dict[Key, list[int]] = {}
        self._by_time: list[tuple[int, int]] = []  # heap of (revive time, queue offset)
        self._paused: dict[int, int] = {}  # time of the next attempt, by queue offset
        self._attempts: list[tuple[int, int]] = []  # heap of (time of an attempt, queue offset)
        self._failures: dict[int, int] = {}  # attempts that failed, by queue offset

    def __len__(self) -> int:
        return len(self._open)

    @property
    def settled_before(self) -> int:
        """Queue offset of the first open checkpoint, or `next_offset` if none is open."""
        return next(iter(self._open), self.next_offset)

    @property
    def first_ms(self) -> int | None:
        """Earliest revive time of an open checkpoint, in ms since the epoch; None: none is open."""
        times = [self._visible_ms(position) for position in self._paused]
        first_ms = self._unpaused_ms()
        return min(times + ([first_ms] if first_ms is not None else []), default=None)

    @property
    def next_ms(self) -> int | None:
        """Time of the next attempt, in ms since the epoch; None: no checkpoint is open."""
        first_ms = self._unpaused_ms()
        if not self._paused:
            return first_ms
        again_ms = min(self._paused.values())
        return again_ms if first_ms is None else min(first_ms, again_ms)

    def _unpaused_ms(self) -> int | None:
        heap = self._by_time
        while heap and (heap[0][1] not in self._open or heap[0][1] in self._paused):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    @property
    def decidable_ms(self) -> int:
        """Revive time up to which the records that were read are all records."""
        return 0 if self._ahead else min(self.read_due_ms - 1, self._now_ms)

    def set_time(self, now_ms: int) -> list[PopCheckpoint]:
        """Set the current time; after a step of the clock, other checkpoints are due first.

        Returns:
            Open checkpoints that were ahead of the clock, and are not any more.
        """
        before_ms, self._now_ms = self._now_ms, now_ms
        if now_ms < before_ms:
            self.read_due_ms = min(self.read_due_ms, now_ms)
        elif all(is_ahead(self._open[position].pop_ms, now_ms) for position in self._ahead):
            return []
        left_ms = {position: self._visible_ms(position) - before_ms for position in self._open}
        before, self._by_time, self._ahead = self._ahead, [], {}
        for position in self._open:
            self._place(position, max(left_ms[position], 0))
        return [self._open[position] for position in before.keys() - self._ahead.keys()]

    def _visible_ms(self, position: int) -> int:
        revive_ms = self._ahead.get(position)
        return self._open[position].revive_ms if revive_ms is None else revive_ms

    def _place(self, position: int, left_ms: int | None = None) -> None:
        """Put an open checkpoint into the order of the revive times.

        Args:
            left_ms: Time from now until its revive time, before the clock was set back; None: the
                checkpoint is new.
        """
        checkpoint, now_ms = self._open[position], self._now_ms
        if is_ahead(checkpoint.pop_ms, now_ms):
            revive_ms = checkpoint.visible_ms(now_ms)
            if left_ms is not None and is_ahead(checkpoint.stored_ms, now_ms):
                revive_ms = min(revive_ms, now_ms + left_ms)
            self._ahead[position] = revive_ms
        heapq.heappush(self._by_time, (self._visible_ms(position), position))

    def checkpoints(self, key: Key) -> list[PopCheckpoint]:
        """Return the open checkpoints with a key."""
        return [self._open[position] for position in self._by_key.get(key, ())]

    def add(self, record: PopCheckpoint | Acknowledgement | None) -> None:
        """Add the record at `next_offset`; None: the record is unreadable and is skipped."""
        position = self.next_offset
        self.next_offset += 1
        if record is None:
            return
        if isinstance(record, Acknowledgement) or record.pop_ms <= record.stored_ms:
            self.read_due_ms = max(self.read_due_ms, record.due_ms)
        if isinstance(record, Acknowledgement):
            self._acknowledge(record)
        elif record.unacknowledged:
            self._open[position] = record
            self._by_key.setdefault(record.key, []).append(position)
            self._place(position)

    def _acknowledge(self, record: Acknowledgement) -> None:
        for position in list(self._by_key.get(record.key, ())):
            checkpoint = self._open[position]
            checkpoint.acked.update(record.offsets)
            if not checkpoint.unacknowledged:
                self.settle(position)

    def due(self, through_ms: int, count_max: int) -> list[tuple[int, PopCheckpoint]]:
        """Return open checkpoints with revive times up to `through_ms`; they stay open.

        Args:
            through_ms: Latest time, inclusive, in ms since the epoch.
            count_max: Maximum number of checkpoints.
        Returns:
            Queue offset and checkpoint, in order of revive time; without the postponed ones.
        """
        while self._attempts and self._attempts[0][0] <= through_ms:
            time_ms, position = heapq.heappop(self._attempts)
            if self._paused.get(position) == time_ms:
                self._resume(position)
        items: dict[int, tuple[int, int]] = {}  # a second item of one checkpoint is dropped
        while len(items) < count_max:
            next_ms = self._unpaused_ms()
            if next_ms is None or next_ms > through_ms:
                break
            item = heapq.heappop(self._by_time)
            items[item[1]] = item
        for item in items.values():
            heapq.heappush(self._by_time, item)
        return [(position, self._open[position]) for position in items]

    def has_failed(self, position: int) -> bool:
        """Return whether an attempt for the checkpoint at a queue offset has failed."""
        return position in self._failures

    def postpone(self, position: int, now_ms: int) -> None:
        """Try a checkpoint again after a pause, which doubles with each failure."""
        failures = self._failures[position] = self._failures.get(position, 0) + 1
        self._paused[position] = now_ms + min(RETRY_MS << min(failures - 1, 16), RETRY_MS_MAX)
        heapq.heappush(self._attempts, (self._paused[position], position))

    def end_pauses(self) -> None:
        """Try the postponed checkpoints at once."""
        for position in list(self._paused):
            self._resume(position)

    def _resume(self, position: int) -> None:
        del self._paused[position]
        heapq.heappush(self._by_time, (self._visible_ms(position), position))

    def settle(self, position: int) -> None:
        """Close the checkpoint at a queue offset."""
        key = self._open.pop(position).key
        self._failures.pop(position, None)
        self._paused.pop(position, None)
        self._ahead.pop(position, None)
        same = self._by_key[key]
        same.remove(position)
        if not same:
            del self._by_key[key]
