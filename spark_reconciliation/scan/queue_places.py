"""One-to-one check of records and queue units, by one sum for each queue.

    records of T/2   place(log offset, queue offset, size) ^ ...  --+
                                                                    +-- equal: each record has one
    units of T/2     place(log offset, queue offset, size) ^ ...  --+   unit, each unit one record

A place is a hash of 64 bits; the sum is their exclusive or, so it can be computed in pieces and in
any order. Queues whose sums differ are compared unit by unit (`unit_tables`): damage, and queues
that lack the units of the newest records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from message_store.layout import CQ_UNIT
from message_store.queues.apache_names import LIGHT_QUEUES
from spark_reconciliation.arrays import Rows
from spark_reconciliation.kernels.places import add_records, add_units
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import ScanSegment
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.unit_tables import queue_segments, read_units

SLOTS: Final = 1 << 12
UNIT_BYTES: Final = CQ_UNIT.itemsize
UNREADABLE: Final = "the file of a queue cannot be read"
Fields = dict[str, object]


def segments_of_queues(root: Root, limit: int) -> list[ScanSegment]:
    """Return the files of all queues whose units name their own records.

    Raises:
        OSError: A directory cannot be read.
    """
    segments, _ = queue_segments(root, limit)
    return [segment for segment in segments if not segment.topic.startswith(LIGHT_QUEUES)]


class RecordPlaces:
    """Sums of the records of one scan, by queue."""

    def __init__(self) -> None:
        self._keys, self._sums = np.full(SLOTS, -1, np.int64), np.zeros(SLOTS, np.uint64)

    def take(self, scan: RecordScan, rows: Rows) -> Iterator[Fields]:
        """Add records; yield sums once there are many queues."""
        read = 0
        while read < rows.size:
            read += add_records(rows[read:], self._keys, self._sums)
            if read < rows.size:
                yield from self.rest(scan)

    def rest(self, scan: RecordScan) -> Iterator[Fields]:
        """Yield the sums of the records added since the last ones."""
        for slot in np.flatnonzero(self._keys >= 0).tolist():
            key, total = int(self._keys[slot]), self._sums[slot]
            yield queue_sum(scan.topics.name(key >> 32), key & 0xFFFF_FFFF, total)
        self._keys.fill(-1)
        self._sums.fill(0)


def unit_places(segment: ScanSegment, first: int) -> Fields:
    """Return the sum of the units of a file, or the position from which it cannot be read.

    `file_offset` is the end of its last unit in bytes of the queue, `phys_offset` the log offset in
    that unit; null without units.

    Args:
        first: First log offset; units before it point at removed records.
    """
    total, end = np.uint64(0), Fields()
    for values in read_units("consume_queue", segment, ("damage",)):
        if values["damage"] is not None:
            return {
                "role": Role.GAP,
                "damage": values["damage"],
                "file": segment.path,
                "file_offset": 0,
                "note": UNREADABLE,
            }
        position, number, size = (values[n] for n in ("phys_offset", "queue_offset", "record_size"))
        total ^= add_units(position, number, size, first)
        if number.size:
            end["file_offset"] = (int(number[-1]) + 1) * UNIT_BYTES
            end["phys_offset"] = int(position[-1])
    return queue_sum(segment.topic, segment.queue_id, total) | {"file": segment.path} | end


def queue_sum(topic: str, queue_id: int, total: np.uint64 | np.int64) -> Fields:
    """Return the sum of records or units of a queue."""
    identity = int(total.astype(np.int64))
    return {"role": Role.QUEUE, "topic": topic, "queue_id": queue_id, "identity": identity}
