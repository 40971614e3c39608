"""Scans of the records at some log offsets, for each large file or for many small ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Self

import numpy as np

from message_store.layout import SCANNED
from spark_reconciliation.arrays import Mask, Numbers, Rows
from spark_reconciliation.kernels.pointed import read_rows
from spark_reconciliation.scan.file_runs import RunScan, is_small
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import LogPlan, ScanSegment
from spark_reconciliation.scan.record_scan import CHUNK_RECORDS, RecordScan
from spark_reconciliation.scan.scanned_topics import ScannedTopics

SPAN_BYTES: Final = 64 << 20
"""Maximum range of the log with the small files of one scan; files without a record are not read,
and take no memory."""
Segments = tuple[ScanSegment, ...]


class PointedScan(RecordScan):
    """Reader of records at given log offsets.

    Args:
        segment: A whole file of the log.
        offsets: (n,) log offsets in it, ascending; those without a record have no rows.
    """

    def __init__(
        self, segment: ScanSegment, offsets: Numbers, topics: ScannedTopics | None = None
    ) -> None:
        super().__init__(segment, topics=topics)
        self._offsets = offsets

    def at(self, offsets: Numbers) -> Self:
        """Read the records at other offsets from now on."""
        self._offsets = offsets
        return self

    def chunks(self) -> Iterator[Rows]:
        """Yield (n,) SCANNED rows; after `open`."""
        inside = self._offsets[self._offsets < self.base + self.data.size]
        return _rows_at(self, inside)

    def could_read(self, offsets: Numbers) -> Mask:
        """Return (n,) whether the file of each log offset could be read; after `open`."""
        return np.full(offsets.size, self.data.size > 0)


class PointedRun(RunScan):
    """Reader of records at given log offsets in several small files; for one use.

    Args:
        segments: Whole files of the log, of the same size, in order.
        offsets: See `PointedScan`.
    """

    def __init__(
        self,
        segments: Sequence[ScanSegment],
        offsets: Numbers,
        topics: ScannedTopics | None = None,
    ) -> None:
        super().__init__(segments, topics=topics)
        self._offsets = offsets

    def chunks(self) -> Iterator[Rows]:
        """Yield (n,) SCANNED rows; after `open`."""
        inside = self._offsets[self._offsets < self._ends_of(self._offsets)]
        for rows in _rows_at(self, inside):
            is_whole = rows["phys_offset"] + rows["record_size"] <= self._ends_of(
                rows["phys_offset"]
            )
            yield rows if is_whole.all() else rows[is_whole]

    def could_read(self, offsets: Numbers) -> Mask:
        """Return (n,) whether the file of each log offset could be read; after `open`."""
        return self._ends_of(offsets) >= 0

    def _ends_of(self, offsets: Numbers) -> Numbers:
        """Return the log offset after the bytes of the file of each offset; -1: unreadable."""
        ends = np.full(self.data.size // self.segment.size + 1, -1, np.int64)
        for part, _, end in self._read_files:
            ends[(part.base - self.base) // part.size] = self.base + end
        return np.asarray(ends[(offsets - self.base) // self.segment.size])


def _rows_at(scan: RecordScan, offsets: Numbers) -> Iterator[Rows]:
    for low in range(0, offsets.size, CHUNK_RECORDS):
        part = offsets[low : low + CHUNK_RECORDS]
        out = np.zeros(part.size, SCANNED)
        count = read_rows(scan.data, scan.base, part, scan.topics.arrays, out)
        if count:
            yield scan.named(out[:count])


def pointed_scan(
    segments: Segments, offsets: Numbers, topics: ScannedTopics | None = None
) -> PointedScan | PointedRun:
    """Return the scan of records in one file, or in several small ones."""
    if len(segments) == 1:
        return PointedScan(segments[0], offsets, topics)
    return PointedRun(segments, offsets, topics)


def pointed_files(
    root: Root, plan: LogPlan, offsets: Numbers
) -> Iterator[tuple[Segments, Numbers]]:
    """Yield the files of the log that have some offsets, and the indexes of those in them.

    Args:
        offsets: (n,) log offsets, ascending; those outside of the log are left out.
    Yields:
        One large file, or small ones for one `PointedRun`, and (m,) ascending indexes.
    """
    bases, sizes = plan.bases, plan.sizes
    numbers = np.searchsorted(bases, offsets, "right") - 1
    inside = np.flatnonzero((numbers >= 0) & (offsets < plan.end))
    inside = inside[offsets[inside] < bases[numbers[inside]] + sizes[numbers[inside]]]
    numbers = numbers[inside]
    firsts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]])[: numbers.size])
    together: list[ScanSegment] = []
    begin = 0
    for first in firsts.tolist():
        segment = ScanSegment.whole(root, plan.files[numbers[first]], plan.end)
        if together and not _fits(together, segment):
            yield tuple(together), inside[begin:first]
            together, begin = [], first
        together.append(segment)
    if together:
        yield tuple(together), inside[begin:]


def _fits(together: Sequence[ScanSegment], segment: ScanSegment) -> bool:
    first = together[0]
    return (
        first.size == segment.size
        and is_small(first)
        and is_small(segment)
        and (segment.base - first.base) % first.size == 0  # no file is missing in part
        and segment.base + segment.size - first.base <= SPAN_BYTES
    )
