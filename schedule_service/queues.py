"""Queues of the schedule topic: units, and the due time of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from message_store.index.key_search import frames
from message_store.layout import PRE_BLANK_SIZE, Rows
from schedule_service import kernels
from schedule_service.levels import TAGS_HASH_BITS, LevelHistory
from schedule_service.names import SCHEDULE_TOPIC
from schedule_service.tags_code_rule import LevelRule

if TYPE_CHECKING:
    from message_store.store import MessageStore

LONGEST_HASH = 1 << TAGS_HASH_BITS
CORRECTED_UNITS = 4_096  # read at a time


class ScheduleQueues:
    """Reader of the schedule topic of a store. Queue id = level - 1."""

    def __init__(self, store: MessageStore, history: LevelHistory) -> None:
        self._store, self._history = store, history
        self._topic = store.topics.add(SCHEDULE_TOPIC)

    @property
    def levels(self) -> list[int]:
        """Levels that have a queue, ascending."""
        slots = int(self._store.topics.arrays.topics[self._topic]["slots_len"])
        return [n + 1 for n in range(slots) if self._store.topics.slot(self._topic, n) >= 0]

    def bounds(self, level: int) -> tuple[int, int]:
        """Return the first queue offset of a level and the end of its queue."""
        first, end = self._store.queue_bounds(SCHEDULE_TOPIC, level - 1)
        return int(first), int(end)

    def units(self, level: int, offset: int, count_max: int) -> Rows:
        """Return units from `offset` on: fewer at a file's end, none outside the bounds."""
        units: Rows = self._store.units(SCHEDULE_TOPIC, level - 1, offset, count_max)
        return units

    def due_ms(self, level: int, units: Rows) -> npt.NDArray[np.int64]:
        """Return the due times of units: their tags codes.

        An Apache broker that rebuilds a queue before it has read its levels writes hashes of tags
        instead; then the due time is computed from the record.
        """
        due: npt.NDArray[np.int64] = np.empty(units.size, np.int64)
        if not kernels.due_times(units, LONGEST_HASH, due):
            return due
        damaged = np.flatnonzero((due < LONGEST_HASH) & (due >= -LONGEST_HASH))
        for index in damaged.tolist():
            phys_offset = int(units[index]["phys_offset"])
            store_ms = int(self._store.store_ms(phys_offset))
            if store_ms > due[index]:
                due[index] = store_ms + self._history.delay_ms(phys_offset, level)
        return due

    def compared_due_ms(self, level: int, offset: int) -> int | None:
        """Return the due time of the unit at an offset, None if there is no unit.

        The unit is compared with its checksum before.
        """
        units = self.units(level, offset, 1)
        if self._store.repair.compare(SCHEDULE_TOPIC, level - 1, units, offset):
            units = self.units(level, offset, 1)
        return int(self.due_ms(level, units)[0]) if units.size else None

    def delay_ms(self, level: int, units: Rows) -> int:
        """Return the delay that was in force for the records of all units, -1 if it changed.

        Args:
            units: (n,) in log order, n > 0.
        """
        first, last = int(units[0]["phys_offset"]), int(units[-1]["phys_offset"])
        if self._history.table_at(first) is not self._history.table_at(last):
            return -1
        return self._history.delay_ms(first, level)

    def correct(self, level: int, from_offset: int) -> int:
        """Correct the due times of units by the history; return the number of corrected units.

        Args:
            from_offset: Log offset of the first record whose unit is checked.
        Raises:
            OSError: A unit cannot be written; the call can be repeated.
        """
        rule = LevelRule(SCHEDULE_TOPIC, self._history.tables)
        queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        position, end = queue.offset_from(from_offset), self.bounds(level)[1]
        changed = 0
        while position < end:
            units = self.units(level, position, CORRECTED_UNITS)
            if not units.size:
                break
            rows = frames(self._store, units["phys_offset"])
            ours = (rows["topic_index"] == self._topic) & (rows["queue_id"] == level - 1)
            ours &= (rows["record_size"] > 0) & (units["size"] != PRE_BLANK_SIZE)
            rows["delay_level"] = level
            due_ms = units["tags_code"].copy()
            due_ms[ours] = self._store.tags_codes(rule, rows[ours])
            differing = int(np.count_nonzero(due_ms != units["tags_code"]))
            if differing:
                units["tags_code"] = due_ms
                queue.rewrite(position, units)
            changed += differing
            position += int(units.size)
        return changed


def correct_due_times(store: MessageStore, history: LevelHistory, from_offset: int) -> int:
    """Correct the units of all levels; see `ScheduleQueues.correct`."""
    queues = ScheduleQueues(store, history)
    return sum(queues.correct(level, from_offset) for level in queues.levels)
