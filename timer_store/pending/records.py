"""Lookup of timer records by log offset, for recovery and decisions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from duemq_common.topics import TIMER_TOPIC
from message_store import layout as store_layout
from message_store.kernels.bytes import Bytes
from message_store.store import MessageStore
from timer_store import layout
from timer_store.enqueue.enqueue_service import name_topics
from timer_store.kernels.enqueue import Context, Scratch, from_records, units_at
from timer_store.layout import Offsets, Rows

ReadTransferred = Callable[[Offsets], tuple[Rows, Offsets]]


class RecordReader:
    """Reader of timers by the log offset of their record.

    Args:
        read_transferred: Returns the transferred level messages among records at log offsets,
            and their indexes.
    """

    def __init__(
        self, store: MessageStore, precision_ms: int, read_transferred: ReadTransferred
    ) -> None:
        self._store, self._read_transferred = store, read_transferred
        self._context = Context(store.topics.add(TIMER_TOPIC), precision_ms)
        self._scratch = Scratch(np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT))

    def read(self, offsets: Offsets) -> Rows:
        """Return (n,) `layout.TIMED`, one for each log offset, in their order.

        Records that are not timers, or were removed, are TIMED_BROKEN.
        """
        timed = np.zeros(offsets.size, layout.TIMED)
        timed["phys_offset"], timed["kind"] = offsets, layout.TIMED_BROKEN
        timed["queue_offset"] = timed["origin"] = timed["topic_index"] = -1
        for file, in_file in self._store.indexes_by_file(offsets):
            span = self._store.written_span(file)
            timed[in_file] = self._read_file(file.data, span, offsets[in_file])
        broken = np.flatnonzero(timed["kind"] == layout.TIMED_BROKEN)
        if broken.size:
            rows, position = self._read_transferred(offsets[broken])
            timed[broken[position]] = rows
        return timed

    def _read_file(self, data: Bytes, span: tuple[int, int], offsets: Offsets) -> Rows:
        units = np.zeros(offsets.size, store_layout.UNIT)
        queues = np.zeros(offsets.size, np.int64)
        units_at(data, span, offsets, self._scratch.frames, units, queues)
        timed = np.zeros(offsets.size, layout.TIMED)
        from_records(
            data, span, units, self._store.topics.arrays, self._context, -1, self._scratch, timed
        )
        timed["queue_offset"] = queues
        name_topics(self._store, timed)
        return timed
