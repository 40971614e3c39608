"""Deliverer of due units to their topics: by kernel, one at a time, or to quarantine.

    units of one level, all due
      |  read_due kernel: one batch of leading units, without copying a body
      |  the unit at which it stops: decoded in Python -> message, or quarantine record
      v
    store.put, in queue order; the first refusal (disk full) ends the batch

A message is delivered when its record is appended: the record names its origin, so no recovery
delivers the message again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.deliverer import SingleDeliverer
from delayed_delivery.outcome import NO_TOPIC, NOT_PUT, Outcome
from delayed_delivery.quarantine import Reason, Undeliverable
from delayed_delivery.records import add_message, clear_client_columns, read_damaged, read_record
from delayed_delivery.redirected import (
    LEVEL_NAME,
    MOVED_NAME,
    NoTarget,
    real_target,
    renamed,
    without,
    without_last,
)
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.log.unreadable import READS_MAX
from message_store.queues.topic_table import TopicTable
from message_store.store import MessageStore
from schedule_service import kernels
from schedule_service.queues import ScheduleQueues

Units = npt.NDArray[np.void]
Mask = npt.NDArray[np.bool_]


class Due(NamedTuple):
    """One due unit."""

    level: int
    queue_offset: int
    phys_offset: int
    size: int


class DueReader:
    """Reader of the records of due units of one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def is_lost(self, unit: Due) -> bool:
        """Return whether retention has removed the record of a unit."""
        return unit.phys_offset < self._store.min_offset

    def read(self, unit: Due) -> Record:
        """Return the record of a unit.

        Raises:
            RecordUnreadable: The record is damaged, or does not match the unit.
        """
        return read_record(self._store, unit.phys_offset, unit.size)

    def undeliverable(self, reason: Reason, detail: str, unit: Due) -> Undeliverable:
        """Return the quarantine item for a unit that cannot be delivered."""
        data, record = read_damaged(self._store, unit.phys_offset, unit.size)
        offsets = unit.phys_offset, unit.level, unit.queue_offset
        return Undeliverable(reason, detail, *offsets, record, data)

    def topic_of(self, unit: Due, item: Undeliverable | None = None) -> int:
        """Return NO_TOPIC, because levels are not counted by topic."""
        return NO_TOPIC

    def add_delivery(self, batch: PutBatch, record: Record, unit: Due) -> NoTarget | None:
        """Add the message of a record, or return why it has no target."""
        topics = self._store.topics
        target = target_of(record, topics, unit.level, routed=topics.has_routes)
        if isinstance(target, NoTarget):
            return target
        add_delivery(batch, record, *target)
        return None


