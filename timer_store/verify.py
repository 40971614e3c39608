"""Verification of the timer store, read-only; part of `duemq store verify`.

    timerlog             every unit, and the records of pending units
    timerwheel           every slot that is not delivered: its chain of units, its count
    timercheck           its numbers are possible and match the logs
    duemq.timers.json    its checksum, it matches timercheck, its counts match the slots
    timermetrics         it is readable, or its backup is

DueMQ rebuilds these files from the commit log if necessary, but an Apache broker does not start, or
delivers wrong messages. Therefore a fault is an error; after an unclean stop it is a warning if the
next start repairs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from duemq_common import config_sums
from duemq_common.existence import exists, is_directory
from duemq_common.json_dialect import backup_path, loads
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.kernels import verify as store_kernels
from message_store.layout import MAGIC_BLANK, SCANNED, UNIT
from message_store.recovery.truncations import Truncations
from message_store.verify import LogSummary, Part, Progress, Report
from message_store.verify.files import (
    Piece,
    data_parts,
    map_file,
    map_files,
    overlapping,
    used_bytes,
)
from timer_store import layout
from timer_store.checkpoint.snapshot import (
    CHECK_FILE,
    SNAPSHOT_FILE,
    Check,
    SavedSnapshot,
    decode_check,
    decode_saved,
)
from timer_store.checkpoint.timer_metrics import METRICS_FILE
from timer_store.config import PRECISIONS_MS
from timer_store.dequeue.unit_check import is_due_with_record
from timer_store.kernels import chain
from timer_store.kernels import wheel as kernels
from timer_store.kernels.enqueue import Context, Scratch, from_records
from timer_store.layout import BLANK, TIMER_BLANK, UNIT_BYTES, Row, Rows
from timer_store.log.chain_check import FAULT_TEXTS, check_slots

BLOCK_UNITS: Final = 65_536
LIST_SLOTS: Final = 4_096
PHASE: Final = "timers"
RECORD_FAULT_TEXTS: Final = {
    store_kernels.NO_RECORD: "there is no record at log offset {phys}",
    store_kernels.WRONG_SIZE: "the record at log offset {phys} is not {size} bytes long",
    store_kernels.WRONG_TOPIC: "the record at log offset {phys} is not a timer",
    store_kernels.ELSEWHERE: "log offset {phys} is in a file that is missing",
}


@dataclass(slots=True)
class TimerSummary:
    """Findings so far.

    Attributes:
        log_end: Position after the last unit of the timer log.
        read_ms: Start of the first slot that is not completely delivered; 0: unknown.
        bad: Severity of faults that a start after a crash repairs.
    """

    root: Path
    log: LogSummary
    report: Report
    bad: Literal["error", "warning"]
    saved: SavedSnapshot | None = None
    check: Check | None = None
    pieces: list[Piece] = field(default_factory=list)
    log_end: int = 0
    read_ms: int = 0
    precision_ms: int = PRECISIONS_MS[0]

    @property
    def ours(self) -> SavedSnapshot | None:
        """DueMQ's checkpoint, None if an Apache broker wrote the files."""
        return self.saved if self.saved is not None and self.saved.belongs(self.check) else None


def check_timers(root: Path, log: LogSummary, report: Report, progress: Progress) -> None:
    """Add the faults of a store's timers to a report."""
    config = root / "config"
    files = [root / "timerlog", root / "timerwheel", config / CHECK_FILE, config / SNAPSHOT_FILE]
    if not any(exists(path) for path in files):
        return
    summary = TimerSummary(root, log, report, "warning" if log.crashed else "error")
    summary.saved = _check_saved(config / SNAPSHOT_FILE, summary)
    summary.check = _check_check(config / CHECK_FILE, summary)
    _check_metrics(config / METRICS_FILE, summary)
    if _is_truncated(summary):
        text = "the commit log was truncated since: the next start enqueues the timers again"
        report.add("warning", "timer-snapshot", config / SNAPSHOT_FILE, 0, text)
        return
    if summary.ours is not None:
        summary.read_ms = summary.ours.snapshot.read_ms
        summary.precision_ms = summary.ours.snapshot.precision_ms
    elif summary.check is not None:
        summary.read_ms = summary.check.read_ms
    _TimerLogCheck(summary, progress).run()
    _WheelCheck(summary).run()
    _check_positions(config, summary)


