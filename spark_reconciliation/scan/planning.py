"""Plan of a table scan: byte ranges of files, divided into independent pieces.

    files of a row  -->  Segment(file, start, end)  ...  one Spark partition each (or several small)

The log grows while it is read. A plan ends at the current end of the records (`find_log_end`), and
units that point after it are ignored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, TypeVar

import numpy as np

from message_store.kernels.scan import STOP_BLANK
from message_store.kernels.verify import find_record
from message_store.layout import SCANNED
from message_store.recovery.checkpoint import newest_marks
from message_store.verify.files import is_offset
from spark_reconciliation.arrays import Bytes, Numbers
from spark_reconciliation.kernels.columns import follow
from spark_reconciliation.scan.files import Entry, Root

PARTITION_BYTES: Final = 64 << 20
RECORD_BYTES_MAX: Final = (4 << 20) + (1 << 17)  # maxMessageSize, and what a broker adds
BLANK: Final = -1 - STOP_BLANK  # result of `follow` at a blank record
OFFSET_MAX: Final = 1 << 62
RECORDS_MAX: Final = 64  # records of a log from which its end is sought
LOG: Final = "commitlog"
MARK_FILE: Final = "config/duemq.mark"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScanSegment:
    """Part of one file.

    Attributes:
        path, base, size: File, offset of its first byte in the row of files, size in bytes.
        start, end: Positions in the file; records that begin there belong to the segment.
        limit: Log offset of the end of the plan.
        topic, queue_id: Queue, for a file of a consume queue.
    """

    root: Root
    path: str
    base: int
    size: int
    start: int
    end: int
    limit: int = OFFSET_MAX
    topic: str = ""
    queue_id: int = 0

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the values: a task may have thousands of files."""
        return ScanSegment, tuple(getattr(self, name) for name in self.__slots__)

    @classmethod
    def whole(cls, root: Root, entry: Entry, limit: int = OFFSET_MAX) -> ScanSegment:
        """Return a file as one segment."""
        name = entry.name
        base = int(name) if is_offset(name) else 0
        return cls(root, entry.path.lstrip("/"), base, entry.size, 0, entry.size, limit)

    @property
    def store(self) -> str:
        """Name of the store in rows."""
        return self.root.url

    def length(self) -> int:
        """Return the bytes of the segment."""
        return self.end - self.start

    def pieces(self, bytes_max: int) -> list[ScanSegment]:
        """Return the segment in pieces of `bytes_max`; the last one may be shorter."""
        return [
            replace(self, start=start, end=min(start + bytes_max, self.end))
            for start in range(self.start, self.end, bytes_max)
        ]

    def finding(self, offset: int, size: int, kind: str, text: str, base: int = -1) -> Finding:
        """Return a finding about bytes of the file."""
        return Finding(self.store, self.path, int(offset), int(size), kind, text, base)


@dataclass(frozen=True, slots=True)
class Finding:
    """Unreadable or malformed bytes of a file.

    Attributes:
        file, offset: Path of the file, and position in it.
        size: Number of bytes.
        base: Log offset of the file's first byte, -1 if it is not a log file.
    """

    store: str
    file: str
    offset: int
    size: int
    kind: str
    text: str
    base: int = -1


