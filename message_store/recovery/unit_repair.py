"""Repair of queue units that do not match their records, while the store is open.

    queue   [ 4 ][ 5 ][ ? ][ ? ][ 8 ]          a disk returned other bytes for two units
    log     ...[5]......[6]...[7]..[8]...      the records name their queue and queue offset

Readers compare each record with its unit's queue and queue offset, and units whose records they do
not read with their checksum (`queues.queue_sums`). If they differ, the log between the records of
the nearest units that match is read, and the units of the queue's records in it are written again.
If the record itself is damaged, it gets no unit, and readers skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from message_store.hooks import TagsCodeRule
from message_store.layout import Row, Rows
from message_store.log.commit_log import CommitLog
from message_store.log.frames import frame_at, topic_of
from message_store.queues.apache_names import LIGHT_QUEUES
from message_store.queues.consume_queue import ConsumeQueue, is_blank
from message_store.queues.consume_queues import QueueSet
from message_store.recovery.recover import dispatch, tags_codes, walk_log

UNITS_MAX: Final = 65_536  # maximum units that are searched in each direction for one that matches
LOG_BYTES_MAX: Final = 1 << 30  # maximum bytes that are read for one repair
GIVEN_UP_MAX: Final = 10_000
UnitKey = tuple[str, int, int]


class UnitRepair:
    """Repair of one store's queues. Belongs to the thread that opened the store.

    Args:
        notice: Called with one line for each repair, and for each that is impossible.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueSet,
        rules: Sequence[TagsCodeRule],
        notice: Callable[[str], None],
    ) -> None:
        self._log, self._queues, self._rules, self._notice = log, queues, rules, notice
        self._given_up: set[UnitKey] = set()

    def compare(self, topic: str, queue_id: int, units: Rows, offset: int) -> bool:
        """Compare units with the checksums of their blocks; return whether one was written again.

        Args:
            units: (n,) `layout.UNIT`, as read from the queue.
            offset: Queue offset of the unit with index 0.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not units.size or topic.startswith(LIGHT_QUEUES):
            return False
        has_repaired = False
        for start, end in queue.changed_blocks(offset + int(units[0]["index"]), int(units.size)):
            for index in range(start, end):
                unit, key = queue.read(index, 1), (topic, queue_id, index)
                if not unit.size or is_blank(unit)[0]:
                    continue
                if not self._has_record(unit[0], key, with_code=True):
                    has_repaired |= self._write_again(queue, key)
        return has_repaired

    def repaired(self, topic: str, queue_id: int, offset: int) -> bool:
        """Repair a unit if it points at another record; return whether it was changed.

        Neighbours that do so are repaired, too.
        """
        queue, key = self._queues.find(topic, queue_id), (topic, queue_id, offset)
        if queue is None:
            return False
        return self._matching_unit(queue, key) is None and self._write_again(queue, key)

    def _write_again(self, queue: ConsumeQueue, key: UnitKey) -> bool:
        """Write a unit from its record, with its neighbours that have other records."""
        topic, queue_id, offset = key
        if key in self._given_up:
            return False
        before = queue.read(offset, 1)
        span, offsets = self._bounds(queue, key)
        if span[1] - span[0] > LOG_BYTES_MAX:
            return self._give_up(key, "it is too far from the next one that does")
        count = self._rewrite(topic, queue_id, span, offsets)
        after = queue.read(offset, 1)
        if not after.size or (before.size and after[0] == before[0]):
            return self._give_up(key, "the log has no other record for it")
        self._notice(
            f"queue {topic}/{queue_id} at offset {offset}: the unit did not match its record; "
            f"{count} units were written again from the log"
        )
        return True

    def _has_record(self, unit: Row, key: UnitKey, *, with_code: bool = False) -> bool:
        """Return whether a unit points at the record that names its queue and queue offset.

        Args:
            with_code: Compare the tags code, too. An Apache broker may have computed another one.
        """
        topic, queue_id, offset = key
        row = frame_at(self._log, int(unit["phys_offset"]))
        if row is None or (row["queue_id"], row["queue_offset"]) != (queue_id, offset):
            return False
        file = self._log.file_of(int(unit["phys_offset"]))
        if row["record_size"] != unit["size"] or topic_of(file.data, file.base, row) != topic:
            return False
        return not with_code or int(unit["tags_code"]) == self._tags_code(row)

    def _tags_code(self, row: Row) -> int:
        start, size = int(row["phys_offset"]), int(row["record_size"])
        for rows in walk_log(
            self._log, start, start + size, self._queues.topics, check=False, count=1
        ):
            return int(tags_codes(rows, self._queues.topics, self._rules, self._log)[0])
        return 0

    def _bounds(self, queue: ConsumeQueue, key: UnitKey) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the ranges of log offsets and of queue offsets that contain the damaged units."""
        topic, queue_id, offset = key
        low, high = self._log.min_offset, self._log.end
        first, after = queue.min_offset, queue.max_offset
        for index in range(offset - 1, max(offset - UNITS_MAX, queue.min_offset) - 1, -1):
            if (unit := self._matching_unit(queue, (topic, queue_id, index))) is not None:
                low, first = int(unit["phys_offset"]) + int(unit["size"]), index + 1
                break
        for index in range(offset + 1, min(offset + UNITS_MAX, queue.max_offset)):
            if (unit := self._matching_unit(queue, (topic, queue_id, index))) is not None:
                high, after = int(unit["phys_offset"]), index
                break
        return (low, max(low, high)), (first, after)

    def _matching_unit(self, queue: ConsumeQueue, key: UnitKey) -> Row | None:
        """Return the unit at a queue offset if it has its record."""
        unit = queue.read(key[2], 1)
        if not unit.size or is_blank(unit)[0]:
            return None
        row: Row = unit[0]
        return row if self._has_record(row, key) else None

    def _rewrite(
        self, topic: str, queue_id: int, span: tuple[int, int], offsets: tuple[int, int]
    ) -> int:
        """Write the units of the queue's records between two log offsets; return their number.

        Args:
            offsets: First queue offset of the units, and the one after the last. A record whose
                queue offset is outside is damaged.
        """
        count = 0
        index = self._queues.topics.find(topic)
        for rows in walk_log(self._log, *span, self._queues.topics, check=False, past_damage=True):
            mask = (rows["topic_index"] == index) & (rows["queue_id"] == queue_id)
            mask &= (rows["queue_offset"] >= offsets[0]) & (rows["queue_offset"] < offsets[1])
            if mask.any():
                dispatch(rows[mask], self._queues, self._rules, self._log)
                count += int(mask.sum())
        return count

    def _give_up(self, unit_key: UnitKey, reason: str) -> bool:
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up.clear()
        self._given_up.add(unit_key)
        topic, queue_id, offset = unit_key
        self._notice(
            f"queue {topic}/{queue_id} at offset {offset}: the unit does not match its record, and "
            f"{reason}: the message is skipped"
        )
        return False