def _is_truncated(summary: TimerSummary) -> bool:
    """Return whether the log was truncated to before the checkpoint's log offset.

    Then the store is that of a former master, and its timer units need not be valid.
    """
    if summary.saved is None:
        return False
    snapshot = summary.saved.snapshot
    return snapshot.log_offset > Truncations.load(summary.root).floor(snapshot.generation)


TIMERS = Part(("timerlog", "timerwheel"), check_timers)


# -- the small files ----------------------------------------------------------------------------


def _check_saved(path: Path, summary: TimerSummary) -> SavedSnapshot | None:
    saved, reason = _read_saved(path)
    if saved is not None or not exists(path):
        return saved
    backup, _ = _read_saved(backup_path(path))
    if backup is not None:
        text = f"{reason}; {backup_path(path).name} is good and is used instead"
        summary.report.add("warning", "timer-snapshot", path, 0, text)
    else:
        text = f"{reason}; the next start rebuilds the timer store from the commit log"
        summary.report.add("error", "timer-snapshot", path, 0, text)
    return backup


def _read_saved(path: Path) -> tuple[SavedSnapshot | None, str]:
    try:
        return decode_saved(loads(path.read_text("utf-8", "replace"))), ""
    except FileNotFoundError:
        return None, "it is missing"
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        return None, f"it cannot be used: {error}"


def _check_check(path: Path, summary: TimerSummary) -> Check | None:
    if not exists(path):
        text = "it is missing: Apache's broker would deliver timers again"
        summary.report.add(summary.bad, "timer-check", path, 0, text)
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        text = f"it cannot be read: {error}: Apache's broker does not start"
        summary.report.add("error", "timer-check", path, 0, text)
        return None
    damaged = config_sums.is_damaged(path, data)
    check = None if damaged else decode_check(data)
    if check is None:
        reason = config_sums.DAMAGED if damaged else f"its {len(data)} bytes are invalid"
        text = f"{reason}: Apache's broker would deliver timers again"
        summary.report.add("error", "timer-check", path, 0, text)
        return None
    if summary.saved is not None and not summary.saved.belongs(check):
        text = f"another broker wrote it after {SNAPSHOT_FILE}; the next start adopts its files"
        summary.report.add("note", "timer-check", path, 0, text)
    return check


def _check_metrics(path: Path, summary: TimerSummary) -> None:
    reason = _unreadable(path)
    if not reason:
        return
    why_backup = _unreadable(backup_path(path))
    if not why_backup:
        text = f"{reason}; {backup_path(path).name} is good and is used instead"
        summary.report.add("warning", "timer-metrics", path, 0, text)
    elif exists(path) or exists(backup_path(path)):
        text = f"{reason}; {backup_path(path).name}: {why_backup}: Apache's broker does not start"
        summary.report.add("error", "timer-metrics", path, 0, text)


