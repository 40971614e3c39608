"""Queues of the schedule topic: units, and the due time of each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from duemq_common.topics import SCHEDULE_TOPIC
from message_store.index.key_search import frames
from message_store.layout import PRE_BLANK_SIZE, Row, Rows
from schedule_service import kernels
from schedule_service.levels import TAGS_HASH_BITS, LevelHistory
from schedule_service.tags_code_rule import LevelRule

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
SECOND_MS = 1_000
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

    def compared_units(self, level: int, offset: int, count_max: int) -> Rows:
        """Return units as `units` does, after their blocks were compared with their checksums."""
        units = self.units(level, offset, count_max)
        if self._store.repair.compare(SCHEDULE_TOPIC, level - 1, units, offset):
            return self.units(level, offset, count_max)
        return units

    def compared_due_ms(self, level: int, offset: int) -> int | None:
        """Return the due time of the unit at an offset, None if there is no unit.

        The unit is compared with its checksum and its record before.
        """
        units = self.compared_units(level, offset, 1)
        if units.size and not self._is_of_table(level, units[0]) and self.corrected(level, offset):
            units = self.units(level, offset, 1)
        return int(self.due_ms(level, units)[0]) if units.size else None

    def of_one_table(self, level: int, units: Rows) -> tuple[Rows, int]:
        """Return the leading units with the same level table, and the delay of the level in it.

        Args:
            units: (n,) in log order, n > 0.
        """
        offsets = units["phys_offset"]
        table = self._history.table_at(int(offsets[0]))
        if self._history.table_at(int(offsets[-1])) is not table:
            same = [self._history.table_at(offset) is table for offset in offsets.tolist()]
            units = units[: same.index(False)]
        return units, self._history.delay_ms(int(offsets[0]), level)

    def corrected(self, level: int, offset: int) -> bool:
        """Write the due time of a unit again if it is earlier than its record allows.

        The caller has compared the unit with its checksum, which does not exist, or was computed
        after the damage, if an Apache broker wrote the unit.

        - All delays are whole seconds, also those that an Apache broker had before. Another
          difference between due time and store time shows that the disk has changed one of them.
        - If the disk has changed the record, its unit is believed. Without checksums of the log,
          the later of the two times counts, unless the store time is in the future.

        Raises:
            OSError: The unit cannot be written.
        """
        units = self.units(level, offset, 1)
        if not units.size:
            return False
        rows, recorded_ms = self._recorded(level, units)
        due_ms = self.due_ms(level, units)
        early = (due_ms < recorded_ms) & (rows["store_ms"] <= self._store.clock.now_ms())
        early &= ((due_ms - rows["store_ms"]) % SECOND_MS != 0) | (rows["prepared_offset"] < 0)
        if not early[0] or self._has_changed(rows[0]):
            return False
        text = "level %d at offset %d: the disk has changed due time %d; it is corrected to %d"
        log.warning(text, level, offset, int(due_ms[0]), int(recorded_ms[0]))
        units["tags_code"] = recorded_ms
        queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
        assert queue is not None
        queue.rewrite(offset, units)
        for _ in queue.changed_blocks(offset, 1):
            pass  # the other units were compared before: the checksum is only renewed
        return True

    def _is_of_table(self, level: int, unit: Row) -> bool:
        """Return whether a unit has the delay in the table of its level, as nearly all units."""
        phys_offset = int(unit["phys_offset"])
        row = self._store.frame_at(phys_offset)
        if row is None or row["prepared_offset"] < 0:
            return False
        delay_ms = self._history.delay_ms(phys_offset, level)
        return int(unit["tags_code"]) == int(row["store_ms"]) + delay_ms

    def _has_changed(self, row: Row) -> bool:
        """Return whether checksums show that the disk has changed a record."""
        return bool(self._store.has_changed(int(row["phys_offset"]), int(row["record_size"])))

    def _recorded(self, level: int, units: Rows) -> tuple[Rows, npt.NDArray[np.int64]]:
        """Return the records of units (`layout.SCANNED`), and the due times that they define.

        Units without their record keep their due time.
        """
        rows = frames(self._store, units["phys_offset"])
        has_record = (rows["topic_index"] == self._topic) & (rows["queue_id"] == level - 1)
        has_record &= (rows["record_size"] > 0) & (units["size"] != PRE_BLANK_SIZE)
        rows["delay_level"] = level
        rule = LevelRule(SCHEDULE_TOPIC, self._history.tables)
        due_ms = units["tags_code"].copy()
        due_ms[has_record] = self._store.tags_codes(rule, rows[has_record])
        return rows, due_ms

    def correct(self, level: int, from_offset: int) -> int:
        """Correct the due times of units by the history; return the number of corrected units.

        Args:
            from_offset: Log offset of the first record whose unit is checked.
        Raises:
            OSError: A unit cannot be written; the call can be repeated.
        """
        queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        position, end = queue.offset_from(from_offset), self.bounds(level)[1]
        changed = 0
        while position < end:
            units = self.units(level, position, CORRECTED_UNITS)
            if not units.size:
                break
            _, due_ms = self._recorded(level, units)
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
