"""Repair of queue units that do not match their records, while the store is open.

    queue   [ 4 ][ 5 ][ ? ][ ? ][ 8 ]          a disk returned other bytes for two units
    log     ...[5]......[6]...[7]..[8]...      the records name their queue and queue offset

Readers compare each record with its unit's queue and queue offset (`is_sound`). If they differ,
the log between the records of the nearest sound units is read, and the units of the queue's records
in it are written again. If the record itself is damaged, it gets no unit, and readers skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from message_store.hooks import TagsCodeRule
from message_store.kernels.verify import GOOD, check_units
from message_store.layout import SCANNED, Row, Rows
from message_store.log.commit_log import CommitLog
from message_store.log.frames import frame_at, topic_of
from message_store.queues.consume_queue import ConsumeQueue, is_blank
from message_store.queues.consume_queues import QueueSet
from message_store.recovery.recover import dispatch, tags_codes, walk_log

UNITS_MAX: Final = 65_536  # maximum units that are searched in each direction for a sound one
LOG_BYTES_MAX: Final = 1 << 30  # maximum bytes that are read for one repair
GIVEN_UP_MAX: Final = 10_000
NOWHERE: Final = -1
Mask = npt.NDArray[np.bool_]
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

    def repaired(self, topic: str, queue_id: int, offset: int) -> bool:
        """Repair a unit if it does not match its record; return whether it was changed.

        Neighbours that are not sound are repaired, too.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or (topic, queue_id, offset) in self._given_up:
            return False
        before = queue.read(offset, 1)
        if before.size and self.is_sound(before[0], topic, queue_id, offset):
            return False
        span, offsets = self._bounds(queue, topic, queue_id, offset)
        if span[1] - span[0] > LOG_BYTES_MAX:
            return self._give_up((topic, queue_id, offset), "it is too far from the next sound one")
        count = self._rewrite(topic, queue_id, span, offsets)
        after = queue.read(offset, 1)
        if not after.size or (before.size and after[0] == before[0]):
            return self._give_up((topic, queue_id, offset), "the log has no other record for it")
        self._notice(
            f"queue {topic}/{queue_id} at offset {offset}: the unit did not match its record; "
            f"{count} units were written again from the log"
        )
        return True

    def unsound(
        self, topic: str, queue_id: int, offset: int, units: Rows, chosen: Mask
    ) -> list[int]:
        """Return the indexes of chosen units that do not match their records.

        Unlike `is_sound`, this is compiled, and every other tags code counts. Units whose records
        cannot be read are left out.

        Args:
            offset: Queue offset of the unit with index 0.
            units: (n,) `layout.UNIT`.
            chosen: (n,) bool, at least one true.
        """
        wanted = np.ascontiguousarray(units).copy()
        wanted["phys_offset"][~chosen] = NOWHERE
        codes = np.full(units.size, GOOD, np.uint8)
        name, scratch = np.frombuffer(topic.encode(), np.uint8), np.zeros(1, SCANNED)
        low, high = (int(end(units["phys_offset"][chosen])) for end in (np.min, np.max))
        for file in self._log.files:
            if file.base > high or file.base + file.size <= low:
                continue
            span = file.base, min(file.base + file.size, self._log.end)
            reading = self._log.unreadable.reading()
            while True:
                check_units(wanted, file.data, span, name, (queue_id, offset, 0), scratch, codes)
                if not reading.again(0):
                    break
        bad = codes != GOOD
        if self._log.unreadable.ranges:
            bad &= ~self._log.unreadable.mask(units["phys_offset"], units["size"])
        return np.flatnonzero(bad).tolist()

    def is_sound(self, unit: Row, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a unit points at the record with its queue and queue offset.

        A tags code that differs from the record's in one bit is not sound. Other differences are
        accepted, because an Apache broker may have computed the code by rules that changed since.
        """
        row = frame_at(self._log, int(unit["phys_offset"]))
        if row is None or (row["queue_id"], row["queue_offset"]) != (queue_id, offset):
            return False
        file = self._log.file_of(int(unit["phys_offset"]))
        if row["record_size"] != unit["size"] or topic_of(file.data, file.base, row) != topic:
            return False
        return (int(unit["tags_code"]) ^ self._tags_code(row)).bit_count() != 1

    def _tags_code(self, row: Row) -> int:
        start, size = int(row["phys_offset"]), int(row["record_size"])
        for rows in walk_log(
            self._log, start, start + size, self._queues.topics, check=False, count=1
        ):
            return int(tags_codes(rows, self._queues.topics, self._rules, self._log)[0])
        return 0

    def _bounds(
        self, queue: ConsumeQueue, topic: str, queue_id: int, offset: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the ranges of log offsets and of queue offsets that contain the damaged units."""
        low, high = self._log.min_offset, self._log.end
        first, after = queue.min_offset, queue.max_offset
        for at in range(offset - 1, max(offset - UNITS_MAX, queue.min_offset) - 1, -1):
            unit = queue.read(at, 1)
            if unit.size and not is_blank(unit)[0] and self.is_sound(unit[0], topic, queue_id, at):
                low, first = int(unit[0]["phys_offset"]) + int(unit[0]["size"]), at + 1
                break
        for at in range(offset + 1, min(offset + UNITS_MAX, queue.max_offset)):
            unit = queue.read(at, 1)
            if unit.size and not is_blank(unit)[0] and self.is_sound(unit[0], topic, queue_id, at):
                high, after = int(unit[0]["phys_offset"]), at
                break
        return (low, max(low, high)), (first, after)

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
            mine = (rows["topic_index"] == index) & (rows["queue_id"] == queue_id)
            mine &= (rows["queue_offset"] >= offsets[0]) & (rows["queue_offset"] < offsets[1])
            if mine.any():
                dispatch(rows[mine], self._queues, self._rules, self._log)
                count += int(mine.sum())
        return count

    def _give_up(self, unit_key: UnitKey, why: str) -> bool:
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up.clear()
        self._given_up.add(unit_key)
        topic, queue_id, offset = unit_key
        self._notice(
            f"queue {topic}/{queue_id} at offset {offset}: the unit does not match its record, and "
            f"{why}: the message is skipped"
        )
        return False
