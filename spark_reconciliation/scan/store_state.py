"""State files of a store: positions of levels and timers.

    config/delayOffset.json   units of a level's queue that were delivered or decided
    ownership journal         units that the timers own (docs/decisions/0019)
    config/timercheck         slot that the timers had reached, and their position in the queue
    timerlog                  timers that were enqueued after their own slot (`late_units`)

The files are read once when a job is planned; each worker gets the result with its part. A message
without a delivery is lost if its owner has passed its due time, otherwise pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from delayed_delivery.ownership import OWNERSHIP_QUEUE, JournalEntry, entry_of
from delayed_delivery.ownership_projection import Ownership, change_of
from duemq_common.errors import RecordUnreadable
from duemq_common.json_dialect import loads
from duemq_common.topics import OWNERSHIP_TOPIC
from message_store.layout import CHECKPOINT_BYTES, CQ_UNIT, native_columns, packer
from message_store.log.record import decode_record
from message_store.ranges import Range, is_among, minus, plus
from spark_reconciliation.arrays import Numbers
from spark_reconciliation.audit.late_units import NOTHING, find_late_units
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import Finding, LogPlan, files_of_row
from timer_store.layout import TIMER_CHECK

Flags = npt.NDArray[np.int8]
T = TypeVar("T")
AHEAD, PASSED, UNKNOWN = 0, 1, -1
UNIT_BYTES: Final = CQ_UNIT.itemsize
OFFSETS_FILE, TIMER_FILE = "config/delayOffset.json", "config/duemq.timers.json"
CHECK_FILE: Final = "config/timercheck"
TRUNCATIONS_FILE: Final = "config/duemq.truncations.json"
BAD_INPUT: Final = (OSError, ValueError, TypeError, AttributeError, LookupError)
"""Errors of reading a malformed file."""
TIME_MAX: Final = 10**18


@dataclass(frozen=True, slots=True)
class OwnedRange:
    """Range of a level's queue that the timers own.

    Attributes:
        in_checkpoint: Whether the timers' checkpoint contains it.
    """

    first: int
    end: int
    in_checkpoint: bool


@dataclass(frozen=True, slots=True)
class QueueCoverage:
    """Position up to which the queues of a store are complete.

    Attributes:
        end: Log offset before which records have units.
        until_ms: Store time until which records also have units.
    """

    end: int = 0
    until_ms: int = -1


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the levels and the timers of one store.

    Attributes:
        number: Index of the store among the paths of a job.
        levels: Queue id to the queue offsets that its level has settled; None: unknown.
        owned: Queue id to the ranges that the timers own.
        promised: Queue id to due times that its queue lacks.
        read_ms: Start of the slot that the timers had reached; None: unknown.
        enqueued_to: Queue offset up to which the timers have enqueued their queue.
        late: (n,) sorted log offsets of timers that are pending in a later slot than their own.
        log_min: First log offset.
        delays: Level to its possible delays in ms; see `level_times`.
        queue_coverage: Position up to which queues are complete; see `delivery_units`.
    """

    number: int = 0
    levels: Mapping[int, tuple[Range, ...]] | None = None
    owned: Mapping[int, tuple[OwnedRange, ...]] = field(default_factory=dict)
    promised: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    read_ms: int | None = None
    enqueued_to: int = 0
    late: Numbers = field(default_factory=NOTHING.copy)
    log_min: int = 0
    delays: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    queue_coverage: QueueCoverage = QueueCoverage()

    def of_level(
        self, queue_id: int, offsets: Numbers, due_ms: Numbers, positions: Numbers
    ) -> Flags:
        """Return AHEAD, PASSED or UNKNOWN for units of a level's queue."""
        flags = np.full(offsets.size, UNKNOWN, np.int8)
        if self.levels is not None:
            flags[:] = AHEAD
            for first, end in self.levels.get(queue_id, ()):
                flags[(offsets >= first) & (offsets < end)] = PASSED
        for owned_range in self.owned.get(queue_id, ()):
            mask = (offsets >= owned_range.first) & (offsets < owned_range.end)
            flags[mask] = UNKNOWN if self.read_ms is None else AHEAD
            if owned_range.in_checkpoint and self.read_ms is not None:
                flags[mask & (due_ms <= self.read_ms) & ~is_among(positions, self.late)] = PASSED
        return flags

    def of_timers(self, out_ms: Numbers, offsets: Numbers, positions: Numbers) -> Flags:
        """Return AHEAD, PASSED or UNKNOWN for timers, by slot, queue offset and log offset."""
        if self.read_ms is None:
            return np.full(out_ms.size, UNKNOWN, np.int8)
        passed = (out_ms < self.read_ms) & (offsets < self.enqueued_to)
        return np.asarray(passed & ~is_among(positions, self.late), np.int8)


class Attempts:
    """Reads of a store's files, with findings about unreadable ones."""

    def __init__(self, root: Root) -> None:
        self.findings: list[Finding] = []
        self._store = root.url

    def __call__(self, path: str, make: Callable[[], T]) -> T | None:
        """Return what `make` returns; None, with a finding about `path`, if it fails."""
        try:
            return make()
        except BAD_INPUT as error:
            text = f"it cannot be read: {error}"
            self.findings.append(Finding(self._store, path, 0, 0, "unreadable", text))
            return None


