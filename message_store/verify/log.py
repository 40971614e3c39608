"""Check of the log: every record and its CRC, and the bytes between records.

Bytes that are not a record have one of three causes:

    [records][torn or stale bytes]                    the log's end; a broker truncates there
    [records][bytes][older records that contain       stale: Apache truncates without zeroing, so
                     their own position]              old bytes appear again
    [records][bytes][newer records]                   damage: Apache's broker would truncate here
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duemq_common.existence import is_directory
from message_store import layout
from message_store.kernels import scan
from message_store.kernels import verify as kernels
from message_store.layout import RECORD_HEAD_BYTES, Rows
from message_store.log.block_sums import DIRECTORY as SUMS
from message_store.log.block_sums import changed_blocks
from message_store.log.frames import topic_bytes
from message_store.log.gaps import BRIDGE_TOPIC
from message_store.queues.topic_table import NAME_BYTES_MAX, QUEUES_MAX, TopicTable
from message_store.recovery.log_identity import LastRecord
from message_store.verify.files import OFFSET_MAX, Piece, map_files, used_bytes
from message_store.verify.report import Progress, Report

CHUNK_RECORDS = 32_768
TOPICS_MAX = 100_000
INNER_BATCH = 0x80  # flag of a record with several queue offsets: BatchConsumeQueue
PHASE = "commit log"


@dataclass(slots=True)
class QueueCount:
    """Records of one queue in the log.

    Attributes:
        records: Records since the queue offsets last began at 0 (after the topic was deleted).
        start: Log offset of the first of `records`.
    """

    records: int = 0
    start: int = 0
    last_number: int = -1


@dataclass(slots=True)
class LogSummary:
    """Results of the walk; queues and index are compared with them.

    Attributes:
        min, end: Log offsets of the first byte and after the last record.
        queues: By topic index << 32 | queue id.
        replaced_ranges: (start, end) of damaged bytes that a recovery has replaced.
        bridges: Log offsets of the records that replace such bytes, here or in the log of a master.
    """

    pieces: list[Piece]
    topics: TopicTable = field(default_factory=TopicTable)
    min: int = 0
    end: int = 0
    queues: dict[int, QueueCount] = field(default_factory=dict)
    last_store_ms: int = 0
    crashed: bool = False
    replaced_ranges: list[tuple[int, int]] = field(default_factory=list)
    bridges: list[int] = field(default_factory=list)

    def span(self, file: Piece) -> tuple[int, int]:
        """Return the log offsets of a file's first byte and after its last record."""
        return file.base, min(file.end, self.end)

    def has(self, record: LastRecord) -> bool:
        """Return whether the log has a record, or begins after it."""
        offset, crc = record
        return offset < self.min or any(
            zlib.crc32(file.data[offset - file.base :][:RECORD_HEAD_BYTES].data) == crc
            for file in self.pieces
            if file.base <= offset < self.span(file)[1]
        )

    def is_replaced(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which log offsets are in damage that a recovery has replaced."""
        inside = np.zeros(offsets.size, np.bool_)
        for start, end in self.replaced_ranges:
            inside |= (offsets >= start) & (offsets < end)
        return inside


def read_log(directory: Path, report: Report, progress: Progress, *, crashed: bool) -> LogSummary:
    """Walk the whole log and report its faults."""
    files = map_files(directory, report) if is_directory(directory) else []
    if not files:
        report.add("note", "no-log", directory, 0, "there is no commit log")
    summary = LogSummary(files, crashed=crashed)
    if files:
        summary.min = summary.end = files[0].base
        _Walk(summary, report, progress).run()
        _check_sums(directory.parent / SUMS, summary, report)
    report.figures |= {
        "log_files": len(files),
        "log_min": summary.min,
        "log_end": summary.end,
        "log_bytes": sum(int(file.data.size) for file in files),
    }
    for name in ("records", "records_damaged", "records_without_queue"):
        report.count(name, 0)
    return summary


def _check_sums(directory: Path, summary: LogSummary, report: Report) -> None:
    """Report blocks that have changed since they were written."""
    files = {file.base: file for file in summary.pieces}
    blocks = [(file.base, file.data) for file in summary.pieces]
    report.count("blocks_changed", 0)
    try:
        for base, first, after in changed_blocks(directory, blocks):
            report.count("blocks_changed", 1)
            report.add(
                "error",
                "log-block",
                files[base].path,
                first,
                f"the {after - first} bytes here are not as they were written: a record in them is "
                f"damaged, even if no other check finds it. Restore this file from a copy",
            )
    except OSError as error:
        report.add("warning", "log-block", directory, 0, f"checksums cannot be read: {error}")


class _Walk:
    """Pass over all files, with the gap whose end is not known yet."""

    def __init__(self, summary: LogSummary, report: Report, progress: Progress) -> None:
        self.summary, self.report, self.progress = summary, report, progress
        self.chunk = np.zeros(CHUNK_RECORDS, layout.SCANNED)
        self.gap: tuple[Piece, int] | None = None  # file and position where no record was found
        self.total = sum(int(file.data.size) for file in summary.pieces)

    def run(self) -> None:
        done = 0
        for file in self.summary.pieces:
            for rows in self.rows_of(file, done):
                self.count_rows(file, rows)
            done += int(file.data.size)
            if self.ended:
                break
        self.progress(PHASE, self.total, self.total)
        if self.gap is not None:
            self.report_tail(*self.gap)

    ended = False

    def rows_of(self, file: Piece, done: int) -> Iterator[Rows]:
        """Yield the records of a file; report each gap when the record after it is found."""
        size, pos = int(file.data.size), 0
        while pos < size and not self.ended:
            self.progress(PHASE, done + pos, self.total)
            if self.gap is not None:
                pos = kernels.find_record(file.data, pos, size, file.base, self.chunk[0])
                if pos < 0 or not self.close_gap(file, pos):
                    return
            count, pos, stop = scan.walk(
                file.data,
                pos,
                size,
                file.base + pos,
                self.summary.topics.arrays,
                True,
                self.chunk,
            )
            if count:
                yield self.chunk[:count]
            if stop == scan.STOP_BLANK:
                self.check_blank(file, int(pos))
                return
            if stop == scan.STOP_INVALID:
                self.gap = (file, int(pos))

    def close_gap(self, file: Piece, pos: int) -> bool:
        """Report the bytes before the record at `pos`; return whether it belongs to the log."""
        assert self.gap is not None
        first, first_pos = self.gap
        start, end = first.base + first_pos, file.base + pos
        older = int(self.chunk[0]["store_ms"]) < self.summary.last_store_ms
        if older:
            self.ended = True
            self.report.add(
                "note",
                "stale-tail",
                first.path,
                first_pos,
                f"the log ends here, at {start}; old records from {end} on were cut off before "
                f"and are not messages",
            )
        else:
            self.report.add(
                "error",
                "log-gap",
                first.path,
                first_pos,
                f"{end - start} bytes are not a record; records continue at log offset {end}. "
                f"Apache's broker would truncate the log here: restore this file from a copy first",
            )
        self.gap = None
        return not older

    def check_blank(self, file: Piece, pos: int) -> None:
        """Check the size field of a blank record; the log continues in the next file."""
        left = int(file.data.size) - pos
        size = layout.packer(layout.BLANK_RECORD).unpack_from(file.data.data, pos)[0]
        if size != left:
            text = f"the blank record has size {size}, {left} bytes are left"
            self.report.add("warning", "blank-size", file.path, pos, text)
        self.summary.end = file.end

    def report_tail(self, file: Piece, pos: int) -> None:
        """Report bytes after the last record that are not zero."""
        used = used_bytes(file.data, pos)
        if not used:
            return
        self.report.add(
            "warning" if self.summary.crashed else "note",
            "tail",
            file.path,
            pos,
            f"the log ends here, at {file.base + pos}; {used} bytes after it are not a record: an "
            f"interrupted write, or stale bytes",
        )

    def count_rows(self, file: Piece, rows: Rows) -> None:
        """Count a chunk of records and report the faults in it."""
        summary, report = self.summary, self.report
        summary.end = int(rows[-1]["phys_offset"]) + int(rows[-1]["record_size"])
        summary.last_store_ms = int(rows[-1]["store_ms"])
        report.count("records", rows.size)
        for row in rows[rows["damage"] != 0]:
            report.count("records_damaged", 1)
            where = f"record at log offset {row['phys_offset']}"
            text = f"{where}: the body does not match its CRC"
            report.add("error", "record-crc", file.path, int(row["phys_offset"]) - file.base, text)
        self.name_topics(file, rows)
        bridge = summary.topics.find(BRIDGE_TOPIC)
        summary.bridges += rows["phys_offset"][
            (bridge >= 0) & (rows["topic_index"] == bridge)
        ].tolist()
        lost = rows[~has_queue_and_offset(rows)]
        for row in lost:
            text = (
                f"record at log offset {row['phys_offset']}: there can be no queue "
                f"{row['queue_id']} with a queue offset {row['queue_offset']}"
            )
            position = int(row["phys_offset"]) - file.base
            report.add("error", "record-queue", file.path, position, text)
        queued = rows[has_unit(rows)]
        report.count("records_without_queue", rows.size - queued.size)
        count_queues(summary.queues, queued)

    def name_topics(self, file: Piece, rows: Rows) -> None:
        """Number the topics that are new; report invalid names."""
        topics = self.summary.topics
        for index in np.flatnonzero(rows["topic_index"] < 0):
            row = rows[index]
            name = topic_bytes(file.data, file.base, row)
            text = name.decode("utf-8", "replace")
            if text.encode() == name and len(name) <= NAME_BYTES_MAX and len(topics) < TOPICS_MAX:
                row["topic_index"] = topics.add(text)
            else:
                pos = int(row["phys_offset"]) - file.base + int(row["topic_pos"])
                self.report.add(
                    "error", "record-topic", file.path, pos, f"{text[:80]!r} is not a topic name"
                )


def has_unit(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which records have a consume queue unit (PREPARED and ROLLBACK have none)."""
    kind = rows["sys_flag"] & layout.SYS_TRANSACTION_MASK
    plain = ((kind == 0) | (kind == layout.SYS_COMMIT)) & (rows["sys_flag"] & INNER_BATCH == 0)
    return np.asarray(plain & (rows["topic_index"] >= 0) & has_queue_and_offset(rows))


def has_queue_and_offset(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which records have a possible queue and queue offset."""
    queue, number = rows["queue_id"], rows["queue_offset"]
    return np.asarray((queue >= 0) & (queue < QUEUES_MAX) & (number >= 0) & (number <= OFFSET_MAX))


def queue_keys(rows: Rows) -> npt.NDArray[np.int64]:
    """Return topic index << 32 | queue id of each record."""
    return np.asarray(rows["topic_index"].astype(np.int64) << 32 | rows["queue_id"])


def count_queues(queues: dict[int, QueueCount], rows: Rows) -> None:
    """Add records, in log order, to the counts of their queues."""
    keys = queue_keys(rows)
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    starts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), int(rows.size)]
    for first, end in pairwise(starts):
        if first < end:
            _count_queue(queues.setdefault(int(keys[first]), QueueCount()), rows[first:end])


def _count_queue(count: QueueCount, rows: Rows) -> None:
    numbers = rows["queue_offset"]
    again = np.flatnonzero(numbers <= np.concatenate([[count.last_number], numbers[:-1]]))
    if again.size:
        count.records = 0
        rows = rows[int(again[-1]) :]
    if not count.records:
        count.start = int(rows[0]["phys_offset"])
    count.records += int(rows.size)
    count.last_number = int(rows[-1]["queue_offset"])


def pieces_of(pieces: Sequence[Piece], offset: int) -> Piece | None:
    """Return the file that holds a log offset."""
    return next((p for p in pieces if p.base <= offset < p.end), None)
