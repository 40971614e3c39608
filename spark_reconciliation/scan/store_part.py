"""Part of a store that an incremental audit reads: new bytes, and some earlier records.

    log          ... | x . . x | . x . . | new ........ |      x: read again, at its log offset
    queues       ......................... | new units  |
    timer log    pending units point at records: only new units are compared with them

An earlier audit has read the rest and counted its messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from message_store.layout import CQ_UNIT
from spark_reconciliation.arrays import Mask, Numbers
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import LogPlan, ScanSegment
from spark_reconciliation.scan.pointed_scan import Segments, pointed_files

NOTHING: Final = np.empty(0, np.int64)
UNIT_BYTES: Final = CQ_UNIT.itemsize
QueueKey = tuple[str, int]
"""Topic and queue id."""


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """Queue as an earlier audit has read it.

    Attributes:
        sum: Exclusive or of the places of its records and units, see `queue_places`.
        units: Queue offset after the last unit.
        last: Log offset in the last unit; -1 without units.
        compared: Queue offset up to which units were found to agree with their records.
    """

    topic: str
    queue_id: int
    sum: int = 0
    units: int = 0
    last: int = -1
    compared: int = 0


@dataclass(frozen=True, slots=True)
class StorePart:
    """Part of a store.

    Attributes:
        start: Log offset from which all records are read.
        records: (n,) ascending log offsets of earlier records that are read again.
        inspected: Log offsets in pieces of the log that are searched for damage and clock steps,
            ascending.
        queues: Queues as they were read.
        timer_pos: Position in the timer log before which units agreed with records before `start`.
        counted: (n,) ascending log offsets of removed records whose messages are counted already.
    """

    start: int = 0
    records: Numbers = field(default_factory=NOTHING.copy)
    inspected: tuple[int, ...] = ()
    queues: Mapping[QueueKey, KnownQueue] = field(default_factory=dict)
    timer_pos: int = 0
    counted: Numbers = field(default_factory=NOTHING.copy)

    def is_inspected(self, segment: ScanSegment) -> bool:
        """Return whether a piece of the log is searched for damage and clock steps: also the one
        before `start`, whose last record may have had none after it.
        """
        first, end = segment.base + segment.start, segment.base + segment.end
        if end >= self.start:
            return True
        index = bisect_left(self.inspected, first)
        return index < len(self.inspected) and self.inspected[index] <= end

    def pointed(self, root: Root, plan: LogPlan) -> Iterator[tuple[Segments, Numbers]]:
        """Yield log files with earlier records that are read again, and their log offsets."""
        for segments, indexes in pointed_files(root, plan, self.records):
            yield segments, self.records[indexes]

    def new_units(self, root: Root, segments: Sequence[ScanSegment]) -> list[ScanSegment]:
        """Return the parts of the files of queues with units that were not read; of each queue
        with files the last one, at least.
        """
        return self._after(root, segments, "units")

    def units_to_compare(self, root: Root, segments: Sequence[ScanSegment]) -> list[ScanSegment]:
        """Return the parts of the files of queues whose units were not compared with records."""
        return self._after(root, segments, "compared")

    def _after(self, root: Root, segments: Sequence[ScanSegment], name: str) -> list[ScanSegment]:
        by_queue: dict[QueueKey, list[ScanSegment]] = {}
        for segment in segments:
            by_queue.setdefault((segment.topic, segment.queue_id), []).append(segment)
        parts: list[ScanSegment] = []
        for key, files in by_queue.items():
            former = self.queues.get(key)
            if former is None or is_renumbered(former, root, files):
                parts += files
                continue
            start = getattr(former, name) * UNIT_BYTES
            left = [one for one in files if one.base + one.end > start] or files[-1:]
            parts += [
                replace(one, start=min(max(start - one.base, one.start), one.end)) for one in left
            ]
        return parts

    def is_counted(self, offsets: Numbers) -> Mask:
        """Return (n,) whether the message of each removed record is counted already."""
        if not self.counted.size:
            return np.zeros(offsets.size, np.bool_)
        positions = np.minimum(np.searchsorted(self.counted, offsets), self.counted.size - 1)
        return np.asarray(self.counted[positions] == offsets)


def is_renumbered(former: KnownQueue, root: Root, files: Sequence[ScanSegment]) -> bool:
    """Return whether a queue was created again: its units are others than those that were read.

    Args:
        files: Its files, in order.
    """
    last = (former.units - 1) * UNIT_BYTES
    if last < 0 or not files:
        return False
    segment = next((one for one in reversed(files) if one.base <= last), None)
    if segment is None:  # retention has removed these units
        return False
    start = last - segment.base
    data = root.read(segment.path, start, start + UNIT_BYTES)
    units = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], CQ_UNIT)
    return not units.size or int(units[0]["phys_offset"]) != former.last
