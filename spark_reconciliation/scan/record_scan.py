"""Record scan of one log segment, independent of the bytes before it.

    ... record | record | rec[start ........ segment ........ end]ord | record ...
                            first ->|                    last ->      | <- next

A record belongs to the segment in which it begins. The start of the first one is found as follows:

    1. Begin one maximum record size before the segment, at bytes that look like a record with its
       own log offset; follow from record to record into the segment.
    2. A chain that began inside a body ends at the end of that body, or joins the true chain
       there, because the body ends within that distance. If it ends, the search continues one byte
       later.

Only a chain of forged records through many bodies, each with its correct log offset, could defeat
this. Therefore each worker compares the end of its walk with the start that the next worker will
find: a difference is a finding ("seam"). The first segment of a file begins with a record, so
without such findings every segment is correct.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from message_store.kernels.scan import STOP_BLANK, STOP_INVALID
from message_store.kernels.verify import find_record
from message_store.layout import BLANK_RECORD, SCANNED, packer
from message_store.queues.topic_table import NAME_BYTES_MAX
from spark_reconciliation.arrays import Bytes, Rows
from spark_reconciliation.audit.clock_steps import NEXT_BYTES, WITNESSES, ClockStep, ClockSteps
from spark_reconciliation.kernels.columns import follow, name_rows, walk
from spark_reconciliation.scan.planning import BLANK, RECORD_BYTES_MAX, Finding, ScanSegment
from spark_reconciliation.scan.scanned_topics import ScannedTopics

BLANK_HEAD = packer(BLANK_RECORD)
CHUNK_RECORDS = 8_192  # the columns of a chunk fit into the processor's cache
TRIES_MAX = 256  # broken chains from adjacent bytes before the search continues after the break


class RecordScan:
    """Reader of the records of one segment; for one use.

    Args:
        topics: Table that scans of the same thread share; None: its own.
    Attributes:
        topics: Names found so far; `topic_index` of rows refers to it.
        findings: Findings about bytes that are not records.
        data, base: Bytes with the rows; data[0] is log offset `base`.
        steps: Clock steps, after all chunks were read, if `clock`.
    """

    def __init__(
        self,
        segment: ScanSegment,
        *,
        clock: bool = False,
        topics: ScannedTopics | None = None,
    ) -> None:
        self.segment = segment
        self.topics = ScannedTopics() if topics is None else topics
        self.findings: list[Finding] = []
        self.data: Bytes = np.empty(0, np.uint8)
        self.base = segment.base
        self.steps: list[ClockStep] = []
        self._clock = ClockSteps(segment) if clock else None

    def open(self) -> bool:
        """Read the bytes; return whether that succeeded."""
        part = self.segment
        low = max(part.start - RECORD_BYTES_MAX, 0)
        high = min(part.end + RECORD_BYTES_MAX, part.size, part.limit - part.base)
        try:
            self.data = part.root.read(part.path, low, high)
        except OSError as error:
            self._find(
                part.start, part.end - part.start, "unreadable", f"it cannot be read: {error}"
            )
            return False
        if self.data.size < high - low:
            missing = high - low - self.data.size
            self._find(low + self.data.size, missing, "gap", "the file ends before the log")
        self.base = part.base + low
        return True

    def chunks(self) -> Iterator[Rows]:
        """Yield (n,) SCANNED rows, each valid until the next; after `open`."""
        for rows in self._read():
            if self._clock is not None:
                self._clock.take(rows)
            yield rows
        if self._clock is not None:
            self._clock.take_after(self._next_records())
            self.steps = self._clock.steps

    def _next_records(self) -> Rows:
        """Return the first records after the segment, if they are in the same file or the next."""
        part = self.segment
        if part.end >= part.size:
            return self._first_records_after(part)
        pos = self._first(part.base + part.end - self.base)
        return self._witnesses(self.data, pos, self.base)

    def _first_records_after(self, part: ScanSegment) -> Rows:
        """Return the first records of the file after the one of a segment."""
        data, base = np.empty(0, np.uint8), part.base + part.size
        if base < part.limit:
            with suppress(OSError):  # reported by the reader of that file
                data = part.root.read(f"commitlog/{base:020d}", 0, NEXT_BYTES)
        return self._witnesses(data, 0, base)

    def _witnesses(self, data: Bytes, pos: int, base: int) -> Rows:
        out = np.zeros(WITNESSES, SCANNED)
        end = min(data.size, self.segment.limit - base)
        count, _, _ = walk(data, pos, end, base, self.topics.arrays, out)
        return out[:count]

    def _read(self) -> Iterator[Rows]:
        part, out = self.segment, np.zeros(CHUNK_RECORDS, SCANNED)
        end = min(part.base + part.end - self.base, self.data.size)
        pos = self._first(part.base + part.start - self.base)
        while pos < end:
            count, pos, stop = walk(
                self.data, pos, self.data.size, self.base, self.topics.arrays, out
            )
            inside = int(np.searchsorted(out["phys_offset"][:count], self.base + end))
            if inside:
                yield self.named(out[:inside])
            if inside < count:
                pos = int(out[inside]["phys_offset"]) - self.base
                break
            if stop == STOP_BLANK:
                return
            if stop == STOP_INVALID and pos < end:
                pos = self._skip_gap(pos, self.data.size, part)
        self._check_seam(pos, end)

    def _first(self, position: int) -> int:
        """Return the start of the first record at or after data[position], the end without one."""
        if position == 0 and self.base == self.segment.base:
            return 0
        row = np.zeros(1, SCANNED)
        low, tries = max(position - RECORD_BYTES_MAX, 0), 0
        while True:
            low = int(find_record(self.data, low, self.data.size, self.base, row[0]))
            if low < 0:
                return int(self.data.size)
            stop, reason = follow(self.data, low, position, self.base, row[0])
            if reason == 0:
                return int(stop)
            if reason == BLANK and self._fills_file(int(stop)):
                return int(self.data.size)
            tries += 1
            low = low + 1 if tries < TRIES_MAX else int(stop) + 1

    def _fills_file(self, pos: int) -> bool:
        """Return whether a blank record fills the rest of its file."""
        (size, _) = BLANK_HEAD.unpack_from(self.data.data, pos)
        return bool(self.base - self.segment.base + pos + size == self.segment.size)

    def _skip_gap(self, pos: int, end: int, part: ScanSegment) -> int:
        """Report bytes that are not a record; return the start of the next one, `end` without one.

        Args:
            end: End of the bytes of the file of `part` in `data`.
        """
        row = np.zeros(1, SCANNED)
        after = int(find_record(self.data, pos + 1, end, self.base, row[0]))
        until = after if after >= 0 else end
        where = self.base + pos - part.base
        self._find(where, until - pos, "gap", f"{until - pos} bytes are not a record", part)
        return until

    def _check_seam(self, pos: int, end: int) -> None:
        """Compare the end of this walk with the start that the next segment will find."""
        part = self.segment
        if pos < end or part.end >= min(part.size, part.limit - part.base):
            return
        own_pos, other = pos, self._first(end)
        if own_pos != other:
            text = (
                f"records from here on may be forged: {self.base + other} or {self.base + own_pos}"
            )
            self._find(part.end, abs(own_pos - other), "seam", text)

    def named(self, rows: Rows) -> Rows:
        """Return rows of `data` with the indexes of their topics; a new topic takes one pass."""
        while (unknown := rows["topic_index"] < 0).any():
            row = rows[int(np.argmax(unknown))]
            pos = int(row["phys_offset"]) - self.base + int(row["topic_pos"])
            name = self.data[pos : pos + int(row["topic_len"])].tobytes().decode("utf-8", "replace")
            row["topic_index"] = self.topics.add(_shortened(name))
            name_rows(self.data, self.base, rows, self.topics.arrays)
        return rows

    def paths_of(self, rows: Rows) -> pa.Array:
        """Return the file of each row."""
        return pa.repeat(pa.scalar(self.segment.path), rows.size)

    def positions_of(self, rows: Rows) -> pa.Array:
        """Return the position of each row in its file."""
        return pa.array(rows["phys_offset"] - self.segment.base)

    def _find(
        self, offset: int, size: int, kind: str, text: str, part: ScanSegment | None = None
    ) -> None:
        part = part or self.segment
        self.findings.append(part.finding(offset, size, kind, text, part.base))


def _shortened(name: str) -> str:
    """Return a name that fits into the topic table; invalid UTF-8 makes a name longer."""
    while len(name.encode()) > NAME_BYTES_MAX:
        name = name[:-1]
    return name