@dataclass(frozen=True)
class LogPlan:
    """Commit log at planning time.

    Attributes:
        min, end: Log offsets of the first byte and after the last record.
        last_ms: Store time of the last record, 0 without one.
        last: Log offset of the last record, -1 without one.
    """

    files: tuple[Entry, ...]
    min: int
    end: int
    findings: tuple[Finding, ...] = ()
    last_ms: int = 0
    last: int = -1

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle runs of files instead of files: a log may have 100,000."""
        state = (self.min, self.end, self.findings, self.last_ms, self.last)
        return _plan_of_runs, (_runs(self.files), *state)

    @classmethod
    def of_files(cls, files: Sequence[Entry]) -> LogPlan:
        """Return the plan of whole files, without a search for the end of the log."""
        if not files:
            return cls((), 0, 0)
        return cls(tuple(files), _base(files[0]), _base(files[-1]) + files[-1].size)

    @cached_property
    def bases(self) -> Numbers:
        """(n,) log offset of the first byte of each file."""
        return np.array([_base(entry) for entry in self.files], np.int64)

    @cached_property
    def sizes(self) -> Numbers:
        """(n,) size of each file in bytes."""
        return np.array([entry.size for entry in self.files], np.int64)

    def file_at(self, position: int) -> Entry | None:
        """Return the file with a log offset, None outside of the log."""
        if not self.min <= position < self.end:
            return None
        return self.files[bisect_right(self.files, position, key=_base) - 1]

    def read(self, root: Root, position: int, size: int) -> Bytes:
        """Return bytes of the log from an offset: fewer at the end of a file, none outside the log.

        Raises:
            OSError: The file cannot be read.
        """
        entry = self.file_at(position)
        if entry is None:
            return np.empty(0, np.uint8)
        start = position - int(entry.name)
        return root.read(entry.path, start, start + size)


def _base(entry: Entry) -> int:
    return int(entry.name)


def _runs(files: Iterable[Entry]) -> list[tuple[int, int, int]]:
    """Return base, size and number of the files of each run without a gap."""
    runs: list[tuple[int, int, int]] = []
    for entry in files:
        base, size, count = runs[-1] if runs else (0, 0, 0)
        if runs and size == entry.size and base + size * count == _base(entry):
            runs[-1] = (base, size, count + 1)
        else:
            runs.append((_base(entry), entry.size, 1))
    return runs


def _plan_of_runs(
    runs: Iterable[tuple[int, int, int]],
    low: int,
    end: int,
    findings: tuple[Finding, ...],
    last_ms: int,
    last: int,
) -> LogPlan:
    files = (
        Entry(f"{LOG}/{base + number * size:020d}", size)
        for base, size, count in runs
        for number in range(count)
    )
    return LogPlan(tuple(files), low, end, findings, last_ms, last)


def plan_until(root: Root, end: int) -> LogPlan:
    """Find the files of a commit log; its end is known.

    Raises:
        OSError: The directory cannot be read.
    """
    files, findings = row_of_files(root.url, root.files(LOG))
    return LogPlan(tuple(files), int(files[0].name) if files else 0, end, tuple(findings))


def plan_log(root: Root, *, records: Iterable[int] = ()) -> LogPlan:
    """Find the files of a commit log and its end.

    Args:
        records: Log offsets of known records: the last file is read from the newest one that is on
            the disk, if it contains it.
    Raises:
        OSError: The directory cannot be read.
    """
    store, durable = root.url, _durable(root)
    entries, findings = row_of_files(store, root.files(LOG))
    text = (
        f"according to {MARK_FILE}, {{}} more bytes were on the disk: the end of the log was lost, "
        f"or the store was copied while its broker was running"
    )
    if not entries:
        if durable:
            findings.append(Finding(store, LOG, 0, durable, "cut", text.format(durable), 0))
        return LogPlan((), 0, 0, tuple(findings))
    log_end = find_log_end(root, entries, durable, records=records)
    end, end_findings = log_end.end, list(log_end.findings)
    if end < durable and not end_findings:  # an unreadable file is a finding already
        last = [entry for entry in entries if int(entry.name) <= end][-1]
        base, missing = int(last.name), durable - end
        reason = text.format(missing)
        end_findings.append(Finding(store, last.path, end - base, missing, "cut", reason, base))
    return LogPlan(
        tuple(entries),
        int(entries[0].name),
        end,
        tuple(findings + end_findings),
        log_end.last_ms,
        log_end.last,
    )


def _durable(root: Root) -> int:
    """Return the log offset up to which DueMQ had synced the log, 0 if unknown."""
    try:
        data = root.small_file(MARK_FILE) or b""
    except OSError:
        return 0
    _, marks, _ = newest_marks(data)
    return 0 if marks is None else marks.durable


class LogEnds:
    """Search for the ends of growing logs; each begins at a record that an earlier one has found.

    A search ignores records that are not on the disk yet, so several are known.
    """

    def __init__(self) -> None:
        self._records: dict[str, deque[int]] = {}  # log offsets, by store

    def plan(self, root: Root) -> LogPlan:
        """Return the log of a store up to its present end; see `plan_log`."""
        records = self._records.setdefault(root.url, deque(maxlen=RECORDS_MAX))
        plan = plan_log(root, records=records)
        if plan.last not in records:
            records.append(plan.last)
        return plan


def row_of_files(store: str, entries: Sequence[Entry]) -> tuple[list[Entry], list[Finding]]:
    """Return the files that belong to a row, in order, and findings about the others.

    An empty last file is not a finding: a kill interrupted its creation.
    """
    kept = [e for e in entries if is_offset(e.name) and e.size]
    last = max((entry.name for entry in kept), default="~")
    findings = [
        Finding(
            store,
            e.path,
            0,
            e.size,
            "stray-file",
            "it does not belong to this row of files, and was not read",
        )
        for e in entries
        if not is_offset(e.name) or (not e.size and e.name < last)
    ]
    sizes = Counter(entry.size for entry in kept)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    before = None
    for entry in kept:
        base = int(entry.name)
        if entry.size != usual:
            text = f"it has {entry.size} bytes, its neighbours {usual}"
            findings.append(Finding(store, entry.path, entry.size, 0, "file-size", text, base))
        if before is not None and base != before + usual:
            text = f"the file before it begins at {before}: files between them are missing"
            missing = base - before - usual
            findings.append(Finding(store, entry.path, 0, missing, "missing-file", text, base))
        before = base
    return kept, findings


def files_of_row(root: Root, below: str) -> list[Entry]:
    """Return the files of a row below a directory, in order.

    Raises:
        OSError: The directory cannot be read.
    """
    return row_of_files(root.url, root.files(below))[0]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End of a log.

    Attributes:
        end: Log offset after the last record.
        last_ms, last: Store time and log offset of the last record; 0 and -1 without one.
        findings: Files that could not be read.
    """

    end: int
    last_ms: int = 0
    last: int = -1
    findings: tuple[Finding, ...] = ()


