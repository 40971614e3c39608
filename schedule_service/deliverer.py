"""Deliverer of due units to their topics: by kernel, one by one, or to quarantine.

    units of one level, all due
      |  read_due kernel: as many as it can, in one batch without copying a body
      |  the one it stopped at: decoded in Python -> a message, or a quarantine record
      v
    store.put, in queue order; the first refusal (disk full) ends the trip

What is appended is delivered: every row names its origin, so a delivery is never repeated, after
any kind of end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from delivery.quarantine import Reason, Undeliverable, origin_of, quarantine
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
from schedule_service import kernels
from schedule_service.names import HALF_TOPIC, SCHEDULE_TOPIC

Units = npt.NDArray[Any]
MESSAGE_ILLEGAL = 13
PRE_BLANK_SIZE = 0x7FFFFFFF
PLAIN_STAGING_BYTES = 1 << 16


class LogFile(Protocol):
    """One mapped file of the log."""

    base: int
    size: int
    data: npt.NDArray[np.uint8]


class Log(Protocol):
    """The files of the log."""

    end: int

    def file_of(self, offset: int) -> LogFile:
        """Return the file of an offset; raises RecordUnreadable."""
        ...


class Store(Protocol):
    """What the level service needs of a `MessageStore`."""

    topics: TopicTable
    log: Any

    def put(self, batch: PutBatch) -> None: ...
    def record_bytes(self, phys_offset: int, size: int) -> memoryview: ...
    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def units(self, topic: str, queue_id: int, offset: int, count_max: int) -> Units: ...


@dataclass(slots=True)
class DeliveryBatch:
    """What happened to some units.

    Attributes:
        done: leading units that are settled: delivered, in quarantine, or no message at all.
        delivered: (n,) i8: positions of those units that reached their topic.
        store_ms: (n,) i8: when.
        parked: those that went to quarantine.
        lost: those whose record retention had removed.
        refusal: why the next unit was not taken by the store, or empty.
        illegal: that unit cannot be delivered, and the store refused its quarantine record.
    """

    done: int = 0
    delivered: list[npt.NDArray[np.int64]] = field(default_factory=list)
    store_ms: list[npt.NDArray[np.int64]] = field(default_factory=list)
    parked: list[Undeliverable] = field(default_factory=list)
    lost: int = 0
    refusal: str = ""
    illegal: bool = False

    def note_delivered(self, first: int, rows: npt.NDArray[Any]) -> None:
        """Add consecutive units that were appended."""
        self.delivered.append(np.arange(first, first + rows.size))
        self.store_ms.append(rows["store_ms"].copy())


class Deliverer:
    """Appends deliveries to one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        topics = store.topics
        self._schedule, self._half = topics.add(SCHEDULE_TOPIC), topics.add(HALF_TOPIC)
        self._fast = PutBatch(2_048, 1)
        self._plain = PutBatch(1, PLAIN_STAGING_BYTES)
        self._scratch = np.zeros(1, layout.SCANNED)

    def deliver_batch(
        self,
        level: int,
        first_offset: int,
        units: Units,
        now_ms: int,
        skip: npt.NDArray[np.bool_] | None = None,
    ) -> DeliveryBatch:
        """Append due units, in order, until all are settled or the store refuses.

        Args:
            first_offset: queue offset of units[0].
            skip: (n,) b1: units that were settled before their time: passed over.
        """
        trip, whole = DeliveryBatch(), units
        while trip.done < whole.size and not trip.refusal:
            if skip is not None:
                trip.done += _leading(~skip[trip.done :])
                units = whole[: trip.done + _leading(skip[trip.done :])]
            if trip.done < units.size:
                self._deliver_fast(level, units, trip)
            if trip.done < units.size and not trip.refusal:
                at = trip.done
                self._deliver_plain(level, first_offset + at, units[at], trip, now_ms)
        return trip

    # -- the kernel's way ---------------------------------------------------------------------

    def _deliver_fast(
        self, level: int, units: Units, trip: DeliveryBatch, reads_max: int = READS_MAX
    ) -> None:
        rest = units[trip.done :]
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
            if not rest.size:  # the plain way says where the disk cannot read it
                return
        batch = self._fast
        batch.clear()
        batch.reserve(rest.size, 0)
        batch.staging = file.data  # rows point into the mapped log: no body is copied
        written = min(file.size, self._store.log.end - file.base)
        ids = np.array([self._schedule, self._half, level - 1, self._routed], np.int64)
        batch.count = kernels.read_due(
            file.data, (file.base, written), rest, self._store.topics.arrays, ids,
            self._scratch, batch.rows,
        )  # fmt: skip
        if unreadable.changed(seen):  # zeros were read in place of some records
            if reads_max > 1:  # else the plain way takes the next one
                self._deliver_fast(level, units, trip, reads_max - 1)
        elif batch.count:
            batch.trusted = True
            self._store.put(batch)
            self._note(batch, trip)

    @property
    def _routed(self) -> bool:
        return has_routes(self._store.topics)

    def _note(self, batch: PutBatch, trip: DeliveryBatch) -> None:
        """Settle the leading rows that were appended; stop at the first that was not."""
        count = kernels.leading_stored(batch.rows, batch.count)
        assert count == batch.count or batch.rows[count]["status"] != MESSAGE_ILLEGAL
        if count:
            trip.note_delivered(trip.done, batch.rows[:count])
        trip.done += count
        if count < batch.count:
            trip.refusal = batch.remarks.get(count, "the store is not writable")

    # -- the plain way ------------------------------------------------------------------------

    def _deliver_plain(
        self, level: int, offset: int, unit: Any, trip: DeliveryBatch, now_ms: int
    ) -> None:
        phys_offset, size = int(unit["phys_offset"]), int(unit["size"])
        if size == PRE_BLANK_SIZE:
            trip.done += 1
            return
        if phys_offset < self._store.log.min_offset:
            trip.done, trip.lost = trip.done + 1, trip.lost + 1
            return
        batch = self._plain
        batch.clear()
        item = self._build(batch, level, offset, phys_offset, size)
        if item is None:
            self._store.put(batch)
            if batch.rows[0]["status"] != MESSAGE_ILLEGAL:
                self._note(batch, trip)
                return
            why = batch.remarks.get(0, "the store takes no such message")
            item = self._undeliverable(Reason.ILLEGAL, why, level, offset, phys_offset, size)
        self._park(item, trip, now_ms)

    def _build(
        self, batch: PutBatch, level: int, offset: int, phys_offset: int, size: int
    ) -> Undeliverable | None:
        """Add the message to `batch`, or return why it cannot be delivered."""
        try:
            record = decode_record(self._store.record_bytes(phys_offset, size), phys_offset)
            if record.phys_offset != phys_offset:
                raise RecordUnreadable(phys_offset, "the record there names another position")
        except RecordUnreadable as error:
            return self._undeliverable(
                Reason.UNREADABLE, str(error), level, offset, phys_offset, size
            )
        found = target_of(record, self._store.topics, level, routed=self._routed)
        if isinstance(found, tuple):
            add_delivery(batch, record, *found)
            return None
        reason, detail = found.reason, found.detail
        return self._undeliverable(reason, detail, level, offset, phys_offset, size)

    def _undeliverable(
        self, reason: Reason, detail: str, level: int, offset: int, phys_offset: int, size: int
    ) -> Undeliverable:
        data, record = b"", None  # zeros stay in it where the disk cannot read
        try:
            data = self._store.log.view(phys_offset, size).tobytes()
            record = decode_record(memoryview(data), phys_offset, check_crc=False)
        except RecordUnreadable:
            pass
        return Undeliverable(reason, detail, phys_offset, level, offset, record, data)

    def _park(self, item: Undeliverable, trip: DeliveryBatch, now_ms: int) -> None:
        for data in (item.data, b""):  # without its bytes if even the quarantine is too small
            batch = self._plain
            batch.clear()
            batch.trusted = True
            quarantine(batch, self._store.topics, item.with_data(data), now_ms=now_ms)
            self._store.put(batch)
            if batch.rows[0]["status"] != MESSAGE_ILLEGAL:
                break
        if batch.rows[0]["status"]:
            trip.refusal = batch.remarks.get(0, "the store is not writable")
            trip.illegal = True
            return
        trip.done += 1
        trip.parked.append(item)


