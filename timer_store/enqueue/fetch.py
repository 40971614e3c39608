"""Stage 1: reader of the timer queue's messages as `layout.TIMED` rows in queue order.

    an appended batch   from its rows                      fetch_batch
    the queue           from units and records in the log  fetch_queue

Both return the same rows for the same messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from duemq_common.errors import RecordUnreadable
from message_store import layout as store_layout
from message_store.kernels.kernel import entry
from message_store.log.batch import PutBatch
from message_store.queues.consume_queues import is_topic_name
from message_store.store import MessageStore
from timer_store import layout
from timer_store.config import TimerConfig
from timer_store.kernels.fetch import Context, Scratch, from_put, from_records
from timer_store.layout import Offsets, Rows
from timer_store.names import TIMER_QUEUE, TIMER_TOPIC

log = logging.getLogger(__name__)
NO_BYTES = np.frombuffer(b"", np.uint8)


class Fetcher:
    """Reader of one message store's timers.

    The returned rows are in a shared buffer and valid until the next call.
    """

    def __init__(self, store: MessageStore, config: TimerConfig) -> None:
        self._store = store
        self._from_put: dict[bool, Callable[..., int]] = {}
        self._timed = np.zeros(1_024, layout.TIMED)
        self._scratch = Scratch(np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT))
        self._context = Context(store.topics.add(TIMER_TOPIC), config.precision_ms)

    def bounds(self) -> tuple[int, int]:
        """Return the first offset of the timer queue and its end."""
        first, end = self._store.queue_bounds(TIMER_TOPIC, TIMER_QUEUE)
        return int(first), int(end)

    def fetch_batch(self, batch: PutBatch) -> Rows:
        """Return the timers of a batch that was just appended."""
        self._room(batch.count)
        staging = batch.staging
        take = self._from_put.get(staging.flags.writeable) or self._find(batch)
        count = take(
            batch.rows,
            batch.count,
            staging,
            self._store.topics.arrays,
            self._context,
            self._scratch.text,
            self._timed,
        )
        if count:
            name_topics(self._store, self._timed[:count])
        return self._timed[:count]

    def _find(self, batch: PutBatch) -> Callable[..., int]:
        """Return the kernel for a batch, whose staging buffer is writable or read-only."""
        found: Callable[..., int] = entry(
            from_put,
            batch.rows,
            0,
            batch.staging,
            self._store.topics.arrays,
            self._context,
            self._scratch.text,
            self._timed,
        )
        self._from_put[batch.staging.flags.writeable] = found
        return found

    def fetch_queue(self, offset: int, count_max: int) -> tuple[Rows, int]:
        """Return the timers from a queue offset on, and the offset after them.

        Units whose record retention has removed are TIMED_BROKEN, like all records that are not
        timers.
        """
        first, end = self.bounds()
        offset = max(offset, first)
        if offset >= end:
            return self._timed[:0], offset
        units = self._store.units(TIMER_TOPIC, TIMER_QUEUE, offset, min(count_max, end - offset))
        if not units.size:
            log.error("%s: the queue has a hole at offset %d; it is skipped", TIMER_TOPIC, offset)
            return self._timed[:0], offset + 1
        self._room(units.size)
        position = 0
        while position < units.size:
            position += self.read(units[position:], offset + position, self._timed[position:])
        timed = self._timed[: units.size]
        blank = units["size"] == store_layout.PRE_BLANK_SIZE
        broken = np.flatnonzero((timed["kind"] == layout.TIMED_BROKEN) & ~blank)
        if broken.size and self._repaired(offset + broken):
            return self.fetch_queue(offset, count_max)
        name_topics(self._store, timed)
        return (timed[~blank] if blank.any() else timed), offset + units.size

    def _repaired(self, offsets: Offsets) -> bool:
        """Repair units of the queue that differ from their records; return whether any did."""
        repair = self._store.repair
        found = [repair.repaired(TIMER_TOPIC, TIMER_QUEUE, index) for index in offsets.tolist()]
        return any(found)

    def read(self, units: Rows, offset: int, timed: Rows) -> int:
        """Read the leading units with records in one log file; return their number."""
        try:
            file = self._store.log_file(int(units[0]["phys_offset"]))
            data, span = file.data, self._store.written_span(file)
            outside = (units["phys_offset"] < file.base) | (
                units["phys_offset"] >= file.base + file.size
            )
            count = int(np.argmax(outside)) if outside.any() else units.size
        except RecordUnreadable:
            data, span, count = NO_BYTES, (0, 0), 1
        from_records(
            data,
            span,
            units[:count],
            self._store.topics.arrays,
            self._context,
            offset,
            self._scratch,
            timed,
        )
        return count

    def _room(self, count: int) -> None:
        if self._timed.size < count:
            self._timed = np.zeros(max(count, self._timed.size * 2), layout.TIMED)


def name_topics(store: MessageStore, timed: Rows) -> None:
    """Add real topics to the topic table, so that they are counted.

    Args:
        timed: (n,) `layout.TIMED`; `topic_index` is set where it was -1.
    """
    unknown = timed["topic_index"] < 0
    if not unknown.any():
        return
    unknown &= timed["kind"] != layout.TIMED_BROKEN
    known: dict[int, list[tuple[int, bytes]]] = {}  # by hash: index, entry in a record
    for row_index in np.flatnonzero(unknown).tolist():
        row = timed[row_index]
        alike = known.setdefault(int(row["topic_hash"]), [])
        try:
            data = bytes(store.record_bytes(int(row["phys_offset"]), int(row["record_size"])))
            found = next((index for index, entry in alike if entry in data), -1)
            if found < 0:
                found = _add_topic(store, int(row["phys_offset"]), alike)
        except RecordUnreadable:
            continue
        row["topic_index"] = found


def _add_topic(store: MessageStore, phys_offset: int, alike: list[tuple[int, bytes]]) -> int:
    """Return the index of the real topic of a record, -1 if its name is invalid."""
    name = store.read_record(phys_offset).properties.get("REAL_TOPIC", "")
    if not is_topic_name(name):
        return -1
    alike.append((store.topics.add(name), b"REAL_TOPIC\x01%s\x02" % name.encode()))
    return alike[-1][0]