def find_log_end(
    root: Root, entries: Sequence[Entry], durable: int = 0, *, records: Iterable[int] = ()
) -> LogEnd:
    """Return the end of a log.

    The last file that begins with a record is read to its end, from a known record on. Bytes that
    are not a record end the log unless newer records follow; older records are stale, because
    Apache truncates a log without zeroing.

    Args:
        durable: Log offset that the end is not before, if records follow.
        records: Log offsets of known records; ignored after `durable`, where they may be stale.
    """
    findings: list[Finding] = []
    for entry in reversed(entries):
        base = int(entry.name)
        try:
            data = root.read(entry.path, 0, entry.size)
        except OSError as error:
            text = f"it cannot be read: {error}"
            whole = ScanSegment.whole(root, entry)
            findings.append(whole.finding(0, entry.size, "unreadable", text, base))
            continue
        data_end, inside = partial(root.data_end, entry), min(base + entry.size, durable)
        first = max((record for record in records if base < record < inside), default=base) - base
        log_end = _end_in_file(data, base, durable, data_end, first)
        if first and log_end.last < 0:
            log_end = _end_in_file(data, base, durable, data_end)
        if log_end.end > base or entry is entries[0]:
            return replace(log_end, findings=tuple(findings))
    return LogEnd(int(entries[0].name), findings=tuple(findings))


def _end_in_file(
    data: np.ndarray, base: int, durable: int, data_end: Callable[[int], int], first: int = 0
) -> LogEnd:
    row = np.zeros(1, SCANNED)
    pos, newest, last = first, 0, -1
    while True:
        stop, reason = follow(data, pos, data.size, base, row[0])
        if stop > pos:
            newest, last = int(row[0]["store_ms"]), int(row[0]["phys_offset"])
        if reason == 0 or reason == BLANK:
            stop = data.size if reason == BLANK or stop > data.size else stop
            return LogEnd(base + int(stop), newest, last)
        end = min(data_end(stop + 1) + RECORD_BYTES_MAX, data.size)
        after = find_record(data, stop + 1, end, base, row[0])
        is_older = int(row[0]["store_ms"]) < newest
        if after < 0 or (is_older and base + after >= durable):
            return LogEnd(base + int(stop), newest, last)
        pos = after


def log_segments(
    root: Root, plan: LogPlan, *, bytes_max: int, first: int = 0, end: int = OFFSET_MAX
) -> list[ScanSegment]:
    """Return segments of about `bytes_max` that cover the log from offset `first` to `end`."""
    segments: list[ScanSegment] = []
    end = min(end, plan.end)
    begin = max(bisect_right(plan.files, first, key=_base) - 1, 0)
    for entry in plan.files[begin:]:
        base, size = _base(entry), entry.size
        low, high = max(first - base, 0), min(end - base, size)
        segments += [
            ScanSegment(root, entry.path, base, size, start, min(start + bytes_max, high), plan.end)
            for start in range(low, high, bytes_max)
        ]
    return segments


def grouped(items: Iterable[T], bytes_max: int, length: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Return items in order, in groups of at most `bytes_max`, at least one each.

    Args:
        length: Returns the bytes of an item.
    """
    groups: list[tuple[T, ...]] = []
    here: list[T] = []
    size = 0
    for item in items:
        if here and size + length(item) > bytes_max:
            groups.append(tuple(here))
            here, size = [], 0
        here.append(item)
        size += length(item)
    return [*groups, tuple(here)] if here else groups