class Deliverer:
    """Deliverer of one store's level messages."""

    def __init__(self, store: MessageStore, queues: ScheduleQueues) -> None:
        self._store, self._queues = store, queues
        topics = store.topics
        self._schedule, self._half = topics.add(SCHEDULE_TOPIC), topics.add(HALF_TOPIC)
        self._batch = PutBatch(2_048, 1)
        self._reader = DueReader(store)
        self._single = SingleDeliverer(store, self._reader)
        self._scratch = np.zeros(1, layout.SCANNED)

    def deliver_batch(
        self,
        level: int,
        first_offset: int,
        units: Units,
        now_ms: int,
        skip: Mask | None = None,
        *,
        delay_ms: int = -1,
    ) -> Outcome:
        """Append due units, in order, until all are settled or the store refuses.

        It ends before a unit that was just repaired, because the caller must read it again.

        Args:
            first_offset: Queue offset of units[0].
            skip: (n,) b1: Units that were settled before their due time; they are not delivered.
            delay_ms: Delay of the level when the units were stored; -1 delivers them before their
                due time.
        Raises:
            OSError: The queue cannot be written. Before the due time, no unit is delivered then.
        """
        outcome, whole = Outcome(units.size), units
        while outcome.done < whole.size and not outcome.refusal:
            if skip is not None:
                outcome.record(NOT_PUT, NO_TOPIC, _leading(~skip[outcome.done :]))
                units = whole[: outcome.done + _leading(skip[outcome.done :])]
            if outcome.done < units.size:
                self._deliver_compiled((level, first_offset, delay_ms), units, outcome)
            if outcome.done < units.size and not outcome.refusal:
                unit = units[outcome.done]
                if unit["size"] == layout.PRE_BLANK_SIZE:
                    outcome.record(NOT_PUT, NO_TOPIC)
                    continue
                try:
                    if self._repaired((level, first_offset, delay_ms), units, outcome.done):
                        break
                except OSError as error:
                    if delay_ms >= 0 or not outcome.done:
                        raise  # due messages stop the broker, whose start finds the delivered ones
                    outcome.refusal = str(error)
                    break
                offsets = first_offset + outcome.done, int(unit["phys_offset"])
                due = Due(level, *offsets, int(unit["size"]))
                self._single.deliver(due, self._reader.add_delivery, outcome, now_ms)
        return outcome

    def _repaired(self, segment: tuple[int, int, int], units: Units, index: int) -> bool:
        """Repair the unit of an index if it differs from its record; return whether it did.

        Raises:
            OSError: The queue cannot be written.
        """
        level, first_offset, delay_ms = segment
        repair, queue = self._store.repair, (SCHEDULE_TOPIC, level - 1)
        if repair.compare(*queue, units[index : index + 1], first_offset):
            return True
        if repair.repaired(*queue, first_offset + index):
            return True
        return delay_ms >= 0 and self._queues.corrected(level, first_offset + index)

    def _deliver_compiled(
        self,
        segment: tuple[int, int, int],
        units: Units,
        outcome: Outcome,
        reads_max: int = READS_MAX,
    ) -> None:
        level, first_offset, delay_ms = segment
        rest = units[outcome.done :]
        try:
            file = self._store.log_file(int(rest[0]["phys_offset"]))
        except RecordUnreadable:
            return
        file_end = file.base + file.size
        if rest[-1]["phys_offset"] >= file_end:
            rest = rest[: int(np.argmax(rest["phys_offset"] >= file_end))]
        unreadable = self._store.unreadable
        seen = unreadable.seen
        if unreadable.ranges:
            rest = rest[: _leading(unreadable.mask(rest["phys_offset"], rest["size"]))]
            if not rest.size:  # `_single` reports an unreadable record
                return
        batch = self._batch
        batch.clear()
        batch.reserve(rest.size, 0)
        batch.staging = file.data  # rows point into the mapped log, so no body is copied
        source = kernels.Source(
            self._schedule,
            self._half,
            level - 1,
            int(self._store.topics.has_routes),
            first_offset,
            delay_ms,
        )
        batch.count = kernels.read_due(
            file.data,
            self._store.written_span(file),
            rest,
            self._store.topics.arrays,
            source,
            self._scratch,
            batch.rows,
        )
        if unreadable.replaced[0] != seen and unreadable.changed(
            seen
        ):  # zeros were read in place of some records
            if reads_max > 1:  # `_single` delivers the next one
                self._deliver_compiled(segment, units, outcome, reads_max - 1)
        elif batch.count:
            batch.trusted = True
            self._store.put(batch)
            outcome.record_batch(batch)


def _leading(mask: npt.NDArray[np.bool_]) -> int:
    """Return the number of leading entries that are False."""
    return int(np.argmax(mask)) if mask.any() else int(mask.size)


def target_of(
    record: Record, topics: TopicTable, level: int, *, routed: bool
) -> tuple[int, int] | NoTarget:
    """Return (topic_index, queue_id) of the queue that a schedule record is delivered to.

    Args:
        routed: Topics without any queue count as missing (they were deleted).
    """
    if record.topic != SCHEDULE_TOPIC or record.queue_id != level - 1:
        where = f"{record.topic} queue {record.queue_id}"
        return NoTarget(Reason.WRONG_RECORD, f"the record there belongs to {where}")
    return real_target(record.properties, topics, SCHEDULE_TOPIC, routed=routed)


def delivered_text(record: Record) -> bytes:
    """Return the property text of the delivered message of a schedule record.

    A record that the timers returned has its due time as last property.
    """
    text = without(record.property_text, b"__CRC32#")
    return renamed(without_last(text, b"DUEMQ_DUE_MS"), MOVED_NAME, LEVEL_NAME)


def add_delivery(batch: PutBatch, record: Record, topic_index: int, queue_id: int) -> None:
    """Add the message that is delivered for a schedule record; `read_due` is the kernel.

    Source: ScheduleMessageService.messageTimeUp
    """
    position = add_message(batch, record, topic_index, queue_id, delivered_text(record))
    clear_client_columns(batch.rows[position])
