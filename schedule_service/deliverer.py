"""Deliverer of due units to their topics: by kernel, one by one, or to quarantine.

    units of one level, all due
      |  read_due kernel: as many as it can, in one batch without copying a body
      |  the one where it stopped: decoded in Python -> a message, or a quarantine record
      v
    store.put, in queue order; the first refusal (disk full) ends the batch

What is appended is delivered: every row names its origin, so a delivery is never repeated,
after any kind of end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from delivery.quarantine import (
    MESSAGE_ILLEGAL,
    NOT_WRITABLE,
    Reason,
    Undeliverable,
    put_quarantined,
)
from delivery.records import add_message, clear_client_columns, read_damaged
from delivery.redirected import (
    LEVEL_NAME,
    MOVED_NAME,
    NoTarget,
    has_routes,
    real_target,
    renamed,
    without,
    without_last,
)
from message_store import layout
from message_store.errors import RecordUnreadable
from message_store.log.batch import PutBatch
from message_store.log.record import Record, decode_record
from message_store.log.unreadable import READS_MAX
from message_store.queues.topic_table import TopicTable
from message_store.store import MessageStore
from schedule_service import kernels
from schedule_service.names import HALF_TOPIC, SCHEDULE_TOPIC

Units = npt.NDArray[Any]
PRE_BLANK_SIZE = 0x7FFFFFFF
SINGLE_STAGING_BYTES = 1 << 16


@dataclass(slots=True)
class DeliveryResult:
    """Result of delivering some units.

    Attributes:
        done: Leading units that are settled: delivered, in quarantine, or no message at all.
        delivered: (n,) i8 each: positions of those units that reached their topic.
        store_ms: (n,) i8 each: their store times.
        quarantined: Messages that went to quarantine.
        lost: Number of messages whose record retention had removed.
        refusal: Why the store refused the next unit, or empty.
        illegal: That unit cannot be delivered, and the store refused its quarantine record.
    """

    done: int = 0
    delivered: list[npt.NDArray[np.int64]] = field(default_factory=list)
    store_ms: list[npt.NDArray[np.int64]] = field(default_factory=list)
    quarantined: list[Undeliverable] = field(default_factory=list)
    lost: int = 0
    refusal: str = ""
    illegal: bool = False

    def note(self, batch: PutBatch) -> None:
        """Settle the leading rows that were appended; the first that was not is the refusal."""
        count = kernels.leading_stored(batch.rows, batch.count)
        assert count == batch.count or batch.rows[count]["status"] != MESSAGE_ILLEGAL
        if count:
            self.delivered.append(np.arange(self.done, self.done + count))
            self.store_ms.append(batch.rows[:count]["store_ms"].copy())
        self.done += count
        if count < batch.count:
            self.refusal = batch.remarks.get(count, NOT_WRITABLE)


class Due(NamedTuple):
    """One due unit."""

    level: int
    queue_offset: int
    phys_offset: int
    size: int


class Deliverer:
    """Appends deliveries to one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        topics = store.topics
        self._schedule, self._half = topics.add(SCHEDULE_TOPIC), topics.add(HALF_TOPIC)
        self._batch = PutBatch(2_048, 1)
        self._single = PutBatch(1, SINGLE_STAGING_BYTES)
        self._scratch = np.zeros(1, layout.SCANNED)

    def deliver_batch(
        self,
        level: int,
        first_offset: int,
        units: Units,
        now_ms: int,
        skip: npt.NDArray[np.bool_] | None = None,
    ) -> DeliveryResult:
        """Append due units, in order, until all are settled or the store refuses.

        Args:
            first_offset: Queue offset of units[0].
            skip: (n,) b1: units that were settled before their time; they are not delivered.
        """
        result, whole = DeliveryResult(), units
        while result.done < whole.size and not result.refusal:
            if skip is not None:
                result.done += _leading(~skip[result.done :])
                units = whole[: result.done + _leading(skip[result.done :])]
            if result.done < units.size:
                self._deliver_compiled(level, units, result)
            if result.done < units.size and not result.refusal:
                unit = units[result.done]
                offsets = first_offset + result.done, int(unit["phys_offset"])
                self._deliver_single(Due(level, *offsets, int(unit["size"])), result, now_ms)
        return result

    # -- many at once, compiled ---------------------------------------------------------------

    def _deliver_compiled(
        self, level: int, units: Units, result: DeliveryResult, reads_max: int = READS_MAX
    ) -> None:
        rest = units[result.done :]
        try:
            file = self._store.log.file_of(int(rest[0]["phys_offset"]))
        except RecordUnreadable:
            return
        file_end = file.base + file.size
        if rest[-1]["phys_offset"] >= file_end:
            rest = rest[: int(np.argmax(rest["phys_offset"] >= file_end))]
        unreadable = self._store.log.unreadable
        seen = unreadable.seen
        if unreadable.ranges:
            rest = rest[: _leading(unreadable.mask(rest["phys_offset"], rest["size"]))]
            if not rest.size:  # `_deliver_single` reports where the disk cannot read it
                return
        batch = self._batch
        batch.clear()
        batch.reserve(rest.size, 0)
        batch.staging = file.data  # rows point into the mapped log: no body is copied
        written = min(file.size, self._store.log.end - file.base)
        source = kernels.Source(self._schedule, self._half, level - 1, int(self._routed))
        batch.count = kernels.read_due(
            file.data, (file.base, written), rest, self._store.topics.arrays, source,
            self._scratch, batch.rows,
        )  # fmt: skip
        if unreadable.changed(seen):  # zeros were read in place of some records
            if reads_max > 1:  # else `_deliver_single` takes the next one
                self._deliver_compiled(level, units, result, reads_max - 1)
        elif batch.count:
            batch.trusted = True
            self._store.put(batch)
            result.note(batch)

    @property
    def _routed(self) -> bool:
        return has_routes(self._store.topics)

    # -- one, in Python -----------------------------------------------------------------------

    def _deliver_single(self, due: Due, result: DeliveryResult, now_ms: int) -> None:
        if due.size == PRE_BLANK_SIZE:
            result.done += 1
            return
        if due.phys_offset < self._store.log.min_offset:
            result.done, result.lost = result.done + 1, result.lost + 1
            return
        batch = self._single
        batch.clear()
        item = self._build(batch, due)
        if item is None:
            self._store.put(batch)
            if batch.rows[0]["status"] != MESSAGE_ILLEGAL:
                result.note(batch)
                return
            why = batch.remarks.get(0, "the store takes no such message")
            item = self._undeliverable(Reason.ILLEGAL, why, due)
        result.refusal = put_quarantined(self._store, batch, item, now_ms=now_ms)
        if result.refusal:
            result.illegal = True
        else:
            result.done += 1
            result.quarantined.append(item)

    def _build(self, batch: PutBatch, due: Due) -> Undeliverable | None:
        """Add the message to `batch`, or return why it cannot be delivered."""
        offset = due.phys_offset
        try:
            record = decode_record(self._store.record_bytes(offset, due.size), offset)
            if record.phys_offset != offset:
                raise RecordUnreadable(offset, "the record there names another position")
        except RecordUnreadable as error:
            return self._undeliverable(Reason.UNREADABLE, str(error), due)
        found = target_of(record, self._store.topics, due.level, routed=self._routed)
        if isinstance(found, NoTarget):
            return self._undeliverable(found.reason, found.detail, due)
        add_delivery(batch, record, *found)
        return None

    def _undeliverable(self, reason: Reason, detail: str, due: Due) -> Undeliverable:
        data, record = read_damaged(self._store, due.phys_offset, due.size)
        offsets = due.phys_offset, due.level, due.queue_offset
        return Undeliverable(reason, detail, *offsets, record, data)


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


def seen_text(record: Record) -> bytes:
    """Return the property text of the message that a schedule record becomes.

    A record that came back from the timers has its due time as last property.
    """
    text = without(record.property_text, b"__CRC32#")
    return renamed(without_last(text, b"DUEMQ_DUE_MS"), MOVED_NAME, LEVEL_NAME)


def add_delivery(batch: PutBatch, record: Record, topic_index: int, queue_id: int) -> None:
    """Add the message that a schedule record becomes when it is due; `read_due` is its kernel.

    Source: ScheduleMessageService.messageTimeUp
    """
    row = add_message(batch, record, topic_index, queue_id, seen_text(record))
    clear_client_columns(row)
