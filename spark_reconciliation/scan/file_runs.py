"""Scans of runs of small log files: files that follow each other are read into one array.

    files   | 4 KiB | 4 KiB | 4 KiB | ...          each begins with a record
    run     |<-------- one array ---------->|      a chunk has the records of many files

Columns and batches cost the same for a chunk of ten records as for one of thousands. A chunk for
each file would make a log of 100,000 small files cost as much as one of a thousand times its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from message_store.kernels.scan import STOP_BLANK, STOP_INVALID
from message_store.layout import SCANNED
from spark_reconciliation.arrays import Rows
from spark_reconciliation.kernels.columns import walk
from spark_reconciliation.scan.planning import ScanSegment
from spark_reconciliation.scan.record_scan import CHUNK_RECORDS, RecordScan
from spark_reconciliation.scan.scanned_topics import ScannedTopics

RUN_BYTES: Final = 8 << 20
FILE_BYTES_MAX: Final = 1 << 20
"""Larger files are mapped, and scanned one by one."""


class RunScan(RecordScan):
    """Reader of the records of several small files of a log; for one use.

    Args:
        segments: Whole files of the same size, in order. Files between them may be missing; their
            records are not read.
    """

    def __init__(
        self,
        segments: Sequence[ScanSegment],
        *,
        clock: bool = False,
        topics: ScannedTopics | None = None,
    ) -> None:
        super().__init__(segments[0], clock=clock, topics=topics)
        self._segments = segments
        self._read_files: list[tuple[ScanSegment, int, int]] = []  # file, its bytes in `data`

    def open(self) -> bool:
        """Read the bytes of all files; return whether one of them could be read."""
        last = self._segments[-1]
        self.data = np.zeros(last.base + _log_bytes(last) - self.base, np.uint8)
        for part in self._segments:
            pos, size = part.base - self.base, _log_bytes(part)
            try:
                count = part.root.fill(part.path, self.data[pos : pos + size])
            except OSError as error:
                self._find(0, part.end, "unreadable", f"it cannot be read: {error}", part)
                continue
            if count < size:
                self._find(count, size - count, "gap", "the file ends before the log", part)
            self._read_files.append((part, pos, pos + count))
        return bool(self._read_files)

    def _read(self) -> Iterator[Rows]:
        out, count = np.zeros(CHUNK_RECORDS, SCANNED), 0
        for part, pos, end in self._read_files:
            while pos < end:
                arrays = self.topics.arrays
                new, pos, stop = walk(self.data, pos, end, self.base, arrays, out[count:])
                count += new
                if stop == STOP_BLANK:
                    break
                if stop == STOP_INVALID and pos < end:
                    pos = self._skip_gap(pos, end, part)
                elif count == out.size:
                    yield self.named(out)
                    count = 0
        if count:
            yield self.named(out[:count])

    def _next_records(self) -> Rows:
        return self._first_records_after(self._segments[-1])

    def paths_of(self, rows: Rows) -> pa.Array:
        """Return the file of each row."""
        folder, size = self.segment.path.rpartition("/")[0], self.segment.size
        files = (rows["phys_offset"] - self.base) // size
        numbers, inverse = np.unique(files, return_inverse=True)
        names = [f"{folder}/{self.base + number * size:020d}" for number in numbers.tolist()]
        return pa.array(names, pa.string()).take(pa.array(inverse))

    def positions_of(self, rows: Rows) -> pa.Array:
        """Return the position of each row in its file."""
        return pa.array((rows["phys_offset"] - self.base) % self.segment.size)


def scans_of(
    segments: Iterable[ScanSegment], *, clock: bool = False, topics: ScannedTopics | None = None
) -> Iterator[RecordScan]:
    """Yield the scans of segments of one log, in order: one for each run of small files."""
    for run in runs_of(segments):
        if len(run) > 1:
            yield RunScan(run, clock=clock, topics=topics)
        else:
            yield RecordScan(run[0], clock=clock, topics=topics)


def runs_of(segments: Iterable[ScanSegment]) -> Iterator[list[ScanSegment]]:
    """Yield segments in order: small whole files that follow each other together, others alone."""
    run: list[ScanSegment] = []
    for segment in segments:
        if run and not _continues(run, segment):
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def _continues(run: Sequence[ScanSegment], segment: ScanSegment) -> bool:
    first, last = run[0], run[-1]
    return (
        is_small(first)
        and is_small(segment)
        and segment.size == first.size
        and segment.base == last.base + last.size
        and segment.base + segment.size - first.base <= RUN_BYTES
        and segment.root == first.root
    )


def is_small(segment: ScanSegment) -> bool:
    """Return whether a segment is a whole small file, up to the end of the plan."""
    is_whole = segment.start == 0 and segment.end >= _log_bytes(segment)
    return is_whole and segment.size <= FILE_BYTES_MAX


def _log_bytes(segment: ScanSegment) -> int:
    """Return the bytes of a file before the end of the plan."""
    return min(segment.size, segment.limit - segment.base)