def _leading(mask: npt.NDArray[np.bool_]) -> int:
    """Return how many leading entries are False."""
    return int(np.argmax(mask)) if mask.any() else int(mask.size)


def target_of(
    record: Record, topics: TopicTable, level: int, *, routed: bool
) -> tuple[int, int] | NoTarget:
    """Return (topic_index, queue_id) that a schedule record is to be delivered to.

    Args:
        routed: topics without any queue count as missing (they were deleted).
    """
    if record.topic != SCHEDULE_TOPIC or record.queue_id != level - 1:
        where = f"{record.topic} queue {record.queue_id}"
        return NoTarget(Reason.WRONG_RECORD, f"the record there belongs to {where}")
    return real_target(record.properties, topics, SCHEDULE_TOPIC, routed=routed)


def seen_text(record: Record) -> bytes:
    """Return the property text that a consumer is to see of a schedule record.

    One that came back from the timers says its due time behind all.
    """
    text = without(record.property_text, b"__CRC32#")
    return renamed(without_last(text, b"DUEMQ_DUE_MS"), MOVED_NAME, LEVEL_NAME)


def add_delivery(batch: PutBatch, record: Record, topic_index: int, queue_id: int) -> None:
    """Add the message that a schedule record becomes when it is due. The kernel's readable twin.

    Source: ScheduleMessageService.messageTimeUp
    """
    at = batch.add(
        topic_index=topic_index,
        queue_id=queue_id,
        body=record.body,
        properties=seen_text(record),
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=record.store_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
        prepared_offset=origin_of(record.phys_offset),
    )
    batch.trusted = True
    for column in ("delay_level", "timer_kind", "timer_value", "prop_flags", "uniq_len"):
        batch.rows[at][column] = 0
