"""Check of consume queues against the log, in both directions.

Units are compared with their records; the walk over the log has counted the records of each queue.
If the counts agree, every record has a unit, since no two units can name the same record. Otherwise
a second walk finds the records without a unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duemq_common.existence import exists, is_directory
from message_store import layout
from message_store.kernels import scan
from message_store.kernels import verify as kernels
from message_store.layout import PRE_BLANK_SIZE, UNIT_BYTES, Row, Rows
from message_store.log.frames import Chunk, read_past_damage
from message_store.queues.apache_names import ROCKSDB_FILE, ROCKSDB_TABLES
from message_store.queues.consume_queues import is_topic_name
from message_store.verify.files import Piece, is_offset, map_file, map_files, overlapping
from message_store.verify.log import LogSummary, QueueCount, has_unit, queue_keys
from message_store.verify.report import Progress, Report

BLOCK_UNITS = 65_536
HOLES_MAX = 100  # in one file; units after them are reported as missing
CANDIDATES_MAX = 1_000
NOTHING = -1
PHASE = "consume queues"
DUE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # its tags codes are times, in ms
MISSING_PHASE = "missing units"

FAULTS = {
    kernels.NO_RECORD: "there is no record at log offset {phys}",
    kernels.WRONG_SIZE: "the record at log offset {phys} is not {size} bytes long",
    kernels.WRONG_TOPIC: "the record at log offset {phys} is of another topic",
    kernels.WRONG_QUEUE: "the record at log offset {phys} is of another queue",
    kernels.WRONG_NUMBER: "the record at log offset {phys} has another queue offset",
    kernels.WRONG_CODE: "tags code {code} does not fit the record at log offset {phys}",
    kernels.ELSEWHERE: "log offset {phys} is in a file that is missing",
}
KINDS = {kernels.NO_RECORD: "unit-record", kernels.ELSEWHERE: "unit-record"}


@dataclass(slots=True)
class CheckedQueue:
    """One queue directory.

    Attributes:
        resolved: Units that name their record (a wrong tags code counts too).
        end: Queue offset after the last unit.
    """

    topic: str
    queue_id: int
    directory: Path
    pieces: list[Piece] = field(default_factory=list)
    resolved: int = 0
    end: int = 0

    @property
    def name(self) -> str:
        """Topic and queue id, as reports name it."""
        return f"{self.topic} queue {self.queue_id}"


def check_queues(
    directory: Path,
    summary: LogSummary,
    report: Report,
    progress: Progress,
    *,
    known_topics: frozenset[str],
    deleted: Mapping[str, int],
) -> None:
    """Compare all queues with the log.

    Args:
        known_topics: Topics in the broker's table; others were deleted.
        deleted: Topic to the log's end at its deletion; it may have been created again.
    """
    queues = list(find_queues(directory, report))
    for done, queue in enumerate(queues):
        progress(PHASE, done, len(queues))
        _Units(queue, summary, report, queue.topic == DUE_TOPIC).check()
    progress(PHASE, len(queues), len(queues))
    report.figures["queues"] = len(queues)
    for name in ("units", "units_expired", "units_blank", "units_behind_log", "units_missing"):
        report.count(name, 0)
    by_key = {_key(summary, queue): queue for queue in queues}
    short: dict[int, CheckedQueue] = {}
    for key, count in summary.queues.items():
        checked = by_key.get(key) or _without_files(summary, directory, key)
        if checked.resolved == count.records:
            continue
        if not checked.pieces:
            is_lost = checked.topic in known_topics and count.start >= deleted.get(checked.topic, 0)
            _report_lost_queue(report, checked, count, is_lost=is_lost)
        else:
            short[key] = checked
    if short:
        find_missing(summary, short, report, progress)


def queue_end(root: Path, log: LogSummary, topic: str, queue_id: int) -> int | None:
    """Return the queue offset after the last message of a queue, None for a queue without any.

    The files of the queue count if the log has none of its records, which retention may have
    removed.
    """
    index = log.topics.find(topic)
    count = log.queues.get(index << 32 | queue_id) if index >= 0 else None
    if count is not None:
        return count.last_number + 1
    directory = root / "consumequeue" / topic / str(queue_id)
    paths = directory.glob("*") if is_topic_name(topic) and is_directory(directory) else ()
    for path in sorted(paths, reverse=True):
        data = map_file(path) if is_offset(path.name) else np.empty(0, np.uint8)
        units = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], layout.CQ_UNIT)
        used = np.flatnonzero(units["size"] > 0)
        if used.size:
            return int(path.name) // UNIT_BYTES + int(used[-1]) + 1
    return None


def find_queues(directory: Path, report: Report) -> Iterator[CheckedQueue]:
    """Yield every `<topic>/<queueId>` directory with its files."""
    if not is_directory(directory):
        return
    config = directory.parent / "config"
    if any(exists(config / name / ROCKSDB_FILE) for name in ROCKSDB_TABLES):
        text = "RocksDB keeps these consume queues; they are not checked"
        report.add("note", "unchecked", directory, 0, text)
        return
    for path in sorted(directory.glob("*/*")):
        if not is_directory(path) or not (path.name.isascii() and path.name.isdigit()):
            report.add(
                "note", "stray-file", path, 0, "it is not a queue directory; brokers ignore it"
            )
            continue
        pieces = map_files(path, report, multiple=UNIT_BYTES)
        yield CheckedQueue(path.parent.name, int(path.name), path, pieces)


def _key(summary: LogSummary, queue: CheckedQueue) -> int:
    return summary.topics.find(queue.topic) << 32 | queue.queue_id


def _without_files(summary: LogSummary, directory: Path, key: int) -> CheckedQueue:
    topic, queue_id = summary.topics.name(key >> 32), key & 0xFFFF_FFFF
    return CheckedQueue(topic, queue_id, directory / topic / str(queue_id))


def _report_lost_queue(
    report: Report, queue: CheckedQueue, count: QueueCount, *, is_lost: bool
) -> None:
    if is_lost:
        report.count("units_missing", count.records)
        text = f"{queue.name} has {count.records} records in the log but no queue files"
        report.add("error", "queue-missing", queue.directory, 0, text, count=count.records)
    else:
        text = f"{count.records} records of {queue.name}, whose topic was deleted, are in the log"
        report.add("note", "topic-deleted", queue.directory, 0, text)


class _Units:
    """Check of one queue's units."""

    def __init__(
        self, queue: CheckedQueue, summary: LogSummary, report: Report, is_due: bool
    ) -> None:
        self.queue, self.summary, self.report = queue, summary, report
        self.topic = np.frombuffer(queue.topic.encode("utf-8", "surrogateescape"), np.uint8)
        self.is_due = int(is_due)
        self.units = np.zeros(BLOCK_UNITS, layout.UNIT)
        self.scratch = np.zeros(1, layout.SCANNED)
        self.after_end = 0
        self.last_phys = NOTHING  # log offset that the last unit with a message names
        self.blank_from = NOTHING  # queue offset of the first pre-blank after it

    def check(self) -> None:
        for file in self.queue.pieces:
            last = file is self.queue.pieces[-1]
            if not self.check_piece(file) and not last:
                text = f"units of {self.queue.name} are missing from here to the end of the file"
                self.report.add("error", "queue-hole", file.path, self.end_pos(file), text)
        if self.after_end:
            self.report_after_end()

    def end_pos(self, file: Piece) -> int:
        return max(self.queue.end * UNIT_BYTES - file.base, 0)

    def check_piece(self, file: Piece) -> bool:
        """Check the units of a file; return whether it is full."""
        count, position, holes = int(file.data.size) // UNIT_BYTES, 0, 0
        while position < count:
            size = min(BLOCK_UNITS, count - position)
            block = file.data[position * UNIT_BYTES : (position + size) * UNIT_BYTES]
            read_count = scan.read_units(block, self.units[:size])
            if read_count:
                self.check_block(file, position, self.units[:read_count])
                self.queue.end = file.base // UNIT_BYTES + position + read_count
            position += read_count
            if read_count < size:
                after = self.next_live(file, position, count)
                holes += 1
                if after < 0 or holes > HOLES_MAX:
                    return False
                self.report.add(
                    "error",
                    "queue-hole",
                    file.path,
                    position * UNIT_BYTES,
                    f"{after - position} units of {self.queue.name} from queue offset "
                    f"{file.base // UNIT_BYTES + position} on are empty, later ones are not; a "
                    f"broker would truncate the queue here",
                )
                position = after
        return True

    def next_live(self, file: Piece, position: int, count: int) -> int:
        """Return the first unit after an empty one that names its record, else -1."""
        units = np.frombuffer(file.data[: count * UNIT_BYTES], layout.CQ_UNIT)[position:]
        candidates = np.flatnonzero((units["size"] > 0) & (units["phys_offset"] >= 0))
        for index in candidates[:CANDIDATES_MAX].tolist():
            one = np.zeros(1, layout.UNIT)
            for name in ("phys_offset", "size", "tags_code"):
                one[name] = units[name][index]
            if self.codes(one, file.base // UNIT_BYTES + position + index)[0] == kernels.GOOD:
                return position + int(index)
        return -1

    def codes(self, units: Rows, number: int) -> npt.NDArray[np.uint8]:
        """Compare units with the log; return a code for each."""
        out = np.full(units.size, kernels.ELSEWHERE, np.uint8)
        low, high = int(units["phys_offset"].min()), int(units["phys_offset"].max())
        want = (self.queue.queue_id, number, self.is_due)
        for file in overlapping(self.summary.pieces, low, high):
            span = self.summary.span(file)
            kernels.check_units(units, file.data, span, self.topic, want, self.scratch, out)
        return out

    def check_block(self, file: Piece, position: int, units: Rows) -> None:
        number = file.base // UNIT_BYTES + position
        codes = self.codes(units, number)
        blank = (units["phys_offset"] == 0) & (units["size"] == PRE_BLANK_SIZE)
        expired = ~blank & (units["phys_offset"] < self.summary.min)
        after_end = ~blank & (units["phys_offset"] >= self.summary.end)
        self.after_end += int(after_end.sum())
        live = ~(blank | expired | after_end)
        good = live & ((codes == kernels.GOOD) | (codes == kernels.WRONG_CODE))
        self.queue.resolved += int(good.sum())
        self.report.count("units", int(live.sum()))
        self.report.count("units_expired", int(expired.sum()))
        self.report.count("units_blank", int(blank.sum()))
        self.report.count("units_behind_log", int(after_end.sum()))
        self.check_blanks(file, position, units, blank)
        for index in np.flatnonzero(live & (codes != kernels.GOOD)).tolist():
            self.report_unit(file, position + index, units[index], int(codes[index]))

    def check_blanks(
        self, file: Piece, position: int, units: Rows, blank: npt.NDArray[np.bool_]
    ) -> None:
        """Report pre-blanks between messages unless a recovery has moved their records away."""
        number = file.base // UNIT_BYTES + position
        explained = [*self.summary.bridges, *(low for low, _ in self.summary.replaced_ranges)]
        edges = (np.flatnonzero(np.diff(blank)) + 1).tolist()
        for first, end in pairwise([0, *edges, int(units.size)]):
            if blank[first]:
                if self.blank_from == NOTHING:
                    self.blank_from = number + first
                continue
            start = int(units[first]["phys_offset"])
            if NOTHING not in (self.blank_from, self.last_phys) and not any(
                self.last_phys < damaged < start for damaged in explained
            ):
                self.report_blanks(file, position + first, start)
            self.last_phys = int(units[end - 1]["phys_offset"])
            self.blank_from = NOTHING

    def report_blanks(self, file: Piece, position: int, start: int) -> None:
        """Report pre-blanks before the unit at `position`; its record is at log offset `start`."""
        after = file.base // UNIT_BYTES + position
        self.report.add(
            "error",
            "queue-blank",
            file.path,
            position * UNIT_BYTES,
            f"{after - self.blank_from} units of {self.queue.name} from queue offset "
            f"{self.blank_from} on are pre-blanks between messages: their records are lost, or the "
            f"record at log offset {start} has a wrong queue offset, {after}",
            count=after - self.blank_from,
        )

    def report_unit(self, file: Piece, position: int, unit: Row, code: int) -> None:
        phys, size, tags_code = int(unit["phys_offset"]), int(unit["size"]), int(unit["tags_code"])
        reason = FAULTS[code].format(phys=phys, size=size, code=tags_code)
        text = f"{self.queue.name}, queue offset {file.base // UNIT_BYTES + position}: {reason}"
        kind = KINDS.get(code, "unit-code" if code == kernels.WRONG_CODE else "unit-mismatch")
        self.report.add("error", kind, file.path, position * UNIT_BYTES, text)

    def report_after_end(self) -> None:
        """Report units past the end of the log, which a broker drops at its next start."""
        queue, crashed = self.queue, self.summary.crashed
        file = queue.pieces[-1]
        self.report.add(
            "warning" if crashed else "error",
            "unit-behind-log",
            file.path,
            self.end_pos(file),
            f"{self.after_end} units of {queue.name} before queue offset {queue.end} point after "
            f"the log's end, {self.summary.end}; the next start drops them. If the log has lost "
            f"its last files, restore them first",
            count=self.after_end,
        )


def find_missing(
    summary: LogSummary, short: dict[int, CheckedQueue], report: Report, progress: Progress
) -> None:
    """Walk the log again and report the records without a unit."""
    chunk = np.zeros(BLOCK_UNITS, layout.SCANNED)
    keys = np.array(sorted(short), np.int64)
    for done, file in enumerate(summary.pieces):
        progress(MISSING_PHASE, done, len(summary.pieces))
        base, end = summary.span(file)

        def read_chunk(position: int, file: Piece = file, end: int = end) -> Chunk:
            arrays, size = summary.topics.arrays, end - file.base
            return scan.walk(file.data, position, size, file.base + position, arrays, False, chunk)

        for count in read_past_damage(file.data, base, 0, end - base, read_chunk):
            rows = chunk[:count]
            rows = rows[has_unit(rows) & np.isin(queue_keys(rows), keys)]
            for row, key in zip(rows, queue_keys(rows).tolist(), strict=True):
                if int(row["phys_offset"]) >= summary.queues[key].start:
                    _report_if_missing(summary, short[key], row, file, report)
    progress(MISSING_PHASE, len(summary.pieces), len(summary.pieces))


def _report_if_missing(
    summary: LogSummary, queue: CheckedQueue, row: Row, file: Piece, report: Report
) -> None:
    number, phys = int(row["queue_offset"]), int(row["phys_offset"])
    if unit_offset(queue, number) == phys:
        return
    report.count("units_missing", 1)
    to_come = summary.crashed and number >= queue.end
    consequence = "the next start adds it" if to_come else "consumers never see it"
    report.add(
        "warning" if to_come else "error",
        "unit-missing",
        file.path,
        phys - file.base,
        f"the record at log offset {phys} has no unit in {queue.name} at queue offset {number}: "
        f"{consequence}",
    )


def unit_offset(queue: CheckedQueue, number: int) -> int:
    """Return the log offset of a unit, -1 if the queue has no such unit."""
    pos = number * UNIT_BYTES
    for file in queue.pieces:
        if file.base <= pos <= file.end - UNIT_BYTES:
            data = file.data[pos - file.base : pos - file.base + UNIT_BYTES]
            unit = np.frombuffer(data, layout.CQ_UNIT)[0]
            return int(unit["phys_offset"]) if unit["size"] > 0 else -1
    return -1