def read_progress(number: int, root: Root, plan: LogPlan) -> tuple[Progress, list[Finding]]:
    """Return the progress of a store, and findings about unreadable files."""
    attempt = Attempts(root)
    saved = attempt(OFFSETS_FILE, lambda: read_json(root, OFFSETS_FILE))
    enqueued_to = attempt(
        TIMER_FILE, lambda: int(read_json(root, TIMER_FILE).get("handoverOffset", 0))
    )
    check = attempt(CHECK_FILE, lambda: read_check(root))
    read_ms = None if check is None else check["read_ms"] or None
    journal = (
        attempt(f"consumequeue/{OWNERSHIP_TOPIC}", lambda: list(read_journal(root, plan))) or []
    )
    levels = attempt(OFFSETS_FILE, lambda: _levels(saved or {}, journal))
    owned, promised = _owned(journal, enqueued_to or 0)
    without_timers = Progress(number, levels, owned, promised)
    if not check or read_ms is None:
        return without_timers, attempt.findings
    try:
        late = find_late_units(root, read_ms)
    except OSError:  # `file_checks` reports it
        return without_timers, attempt.findings
    enqueued_to = min(check["queue_offset"], check["master_queue_offset"])  # as Apache reads them
    return Progress(number, levels, owned, promised, read_ms, enqueued_to, late), attempt.findings


def read_json(root: Root, path: str) -> Any:
    """Return a config file, or its backup if that is not JSON; {} without either.

    Raises:
        OSError: It cannot be read.
        ValueError: Neither of them is JSON.
    """
    reason: ValueError | None = None
    for name in (path, f"{path}.bak"):
        data = root.small_file(name)
        if data:
            try:
                return loads(data.decode("utf-8", "replace"))
            except ValueError as error:
                reason = error
    if reason is not None:
        raise reason
    return {}


def is_void(root: Root, path: str) -> bool:
    """Return whether the log was truncated to before the log offset of a file with progress.

    The next start as master derives the progress again. Errors: see `read_json`.
    """
    saved, truncations = read_json(root, path), read_json(root, TRUNCATIONS_FILE)
    generation, log_offset = saved.get("logGeneration", 0), saved.get("commitLogOffset", 0)
    later = (offset for number, offset in truncations.get("truncations", ()) if number > generation)
    return any(offset < log_offset for offset in later)


def read_check(root: Root) -> dict[str, int] | None:
    """Return the fields of the timers' checkpoint, None if there is none.

    Raises:
        OSError: It cannot be read.
        ValueError: It is malformed.
    """
    if CHECK_FILE.rpartition("/")[2] not in {entry.name for entry in root.files("config")}:
        return None
    data = root.read(CHECK_FILE, 0, CHECKPOINT_BYTES)
    if data.size < TIMER_CHECK.itemsize:
        raise ValueError(f"it has {data.size} bytes; a checkpoint has {CHECKPOINT_BYTES}")
    if not data.any() and any(entry.size for entry in root.files("timerlog")):
        raise ValueError("it has only zeros, although there is a timer log")
    values = packer(TIMER_CHECK).unpack_from(data.data)
    check = dict(zip(TIMER_CHECK.names or (), map(int, values), strict=True))
    if not 0 <= check["read_ms"] < TIME_MAX or check["log_pos"] < 0 or check["queue_offset"] < 0:
        raise ValueError(f"its read time is {check['read_ms']}, which no checkpoint has")
    return check


def _levels(saved: Any, journal: list[JournalEntry]) -> dict[int, tuple[Range, ...]] | None:
    """Return the queue offsets of delayOffset.json that levels have settled."""
    if not saved.get("offsetTable"):
        return None
    settled: dict[int, list[Range]] = {}
    for level, offset in saved["offsetTable"].items():
        settled[int(level)] = [(0, int(offset))] if int(offset) > 0 else []
    for name in ("deliveredAhead", "settledAhead"):
        for level, ranges in (saved.get(name) or {}).items():
            more = [(int(first), int(end)) for first, end in ranges]
            settled[int(level)] = plus(settled.get(int(level), []), more)
    reached = saved.get("commitLogOffset")
    for entry in journal:  # units returned after the table was written are pending again
        change = change_of(entry.record)
        if change is not None and reached is not None and entry.phys_offset >= int(reached):
            settled[change.level] = minus(settled.get(change.level, []), change.regained)
    return {level - 1: tuple(ranges) for level, ranges in settled.items()}


def _owned(
    journal: list[JournalEntry], enqueued_to: int
) -> tuple[dict[int, tuple[OwnedRange, ...]], dict[int, Mapping[int, int]]]:
    """Return the ranges that the timers own, by queue id, and the due times in the journal."""
    timers = Ownership()
    for entry in journal:
        timers.apply(entry)
    owned = {
        level - 1: tuple(
            OwnedRange(first, end, position < enqueued_to) for first, end, position in pieces
        )
        for level, pieces in timers.pieces.items()
        if pieces
    }
    return owned, {level - 1: dict(due) for level, due in timers.promised.items()}


def read_journal(root: Root, plan: LogPlan) -> Iterator[JournalEntry]:
    """Yield the retained entries of the ownership journal, in order, without damaged ones.

    Raises:
        OSError: A file cannot be read.
    """
    for entry in files_of_row(root, f"consumequeue/{OWNERSHIP_TOPIC}/{OWNERSHIP_QUEUE}"):
        units = native_columns(
            np.frombuffer(root.read(entry.path, 0, entry.size // UNIT_BYTES * UNIT_BYTES), CQ_UNIT)
        )
        for number, unit in enumerate(units):
            position, size = int(unit["phys_offset"]), int(unit["size"])
            if size <= 0:
                continue
            made = _entry(root, plan, int(entry.name) // UNIT_BYTES + number, position, size)
            if made is not None:
                yield made


def _entry(root: Root, plan: LogPlan, number: int, position: int, size: int) -> JournalEntry | None:
    data = plan.read(root, position, size)
    if not data.size:
        return None
    try:
        record = decode_record(memoryview(data.tobytes()), position)
        return entry_of(record, number)
    except (RecordUnreadable, ValueError):
        return None
