"""Comparison of timer units with their records, to find out which of the two is damaged.

    unit    due_ms  phys_offset  record_size  topic_hash      in the timer log: derived
    record  TIMER_DELIVER_MS, ...  size  REAL_TOPIC           in the commit log: the source

A timer is delivered only if unit and record have the same due time. Otherwise the disk has changed
one of them. If the checksums of the commit log show that it is the record, the message goes to
quarantine. If it is the unit, timer log and wheel are rebuilt from the queue, once for each log
offset: a timer that still differs after a rebuild goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from duemq_common.errors import CorruptStore
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.frames import topic_of
from message_store.store import MessageStore
from timer_store import layout
from timer_store.layout import Mask, Offsets, Row, Rows
from timer_store.log.timer_log import REMEDY
from timer_store.names import TIMER_QUEUE
from timer_store.pending.records import RecordReader
from timer_store.progress import PendingCounts

REPORTED_MAX = 10_000


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
        self,
        store: MessageStore,
        records: RecordReader,
        counts: PendingCounts,
        precision_ms: int,
        directory: Path,
    ) -> None:
        self._store, self._records, self._counts = store, records, counts
        self._precision_ms, self._directory = precision_ms, directory
        self._reported: set[int] = set()  # log offsets of units that were wrong before

    def wrong_marker(self, rows: Rows) -> CorruptStore | None:
        """Return the error of the first unit that rolls as a marker although its record is a timer.

        A later slot would treat it as a marker, and the timer would be lost.

        Args:
            rows: (n,) `layout.STAGED`.
        """
        rows = rows[rows["magic"] & layout.MAGIC_DELETE != 0]
        if not rows.size:
            return None
        timed = self._records.read(np.ascontiguousarray(rows["phys_offset"]))
        is_timer = timed["kind"] == layout.TIMED_PLAIN
        return self._first_error(rows[is_timer], lambda row: "the record there is no marker")

    def wrong_unit(self, rows: Rows) -> CorruptStore | None:
        """Return the error of the first timer whose unit is damaged, None if only records are.

        Args:
            rows: (n,) `layout.STAGED` whose records cannot be delivered with these units.
        """
        is_pending = (rows["pos"] >= 0) & (rows["state"] == layout.STAGED_PENDING)
        return self._first_error(rows[is_pending], self._fault)

    def _first_error(self, rows: Rows, fault: Callable[[Row], str]) -> CorruptStore | None:
        """Return the error of the first unit with a fault; none is reported a second time."""
        for row in rows:
            phys_offset = int(row["phys_offset"])
            if phys_offset in self._reported or len(self._reported) >= REPORTED_MAX:
                continue
            reason = fault(row)
            if reason:
                self._reported.add(phys_offset)
                return CorruptStore(
                    self._directory,
                    max(int(row["pos"]), 0),
                    f"the unit of a timer due at {int(row['due_ms'])} names "
                    f"{int(row['record_size'])} bytes at log offset {phys_offset}, but {reason}",
                    REMEDY,
                )
        return None

    def _fault(self, row: Row) -> str:
        """Return the difference of the record if the unit is damaged, else an empty text."""
        phys_offset, size = int(row["phys_offset"]), int(row["record_size"])
        store = self._store
        if phys_offset < store.min_offset:
            return self._removal_fault()
        size_max = store.config.commitlog_file_bytes
        has_changed = store.has_changed(phys_offset, min(max(size, 1), size_max))
        if has_changed:
            return ""
        frame = store.frame_at(phys_offset)
        if frame is None or frame["record_size"] != size:
            return "no record begins and ends there"
        file = store.log_file(phys_offset)
        topic = topic_of(file.data, file.base, frame)
        if topic == SCHEDULE_TOPIC:
            return ""
        if topic != TIMER_TOPIC or frame["queue_id"] != TIMER_QUEUE:
            return f"the record there belongs to {topic}"
        # Without a checksum, the record may be damaged: its due time is not believed.
        return self._due_time_fault(row) if has_changed is False else ""

    def _removal_fault(self) -> str:
        """Return the fault of a unit whose record was removed, although no timer needed it."""
        first = self._counts.first_file
        if first is not None and first < self._store.min_offset:
            return ""  # files with pending timers were removed: the message is lost
        return "no timer there is pending"

    def _due_time_fault(self, row: Row) -> str:
        timed = self._records.read(np.array([row["phys_offset"]], np.int64))[0]
        if timed["kind"] == layout.TIMED_BROKEN:
            return ""
        if timed["kind"] == layout.TIMED_MARKER:
            return "the record there cancels another timer"
        if timed["topic_hash"] != row["topic_hash"]:
            return "the record there has another topic"
        times = np.array([row["due_ms"]], np.int64), np.array([timed["due_ms"]], np.int64)
        if is_due_with_record(*times, self._precision_ms).all():
            return ""
        return f"the record there is due at {int(timed['due_ms'])}"
