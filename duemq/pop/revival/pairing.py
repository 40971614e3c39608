"""Pairing of checkpoints with acknowledgements, for one revive queue: pure decisions.

    records in queue order --add--> open checkpoints --due(time)--> messages to revive --settle-->
                                          ^                              |
                                          +---------- postpone ----------+

A checkpoint is open until `settle` closes it, or until all of its messages are acknowledged. An
acknowledgement without an open checkpoint is late or forged, and changes nothing.
"""

from __future__ import annotations

import heapq
from typing import Final

from duemq.pop.checkpoints import Acknowledgement, Checkpoint, Key

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
        self._open: dict[int, Checkpoint] = {}  # by queue offset, ascending
        self._by_key: dict[Key, list[int]] = {}
        self._by_time: list[tuple[int, int]] = []  # heap of (revive time, queue offset)
        self._next: dict[int, int] = {}  # time of the next attempt, by queue offset
        self._work: list[tuple[int, int]] = []  # heap of (time of an attempt, queue offset)
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
        while self._by_time and self._by_time[0][1] not in self._open:
            heapq.heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else None

    @property
    def next_ms(self) -> int | None:
        """Time of the next attempt, in ms since the epoch; None: no checkpoint needs one."""
        while self._work and self._next.get(self._work[0][1]) != self._work[0][0]:
            heapq.heappop(self._work)
        return self._work[0][0] if self._work else None

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
            self._try(at, record.revive_ms)

    def _acknowledge(self, record: Acknowledgement) -> None:
        for at in list(self._by_key.get(record.key, ())):
            checkpoint = self._open[at]
            checkpoint.acked.update(record.offsets)
            if not checkpoint.unacknowledged:
                self.settle(at)

    def due(self, through_ms: int, count_max: int) -> list[tuple[int, Checkpoint]]:
        """Return open checkpoints with revive times up to `through_ms`.

        They stay open. The caller settles or postpones each of them.

        Args:
            through_ms: Latest time of an attempt, inclusive, in ms since the epoch.
            count_max: Maximum number of checkpoints.
        Returns:
            Queue offset and checkpoint, in order of time.
        """
        found: list[tuple[int, Checkpoint]] = []
        while len(found) < count_max:
            next_ms = self.next_ms
            if next_ms is None or next_ms > through_ms:
                break
            _, at = heapq.heappop(self._work)
            del self._next[at]
            found.append((at, self._open[at]))
        return found

    def has_failed(self, at: int) -> bool:
        """Return whether an attempt for the checkpoint at a queue offset has failed."""
        return at in self._failures

    def postpone(self, at: int, now_ms: int) -> None:
        """Try a checkpoint again after a pause, which doubles with each failure."""
        failures = self._failures[at] = self._failures.get(at, 0) + 1
        self._try(at, now_ms + min(RETRY_MS << min(failures - 1, 16), RETRY_MS_MAX))

    def end_pauses(self) -> None:
        """Try all open checkpoints again: those that `due` returned, and postponed ones."""
        for at, checkpoint in self._open.items():
            if self._next.get(at) != checkpoint.revive_ms:
                self._try(at, checkpoint.revive_ms)

    def _try(self, at: int, time_ms: int) -> None:
        self._next[at] = time_ms
        heapq.heappush(self._work, (time_ms, at))

    def settle(self, at: int) -> None:
        """Close the checkpoint at a queue offset."""
        key = self._open.pop(at).key
        self._failures.pop(at, None)
        self._next.pop(at, None)
        same = self._by_key[key]
        same.remove(at)
        if not same:
            del self._by_key[key]