def _unreadable(path: Path) -> str:
    try:
        value = loads(config_sums.checked(path, path.read_bytes()).decode("utf-8"))
    except FileNotFoundError:
        return "it is missing"
    except (OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    counts = value.get("timingCount") if isinstance(value, dict) else None
    return "" if isinstance(counts, dict) else "it has no object 'timingCount'"


def _check_positions(config: Path, summary: TimerSummary) -> None:
    """Compare the positions of the checkpoint with the ends of the logs."""
    check, report = summary.check, summary.report
    if check is None:
        return
    path = config / CHECK_FILE
    if check.log_pos > summary.log_end:
        text = f"its timer log position is {check.log_pos}, the units end at {summary.log_end}"
        report.add("error", "timer-check", path, 8, text)
    key = summary.log.topics.find(TIMER_TOPIC) << 32
    count = summary.log.queues.get(key) if key >= 0 else None
    if count is not None and check.queue_offset > count.last_number + 1:
        text = (
            f"its queue offset is {check.queue_offset}, the commit log has timers up to "
            f"{count.last_number + 1}"
        )
        report.add(summary.bad, "timer-check", path, 16, text)
    ours = summary.ours
    if ours is not None and ours.snapshot.log_offset > summary.log.end:
        offset, end = ours.snapshot.log_offset, summary.log.end
        text = f"its commit log offset is {offset}, the log ends at {end}"
        report.add(summary.bad, "timer-snapshot", config / SNAPSHOT_FILE, 0, text)


# -- timer log ----------------------------------------------------------------------------------


class _TimerLogCheck:
    """One pass over the units."""

    def __init__(self, summary: TimerSummary, progress: Progress) -> None:
        self.summary, self.report, self.progress = summary, summary.report, progress
        self.units = np.zeros(BLOCK_UNITS, layout.LOGGED)
        self.scratch = np.zeros(1, SCANNED)
        self.ended = False

    def run(self) -> None:
        summary, directory = self.summary, self.summary.root / "timerlog"
        summary.pieces = map_files(directory, self.report) if is_directory(directory) else []
        summary.log_end = summary.pieces[0].base if summary.pieces else 0
        self.report.count("timer_units", 0)
        for done, file in enumerate(summary.pieces):
            self.progress(PHASE, done, len(summary.pieces) + 1)
            if not self.ended:
                self.check_piece(file)
        self.progress(PHASE, len(summary.pieces), len(summary.pieces) + 1)

    @property
    def known_end(self) -> int:
        """End of the timer log at the last checkpoint."""
        summary = self.summary
        check = summary.ours.snapshot.check if summary.ours is not None else summary.check
        return 0 if check is None else check.log_pos

    def check_piece(self, file: Piece) -> None:
        size = int(file.data.size)
        limit = max(size - TIMER_BLANK.itemsize, 0) // UNIT_BYTES * UNIT_BYTES
        start = 0
        while start < limit:
            pos = file.base + start
            unit_count = int(
                chain.read_units(file.data, file.base, pos, file.base + limit, self.units)
            )
            self.take(file, self.units[:unit_count])
            start += unit_count * UNIT_BYTES
            if unit_count == BLOCK_UNITS or start == limit:
                continue
            after = self.next_unit(file, start, limit)
            if after < 0 or file.base + start >= self.known_end:
                self.end_in(file, start)
                return
            text = (
                f"{(after - start) // UNIT_BYTES} units cannot be read; the next unit is at {after}"
            )
            self.report.add("error", "timer-unit", file.path, start, text)
            start = after
        self.summary.log_end = file.base + limit
        self.check_blank(file, limit)

    def next_unit(self, file: Piece, position: int, limit: int) -> int:
        """Return the position of the next unit in a file, -1 without one."""
        unit_position = int(chain.next_unit(file.data, file.base, position, limit))
        return unit_position if unit_position < limit else -1

    def end_in(self, file: Piece, position: int) -> None:
        """Report the rest of the file in which the log ends."""
        self.ended = True
        self.summary.log_end = file.base + position
        used = used_bytes(file.data, position)
        if file is not self.summary.pieces[-1] and file.base + position < self.known_end:
            text = "the units end here, but there are later files: units are missing"
            self.report.add("error", "timer-log-gap", file.path, position, text)
        elif used:
            text = f"the timer log ends here; the {used} bytes after it are not units"
            self.report.add("note", "timer-log-tail", file.path, position, text)

    def check_blank(self, file: Piece, position: int) -> None:
        left = int(file.data.size) - position
        if left < TIMER_BLANK.itemsize:
            return
        blank = BLANK.unpack_from(file.data.data, position)
        later = file is not self.summary.pieces[-1]
        if blank != (left, 0, MAGIC_BLANK) and (later or any(blank)):
            text = "there should be a blank record that closes the file"
            self.report.add("error", "timer-blank", file.path, position, text)

    # -- pending units ----

    def take(self, file: Piece, units: Rows) -> None:
        """Count units; compare pending ones with their records."""
        summary = self.summary
        self.report.count("timer_units", int(units.size))
        precision_ms = summary.precision_ms
        pending = (units["due_ms"] >= 0) & (
            units["slot_ms"] // precision_ms * precision_ms >= (summary.read_ms)
        )
        units = units[pending]
        if not units.size:
            return
        after_end = units["phys_offset"] >= summary.log.end
        codes = self.codes(units)
        self.compare_times(file, units[codes == store_kernels.GOOD])
        wrong = (codes != store_kernels.GOOD) & (units["phys_offset"] >= summary.log.min)
        gone = units["phys_offset"] < summary.log.min
        for index in np.flatnonzero(after_end | gone | wrong).tolist():
            self.report_unit(file, units[index], int(codes[index]), bool(after_end[index]))

    def compare_times(self, file: Piece, units: Rows) -> None:
        """Compare due times and topics of units with those of their records."""
        summary = self.summary
        context = Context(summary.log.topics.find(TIMER_TOPIC), summary.precision_ms)
        scratch = Scratch(self.scratch, np.zeros(1, layout.TIMER_TEXT))
        queue_units, timed = np.zeros(units.size, UNIT), np.zeros(units.size, layout.TIMED)
        queue_units["phys_offset"], queue_units["size"] = units["phys_offset"], units["record_size"]
        is_timed = np.zeros(units.size, np.bool_)
        for log_piece in summary.log.pieces:
            span = summary.log.span(log_piece)
            inside = (queue_units["phys_offset"] >= span[0]) & (
                queue_units["phys_offset"] < span[1]
            )
            if inside.any():
                rows = np.zeros(int(inside.sum()), layout.TIMED)
                from_records(
                    log_piece.data,
                    (span[0], span[1] - span[0]),
                    queue_units[inside],
                    summary.log.topics.arrays,
                    context,
                    -1,
                    scratch,
                    rows,
                )
                timed[inside], is_timed[inside] = rows, rows["kind"] != layout.TIMED_BROKEN
        due = np.where(units["due_ms"] > 0, units["due_ms"], timed["due_ms"])  # Apache's: 0
        late = is_timed & ~is_due_with_record(due, timed["due_ms"], summary.precision_ms)
        other_topic = is_timed & (units["topic_hash"] != timed["topic_hash"])
        for index in np.flatnonzero(late | other_topic).tolist():
            unit, row = units[index], timed[index]
            fault = f"is due at {int(row['due_ms'])}, its unit at {int(unit['due_ms'])}"
            text = f"the record of a pending timer {fault if late[index] else 'has another topic'}"
            self.report.add(
                "error", "timer-unit-time", file.path, int(unit["pos"]) - file.base, text
            )

    def codes(self, units: Rows) -> npt.NDArray[np.uint8]:
        """Return the code of each unit's record in the commit log, without queue and tags code."""
        queue_units = np.zeros(units.size, UNIT)
        queue_units["phys_offset"], queue_units["size"] = units["phys_offset"], units["record_size"]
        out = self._codes_in(queue_units, TIMER_TOPIC)
        foreign = out == store_kernels.WRONG_TOPIC
        if foreign.any():  # records of transferred messages are in the schedule topic
            out[foreign] = self._codes_in(queue_units[foreign], SCHEDULE_TOPIC)
        later = (store_kernels.WRONG_QUEUE, store_kernels.WRONG_NUMBER, store_kernels.WRONG_CODE)
        out[np.isin(out, later)] = store_kernels.GOOD
        return out

    def _codes_in(self, queue_units: Rows, topic: str) -> npt.NDArray[np.uint8]:
        name = np.frombuffer(topic.encode(), np.uint8)
        out = np.full(queue_units.size, store_kernels.ELSEWHERE, np.uint8)
        low, high = int(queue_units["phys_offset"].min()), int(queue_units["phys_offset"].max())
        for file in overlapping(self.summary.log.pieces, low, high):
            span = self.summary.log.span(file)
            store_kernels.check_units(
                queue_units, file.data, span, name, (0, 0, 0), self.scratch, out
            )
        return out

    def report_unit(self, file: Piece, unit: Row, code: int, after_end: bool) -> None:
        phys, size = int(unit["phys_offset"]), int(unit["record_size"])
        log = self.summary.log
        if after_end:
            reason = f"log offset {phys} is after the commit log's end, {log.end}"
        elif phys < log.min:
            reason = f"log offset {phys} is before the commit log's first, {log.min}: it is lost"
        else:
            reason = RECORD_FAULT_TEXTS[code].format(phys=phys, size=size)
        position = int(unit["pos"]) - file.base
        severity = self.summary.bad if after_end else "error"
        self.report.add(
            severity, "timer-unit-record", file.path, position, f"a timer is pending, but {reason}"
        )


# -- wheel --------------------------------------------------------------------------------------


class _WheelCheck:
    """One pass over the slots that are not delivered."""

    def __init__(self, summary: TimerSummary) -> None:
        self.summary, self.report = summary, summary.report
        self.path = summary.root / "timerwheel"
        self.counted = self.pending = 0

    def run(self) -> None:
        self.report.count("timers_pending", 0)
        if not exists(self.path):
            if self.summary.pieces:
                self.report.add("error", "timer-wheel", self.path, 0, "it is missing")
            return
        data = map_file(self.path)
        if data.size != layout.WHEEL_BYTES:
            text = f"it has {data.size} bytes; a wheel has {layout.WHEEL_BYTES}"
            self.report.add("error", "timer-wheel", self.path, 0, text)
            return
        slots = np.frombuffer(data, layout.TIMER_SLOT)
        self.find_precision(slots)
        self.check_slots(data)
        self.report.count("timers_pending", self.pending)
        ours = self.summary.ours
        if ours is not None and self.counted < (total := sum(ours.snapshot.by_topic.values())):
            text = f"{SNAPSHOT_FILE} counts {total} pending timers, its slots {self.counted}"
            self.report.add(self.summary.bad, "timer-count", self.path, 0, text)

    def find_precision(self, slots: Rows) -> None:
        """Derive the slot width of an Apache store, which its files do not contain."""
        summary = self.summary
        if summary.ours is not None or not summary.pieces:
            return
        file = summary.pieces[0]
        units = np.zeros(BLOCK_UNITS, layout.LOGGED)
        end = min(summary.log_end, file.end)
        units = units[: chain.read_units(file.data, file.base, file.base, end, units)]
        hits = {}
        for precision_ms in PRECISIONS_MS:
            ticks = units["slot_ms"] // precision_ms
            hits[precision_ms] = int((slots["tick"][ticks % layout.WHEEL_SLOTS] == ticks).sum())
        summary.precision_ms = max(PRECISIONS_MS, key=lambda p: (hits[p], p))

    def check_slots(self, data: npt.NDArray[np.uint8]) -> None:
        summary = self.summary
        pages = np.zeros(data.size // kernels.PAGE_BYTES, np.uint8)
        for start, end in data_parts(self.path):  # most pages have no blocks on the disk
            first, last = start // kernels.PAGE_BYTES, -(-end // kernels.PAGE_BYTES)
            pages[first:last] = kernels.PAGE_USED
        first, count = max(summary.read_ms // summary.precision_ms, 1), layout.WHEEL_SLOTS
        while count > 0 and summary.read_ms:
            out = np.empty(min(LIST_SLOTS, count), layout.SLOT)
            slot_count, looked_at = kernels.live_slots(data, pages, first, count, out)
            first, count = first + looked_at, count - looked_at
            if slot_count:
                self.check_some(out[:slot_count])

    def check_some(self, slots: Rows) -> None:
        summary = self.summary
        cursors = check_slots(slots, summary.log_end)
        for file in reversed(summary.pieces):
            chain.count_pending(file.data, file.base, cursors, summary.precision_ms)
        self.counted += int(np.maximum(slots["num"], 0).sum())
        self.pending += int(cursors["count"].sum())
        for index in np.flatnonzero(cursors["fault"]).tolist():
            self.report_slot(slots[index], cursors[index])
        whole = (cursors["fault"] == 0) & (cursors["pos"] == -1)
        if summary.ours is not None:
            for index in np.flatnonzero(whole & (slots["num"] > cursors["count"])).tolist():
                self.report_count(slots[index], int(cursors[index]["count"]))

    def position_of(self, slot: Row) -> int:
        return int(slot["tick"]) % layout.WHEEL_SLOTS * layout.SLOT_BYTES

    def report_slot(self, slot: Row, cursor: Row) -> None:
        slot_ms = int(slot["tick"]) * self.summary.precision_ms
        text = (
            f"the chain of slot {slot_ms} leads to timer log position {int(cursor['pos'])}, but "
            f"{FAULT_TEXTS[int(cursor['fault'])]}"
        )
        self.report.add(self.summary.bad, "timer-chain", self.path, self.position_of(slot), text)

    def report_count(self, slot: Row, pending: int) -> None:
        slot_ms = int(slot["tick"]) * self.summary.precision_ms
        text = f"slot {slot_ms} counts {int(slot['num'])} pending timers, {pending} are found"
        self.report.add(self.summary.bad, "timer-count", self.path, self.position_of(slot), text)
