"""Pointers of pending timer units: to their record, and within their chain.

    timerwheel   slot of 12:00:07 | first | last |          last: the newest unit of its slot
                                      |       |
    timerlog     ... unit <--prev-- unit <--prev-- unit     each unit: the one before it of its slot
                       |              |              |
    commitlog        record         record         record   due at the time in the unit

A unit that points before the start of the log has lost its record. A broker walks a chain from its
newest unit: it does not deliver a unit outside the chain, and delivers a unit with a wrong time at
that wrong time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from duemq_common.topics import PENDING_TOPICS, TIMER_TOPIC
from message_store.layout import SCANNED, native_columns
from spark_reconciliation.arrays import Mask, Numbers, Rows
from spark_reconciliation.kernels.pointed import UNUSUAL, exact_times
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import Finding, LogPlan, ScanSegment, files_of_row
from spark_reconciliation.scan.pointed_scan import (
    PointedRun,
    PointedScan,
    Segments,
    pointed_files,
    pointed_scan,
)
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.store_part import StorePart
from spark_reconciliation.scan.store_state import Progress
from spark_reconciliation.scan.tables import TIME_MIN
from timer_store.layout import (
    MAGIC_DELETE,
    MAGIC_MAX,
    MAGIC_ROLL,
    TIMER_UNIT,
    UNIT_BYTES,
    WHEEL_SLOTS,
)

RECORD_REMOVED: Final = "gone"
"""Kind of a finding about a removed record: offset is its log offset, base the slot in ms."""
MARKER_REMOVED: Final = "gone-marker"
"""The same of a removed marker."""
POINTER: Final = "pointer"
BLOCK_UNITS: Final = 65_536
FOUND_MAX: Final = 1_000  # maximum findings of one piece of a file
COLUMNS: Final = ("due_ms", "out_ms", "unit_ms")
TIMERS: Final = np.frombuffer(TIMER_TOPIC.encode(), np.uint8)


@dataclass(frozen=True, slots=True)
class Pending:
    """Facts for the check of pending units.

    Attributes:
        plan: Plan of the log.
        written: Position after the last unit of the timer log, by the checkpoint.
        orderly: Whether the broker was stopped cleanly, so that also the newest units are complete.
        part: Part of the store that is read: other units are not compared with their records.
    """

    plan: LogPlan
    progress: Progress
    precision_ms: int
    written: int
    orderly: bool
    part: StorePart = field(default_factory=StorePart)


def is_orderly(root: Root) -> bool:
    """Return whether the last broker on a store was stopped cleanly."""
    return "abort" not in {entry.name for entry in root.files("")}


def pending_units(rows: Rows, read_ms: int) -> Mask:
    """Return (n,) which units, in any byte order, belong to slots that are not delivered."""
    late = np.asarray(rows["write_ms"] + rows["delay_ms"] >= read_ms)
    if late.any():
        late &= (rows["size"] == UNIT_BYTES) & (rows["magic"] > 0) & (rows["magic"] <= MAGIC_MAX)
    return late


# -- units and their records --------------------------------------------------------------------


def check_units(about: Pending, part: ScanSegment, rows: Rows, pos: Numbers) -> Iterator[Finding]:
    """Yield the wrong pointers of units in the timer log.

    Args:
        part: Their file.
        rows: (n,) TIMER_UNIT as in the file.
        pos: (n,) positions of the units in the timer log.
    """
    read_ms = about.progress.read_ms
    if read_ms is None or not rows.size:
        return
    pending = pending_units(rows, read_ms)
    if not pending.any():
        return
    if not pending.all():  # a copy takes as long as the comparison
        rows, pos = rows[pending], pos[pending]
    rows = native_columns(rows)
    yield from _removed_markers(part, rows, about.plan)
    kept = (rows["magic"] & MAGIC_DELETE == 0) & (rows["due_ms"] >= 0)
    if not kept.all():
        rows, pos = rows[kept], pos[kept]
    places, plan = rows["phys_offset"], about.plan
    # DueMQ marks the unit of a cancelled timer, Apache only appends a unit of the marker
    slots_ms = np.where(rows["due_ms"] == 0, rows["write_ms"] + rows["delay_ms"], -1)
    for index in np.flatnonzero(places < plan.min).tolist():
        phys_offset, slot_ms = int(places[index]), int(slots_ms[index])
        text = "its record was removed while it was pending"
        yield part.finding(phys_offset, UNIT_BYTES, RECORD_REMOVED, text, slot_ms)
    inside = (places >= plan.min) & (places < plan.end)
    inside &= (pos >= about.part.timer_pos) | (places >= about.part.start)
    wrong = np.zeros(rows.size, np.bool_)
    wrong[(places >= plan.end) & about.orderly] = True
    indexes = np.flatnonzero(inside)
    if (np.diff(places[indexes]) < 0).any():
        indexes = indexes[np.argsort(places[indexes], kind="stable")]
    for segments, numbers in pointed_files(part.root, plan, places[indexes]):
        here = indexes[numbers]
        wrong[here] = ~_matching_units(about, segments, rows[here])
    for index in np.flatnonzero(wrong)[:FOUND_MAX].tolist():
        text = f"the unit does not match the record at log offset {int(places[index])}"
        where = int(pos[index]) - part.base
        yield part.finding(where, UNIT_BYTES, POINTER, text)


def _removed_markers(part: ScanSegment, rows: Rows, plan: LogPlan) -> Iterator[Finding]:
    """Yield the pending units of Apache's markers whose own records were removed.

    The record that such a marker cancels is before it, so it was removed, too.
    """
    slots_ms = rows["write_ms"] + rows["delay_ms"]
    markers = (rows["magic"] & MAGIC_DELETE != 0) & (rows["phys_offset"] < plan.min)
    markers &= rows["due_ms"] == 0
    for index in np.flatnonzero(markers).tolist():
        phys_offset, slot_ms = int(rows["phys_offset"][index]), int(slots_ms[index])
        text = "the record of a marker was removed"
        yield part.finding(phys_offset, UNIT_BYTES, MARKER_REMOVED, text, slot_ms)


def _matching_units(about: Pending, segments: Segments, rows: Rows) -> Mask:
    """Return (n,) which units, by log offset, match their records, which are in some log files."""
    places = np.ascontiguousarray(rows["phys_offset"])
    scan = pointed_scan(segments, places)
    if not scan.open():  # the scan of the log reports it
        return np.ones(rows.size, np.bool_)
    if not isinstance(scan, PointedScan):
        return _matching_records(about, scan, rows)
    matching = _matching_timers(about, scan, rows)
    others = np.flatnonzero(~matching)
    if others.size:
        matching[others] = _matching_records(about, scan.at(places[others]), rows[others])
    return matching


def _matching_timers(about: Pending, scan: PointedScan, rows: Rows) -> Mask:
    """Return (n,) which units match the record of a timer with an exact time: nearly all.

    The columns of a record take several times as long as its due time alone.
    """
    due_ms = np.empty(rows.size, np.int64)
    exact_times(scan.data, scan.base, rows, TIMERS, np.zeros(1, SCANNED), due_ms)
    return np.asarray((due_ms != UNUSUAL) & _in_time(rows, due_ms, about))


def _matching_records(about: Pending, scan: PointedScan | PointedRun, rows: Rows) -> Mask:
    """Return (n,) which units, by log offset, match the records of a scan, of any kind."""
    places = np.ascontiguousarray(rows["phys_offset"])
    records = np.concatenate([np.empty(0, SCANNED), *scan.chunks()])
    matching = ~scan.could_read(places)
    count = records.size
    if not count:
        return matching
    due_ms, sizes, unknown = _promises(about, scan, records)
    positions = np.searchsorted(records["phys_offset"], places)
    here = positions < count
    here[here] = records["phys_offset"][positions[here]] == places[here]
    positions = np.where(here, positions, 0)
    fits = (sizes[positions] == rows["record_size"]) & (
        unknown[positions] | _in_time(rows, due_ms[positions], about)
    )
    matching[here & fits] = True
    return matching


def _promises(about: Pending, scan: RecordScan, records: Rows) -> tuple[Numbers, Numbers, Mask]:
    """Return due times and sizes of records, and which due times are unknown to the audit.

    A record that is not a message of levels or timers is never due.
    """
    made = MessageColumns(COLUMNS, about.precision_ms, progress=about.progress, check=False)
    batch = made.batch(scan, records)
    assert batch is not None
    own, slot, in_queue = (
        batch.column(name).fill_null(-1).to_numpy(zero_copy_only=False) for name in COLUMNS
    )
    level, timer = (records["topic_index"] == scan.topics.find(name) for name in PENDING_TOPICS)
    due_ms = np.where(level & (in_queue >= TIME_MIN), in_queue, own)
    unknown = (level & (due_ms < 0)) | (timer & (slot < 0))
    due_ms = np.where(level | timer, due_ms, -(1 << 60))
    return due_ms, np.asarray(records["record_size"]), np.asarray(unknown)


def _in_time(rows: Rows, due_ms: Numbers, about: Pending) -> Mask:
    """Return (n,) which units are delivered at the due times of their records.

    A unit that rolls is in an earlier slot; a unit enqueued after its slot is in a later one.
    """
    precision_ms, read_ms = about.precision_ms, about.progress.read_ms or 0
    slot_ms = rows["write_ms"] + rows["delay_ms"]
    exact = (rows["due_ms"] == 0) | (rows["due_ms"] == due_ms)
    own = (due_ms - 1) // precision_ms == slot_ms // precision_ms
    rolls = (rows["magic"] & MAGIC_ROLL != 0) & (slot_ms < due_ms)
    gone_by = (rows["write_ms"] > due_ms - 2 * precision_ms) | (due_ms <= read_ms)
    late = (slot_ms >= due_ms - precision_ms) & gone_by
    apaches = (rows["due_ms"] == 0) & (np.abs(slot_ms - due_ms) <= precision_ms)
    return np.asarray(exact & (own | rolls | late | apaches))


# -- slots and their chains ---------------------------------------------------------------------


def check_chains(
    about: Pending, root: Root, numbers: Numbers, slots: Rows
) -> Iterator[tuple[int, str]]:
    """Yield slots of the wheel whose chain lacks pending units: (number of the slot, why).

    Args:
        numbers: (n,) the numbers of the slots that are not zeros, in order.
        slots: (n,) TIMER_SLOT, native.
    """
    read_ms, precision_ms = about.progress.read_ms, about.precision_ms
    if read_ms is None or not about.orderly:
        return
    last = np.full(numbers.size, -1, np.int64)
    broken = np.zeros(numbers.size, np.bool_)
    index_of = np.zeros(WHEEL_SLOTS, np.int32)  # of a slot in `numbers`, plus 1
    index_of[numbers] = np.arange(1, numbers.size + 1)
    absent = np.empty(0, np.int64)  # slots that are zeros, although the log has their units
    files = files_of_row(root, "timerlog")
    first = int(files[0].name) if files else 0
    if not files or int(files[-1].name) + files[-1].size < about.written:
        return  # the timer log itself is damaged: `file_checks` reports that
    for pos, rows in _forward(root, about.written):
        if (rows["size"][:-1] != UNIT_BYTES).any():  # the last unit may be a file's blank record
            return
        pending = pending_units(rows, read_ms)
        if not pending.any():
            continue
        pos, rows = pos[pending], native_columns(rows[pending])
        number = (rows["write_ms"] + rows["delay_ms"]) // precision_ms % WHEEL_SLOTS
        order = np.argsort(number, kind="stable")
        pos, prev, number = pos[order], rows["prev_pos"][order], number[order]
        index = index_of[number] - 1
        here = index >= 0
        absent = np.union1d(absent, number[~here])
        if not here.any():
            continue
        pos, prev, index = pos[here], prev[here], index[here]
        opens = np.concatenate([[True], index[1:] != index[:-1]])
        expected = np.concatenate([[-1], pos[:-1]])
        expected[opens] = last[index[opens]]
        wrong = (prev != expected) & ~((expected < 0) & (prev < first))
        broken[index[wrong]] = True
        ends = np.concatenate([opens[1:], [True]])
        last[index[ends]] = pos[ends]
    ticks, tails = slots["tick"], slots["last_pos"]
    due = ticks * precision_ms >= read_ms
    fits = ~due | (tails >= about.written) | (tails == last) | ((last < 0) & (tails < first))
    lost = (last >= 0) & (~due | ~fits)
    wrong_slots = np.union1d(numbers[broken | lost | (due & ~fits)], absent)
    for wrong_slot in wrong_slots[:FOUND_MAX].tolist():
        yield wrong_slot, "its chain does not have the units of the timer log"


def _forward(root: Root, end: int) -> Iterator[tuple[Numbers, Rows]]:
    """Yield positions and units before a position of the timer log, in pieces."""
    for entry in files_of_row(root, "timerlog"):
        base = int(entry.name)
        count = min(entry.size, end - base) // UNIT_BYTES
        for low in range(0, count, BLOCK_UNITS):
            high = min(low + BLOCK_UNITS, count)
            data = root.read(entry.path, low * UNIT_BYTES, high * UNIT_BYTES)
            rows = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], TIMER_UNIT)
            yield base + np.arange(low, low + rows.size) * UNIT_BYTES, rows
