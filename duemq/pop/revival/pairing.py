"""Pairing of checkpoints with acknowledgements, for one revive queue: pure decisions.

    records in queue order --add--> open checkpoints --due(time)--> messages to revive --settle-->

A checkpoint is open until `settle` closes it, or until all of its messages are acknowledged. An
acknowledgement without an open checkpoint is late or forged, and changes nothing.
"""

from __future__ import annotations

import heapq

from duemq.pop.checkpoints import Acknowledgement, Checkpoint, Key


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
        self._open: dict[int, Checkpoint] = {}  # by queue offset, ascending
        self._by_key: dict[Key, list[int]] = {}
        self._by_time: list[tuple[int, int]] = []  # heap of (revive time, queue offset)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def settled_before(self) -> int:
        """Queue offset of the first open checkpoint, or `next_offset` if none is open."""
        return next(iter(self._open), self.next_offset)

    @property
    def next_ms(self) -> int | None:
        """Earliest revive time of an open checkpoint, in ms since the epoch; None: none is open."""
        while self._by_time and self._by_time[0][1] not in self._open:
            heapq.heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else None

    def add(self, record: Checkpoint | Acknowledgement | None) -> None:
        """Add the record at `next_offset`; None: the record is unreadable and is skipped."""
        at = self.next_offset
        self.next_offset += 1
        if record is None:
            return
        self.read_due_ms = max(self.read_due_ms, record.due_ms)
        if isinstance(record, Acknowledgement):
            self._acknowledge(record)
        elif record.unacknowledged:
            self._open[at] = record
            self._by_key.setdefault(record.key, []).append(at)
            heapq.heappush(self._by_time, (record.revive_ms, at))

    def _acknowledge(self, record: Acknowledgement) -> None:
        for at in list(self._by_key.get(record.key, ())):
            checkpoint = self._open[at]
            checkpoint.acked.update(record.offsets)
            if not checkpoint.unacknowledged:
                self.settle(at)

    def due(self, through_ms: int, count_max: int) -> list[tuple[int, Checkpoint]]:
        """Return open checkpoints with revive times up to `through_ms`; they stay open.

        Args:
            through_ms: Latest revive time, inclusive, in ms since the epoch.
            count_max: Maximum number of checkpoints.
        Returns:
            Queue offset and checkpoint, in order of revive time.
        """
        found: list[tuple[int, int]] = []
        while len(found) < count_max:
            next_ms = self.next_ms
            if next_ms is None or next_ms > through_ms:
                break
            found.append(heapq.heappop(self._by_time))
        for item in found:
            heapq.heappush(self._by_time, item)
        return [(at, self._open[at]) for _, at in found]

    def settle(self, at: int) -> None:
        """Close the checkpoint at a queue offset."""
        key = self._open.pop(at).key
        same = self._by_key[key]
        same.remove(at)
        if not same:
            del self._by_key[key]
