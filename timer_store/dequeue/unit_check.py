"""Comparison of timer units with their records, to find out which of the two is damaged.

    unit    due_ms  phys_offset  record_size  topic_hash      in the timer log: derived
    record  TIMER_DELIVER_MS, ...  size  REAL_TOPIC           in the commit log: the source

A timer is delivered only if unit and record have the same due time. Otherwise the disk has changed
one of them. If the unit is damaged, timer log and wheel are rebuilt from the queue, and the timer
is delivered at its record's due time; if the record is damaged, the message goes to quarantine.

The record is damaged if a queue unit points at it with its size, only the due time differs, and the
checksum of its block does not show that it is unchanged.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from duemq_common.errors import CorruptStore
from message_store.log.frames import frame_at, topic_of
from message_store.store import MessageStore
from timer_store import layout
from timer_store.layout import Mask, Offsets, Row, Rows
from timer_store.log.timer_log import REMEDY
from timer_store.names import SCHEDULE_TOPIC, TIMER_QUEUE, TIMER_TOPIC
from timer_store.pending.records import RecordReader

log = logging.getLogger(__name__)
KNOWN_MAX = 10_000
OFFSET_BITS = 64  # including the sign


def is_due_with_record(unit_due_ms: Offsets, due_ms: Offsets, precision_ms: int) -> Mask:
    """Return which units are due at the due time of their record.

    A unit of an Apache broker is due at the end of its slot. The compiled twin is in
    `kernels.gather`.
    """
    late_ms = unit_due_ms - due_ms
    at_end = (unit_due_ms % precision_ms == 0) & (late_ms > 0) & (late_ms <= precision_ms)
    return np.asarray((late_ms == 0) | at_end)


class UnitCheck:
    """Comparison of one store's timer units with their records.

    Args:
        directory: Directory of the timer log, for messages.
    """

    def __init__(
        self, store: MessageStore, records: RecordReader, precision_ms: int, directory: Path
    ) -> None:
        self._store, self._records = store, records
        self._precision_ms, self._directory = precision_ms, directory
        self._known: set[int] = set()  # log offsets of units that were found wrong before

    def wrong_times(self, rows: Rows) -> CorruptStore | None:
        """Return the error of the first timer whose due time differs from its record.

        Args:
            rows: (n,) with the columns of `layout.STAGED` that `layout.STAGE_ROW` has, too.
        """
        timed = self._records.read(np.ascontiguousarray(rows["phys_offset"]))
        good = is_due_with_record(rows["due_ms"], timed["due_ms"], self._precision_ms)
        wrong = (timed["kind"] == layout.TIMED_PLAIN) & ~good
        for at in np.flatnonzero(wrong).tolist():
            if self._is_first_report(int(rows[at]["phys_offset"])):
                return self._error(rows[at], f"is due at {int(timed[at]['due_ms'])}")
        return None

    def wrong_marker(self, rows: Rows) -> CorruptStore | None:
        """Return the error of the first unit that rolls as a marker although its record is a timer.

        A later slot would treat it as a marker, and the timer would be lost.

        Args:
            rows: (n,) `layout.STAGED`.
        """
        rows = rows[rows["magic"] & layout.MAGIC_DELETE != 0]
        timed = self._records.read(np.ascontiguousarray(rows["phys_offset"]))
        for at in np.flatnonzero(timed["kind"] == layout.TIMED_PLAIN).tolist():
            if self._is_first_report(int(rows[at]["phys_offset"])):
                return self._error(rows[at], "cancels no other timer")
        return None

    def wrong_unit(self, rows: Rows) -> CorruptStore | None:
        """Return the error of the first timer whose unit is damaged, None if only records are.

        Args:
            rows: (n,) `layout.STAGED` whose due times differ from their records.
        """
        for row in rows:
            if row["pos"] >= 0 and row["state"] == layout.STAGED_PENDING:
                why = self._why_wrong(row)
                if why and self._is_first_report(int(row["phys_offset"])):
                    return self._error(row, why)
        return None

    def _is_first_report(self, phys_offset: int) -> bool:
        """Return whether a unit is reported for the first time; a second rebuild cannot help."""
        if phys_offset in self._known or len(self._known) >= KNOWN_MAX:
            return False
        self._known.add(phys_offset)
        return True

    def _error(self, row: Row, why: str) -> CorruptStore:
        return CorruptStore(
            self._directory, max(int(row["pos"]), 0),
            f"the unit of a timer due at {int(row['due_ms'])} names {int(row['record_size'])} "
            f"bytes at log offset {int(row['phys_offset'])}, but the record there {why}",
            REMEDY,
        )  # fmt: skip

    def _why_wrong(self, row: Row) -> str:
        """Return the difference of the record if the unit is damaged, else an empty text."""
        phys_offset, size = int(row["phys_offset"]), int(row["record_size"])
        if phys_offset < self._store.log.min_offset:  # retention removed it, or it never was there
            return "was removed" if self._has_flipped(row) else ""
        found = frame_at(self._store.log, phys_offset)
        if found is None or found["record_size"] != size:
            return "" if self._is_queued(phys_offset, size) else "does not begin or end there"
        file = self._store.log.file_of(phys_offset)
        topic = topic_of(file.data, file.base, found)
        if topic == SCHEDULE_TOPIC:
            return ""
        if topic != TIMER_TOPIC or found["queue_id"] != TIMER_QUEUE:
            return f"belongs to {topic}" if not self._is_queued(phys_offset, size) else ""
        return self._due_time_fault(row)

    def _due_time_fault(self, row: Row) -> str:
        phys_offset, size = int(row["phys_offset"]), int(row["record_size"])
        timed = self._records.read(np.array([phys_offset], np.int64))[0]
        if timed["kind"] == layout.TIMED_MARKER:
            return "cancels another timer"
        due_ms = np.array([row["due_ms"]], np.int64)
        if timed["kind"] == layout.TIMED_BROKEN or is_due_with_record(
            due_ms, np.array([timed["due_ms"]], np.int64), self._precision_ms
        ):
            return ""
        if timed["topic_hash"] != row["topic_hash"]:
            return "has another topic"
        intact = self._store.log.sums.has_changed(phys_offset, size) is False
        return f"is due at {int(timed['due_ms'])}" if intact else ""

    def _has_flipped(self, row: Row) -> bool:
        """Return whether flipping one bit of the unit's log offset leads to the timer's record."""
        flipped = int(row["phys_offset"]) ^ (np.int64(1) << np.arange(OFFSET_BITS))
        flipped = flipped[flipped >= self._store.log.min_offset]
        timed = self._records.read(flipped)
        found = (timed["kind"] == layout.TIMED_PLAIN) & (timed["due_ms"] == row["due_ms"])
        return bool((found & (timed["record_size"] == row["record_size"])).any())

    def _is_queued(self, phys_offset: int, size: int) -> bool:
        """Return whether a queue of timers or levels has a unit of a record."""
        queues = [self._store.queues.find(TIMER_TOPIC, TIMER_QUEUE)]
        index, topics = self._store.topics.find(SCHEDULE_TOPIC), self._store.topics
        levels = int(topics.arrays.topics[index]["slots_len"]) if index >= 0 else 0
        queues += [self._store.queues.find(SCHEDULE_TOPIC, level) for level in range(levels)]
        for queue in queues:
            unit = None if queue is None else queue.unit_from(phys_offset)
            if unit is not None and (unit["phys_offset"], unit["size"]) == (phys_offset, size):
                return True
        return False
