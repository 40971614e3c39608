"""Checks of files that a broker reads at its start and the audit does not use.

    timerlog/*            the units up to the end in the checkpoint are valid
    timerwheel            slots have valid ticks, point into the timer log, and their chains
                          contain all pending units (`pointers`)
    config/*.json         the file or its backup is JSON

Damage is a finding with file and position. Units after the checkpoint are not read. Files that a
kill leaves are not damaged: empty files, a wheel that was being rebuilt. `duemq store verify`
checks the index, which no delivery reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from duemq_common.topics import PENDING_TOPICS
from message_store.layout import MAGIC_BLANK, native_columns
from spark_reconciliation.arrays import Bytes, Mask, Numbers, Rows
from spark_reconciliation.audit.late_units import any_pending
from spark_reconciliation.audit.pointers import (
    BLOCK_UNITS,
    POINTER,
    Pending,
    check_chains,
    check_units,
    is_orderly,
)
from spark_reconciliation.scan import unit_tables
from spark_reconciliation.scan.files import Entry, Root
from spark_reconciliation.scan.planning import (
    MARK_FILE,
    OFFSET_MAX,
    Finding,
    LogPlan,
    ScanSegment,
    row_of_files,
)
from spark_reconciliation.scan.store_part import StorePart
from spark_reconciliation.scan.store_state import (
    BAD_INPUT,
    TIMER_FILE,
    Attempts,
    Progress,
    is_void,
    read_check,
    read_json,
)
from timer_store.layout import (
    MAGIC_MAX,
    SLOT_BYTES,
    TIMER_BLANK,
    TIMER_SLOT,
    TIMER_UNIT,
    UNIT_BYTES,
    WHEEL_BYTES,
    WHEEL_SLOTS,
)

RUNS_MAX: Final = 20  # maximum findings of one segment
BLOCK_SLOTS: Final = 65_536  # slots of a wheel that are examined at a time
GROWTH_BYTES: Final = 1 << 30  # maximum growth of the timer log between planning and reading
WHEEL: Final = "timerwheel"


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Piece of a file to check.

    Attributes:
        limit: Position after the last written unit of the timer log.
        end: Position after its last file.
        read_ms: Start of the slot that the timers had reached.
        about: Facts for the check of pending units; None without pending units.
    """

    kind: str
    segment: ScanSegment
    limit: int = 0
    end: int = 0
    read_ms: int = 0
    about: Pending | None = None


def plan_pieces(
    root: Root,
    plan: LogPlan,
    bytes_max: int,
    progress: Progress,
    precision_ms: int,
    part: StorePart | None = None,
) -> tuple[list[FilePiece], list[Finding]]:
    """Return the pieces to check, and findings about directories and small files.

    Args:
        part: Part of the store that is read; None: all of it.
    """
    attempt = Attempts(root)
    findings = attempt.findings
    try:
        check = read_check(root)
    except BAD_INPUT:  # reported by the reader of the timers' position
        check = None
    written = check["log_pos"] if check is not None else 0
    for topic in PENDING_TOPICS:
        attempt(f"consumequeue/{topic}", partial(_list_queues, root, f"consumequeue/{topic}"))
    row = attempt("timerlog", lambda: row_of_files(root.url, root.files("timerlog")))
    if row is None:
        row, written = ([], []), 0
    findings += row[1]
    end = int(row[0][-1].name) + row[0][-1].size if row[0] else 0
    if end < written and (row[0] or not _none_pending(root)):
        path = row[0][-1].path if row[0] else "timerlog"
        text = f"by the timers' checkpoint it continues to {written}"
        position = row[0][-1].size if row[0] else 0
        findings.append(Finding(root.url, path, position, written - end, "gap", text))
    first = int(row[0][0].name) if row[0] else 0
    if first and not plan.min and not attempt(MARK_FILE, partial(root.small_file, MARK_FILE)):
        # Apache removes the files whose records were removed; DueMQ also those without a timer
        text = f"its first {first} bytes are missing, although the commit log is complete"
        findings.append(Finding(root.url, row[0][0].path, 0, first, "gap", text))
    about = None
    if row[0] and check is not None and not attempt(TIMER_FILE, partial(is_void, root, TIMER_FILE)):
        orderly = attempt("abort", lambda: is_orderly(root)) or False
        about = Pending(plan, progress, precision_ms, written, orderly, part or StorePart())
    step = max(bytes_max // UNIT_BYTES, 1) * UNIT_BYTES
    parts = [segment for entry in row[0] for segment in ScanSegment.whole(root, entry).pieces(step)]
    pieces = [FilePiece("timerlog", part, written, about=about) for part in parts]
    read_ms = check["read_ms"] if check else 0
    wheel = attempt(WHEEL, lambda: unit_tables.named_files(root, "", OFFSET_MAX, WHEEL))
    pieces += [FilePiece("timerwheel", part, written, end, read_ms, about) for part in wheel or ()]
    if wheel == [] and attempt("timerlog", partial(any_pending, root, read_ms, written)):
        text = "there is no wheel, although the timer log has pending timers"
        findings.append(Finding(root.url, WHEEL, 0, 0, "gap", text))
    return pieces, findings


def _none_pending(root: Root) -> bool:
    """Return whether DueMQ counted no timers: the timer log may be a new, empty one."""
    try:
        saved = read_json(root, TIMER_FILE)
        return "byTopic" in saved and not sum(saved["byTopic"].values())
    except BAD_INPUT:
        return False


def _list_queues(root: Root, below: str) -> None:
    for queue in root.folders(below):
        root.files(f"{below}/{queue}")


def check_piece(file_piece: FilePiece) -> Iterator[Finding]:
    """Yield the faults of a piece of a file."""
    part = file_piece.segment
    try:
        data = part.root.read(part.path, part.start, part.end)
        if data.size < part.end - part.start:
            missing = part.end - part.start - data.size
            yield part.finding(
                part.start + data.size, missing, "gap", "the file ends before this position"
            )
        yield from CHECKS[file_piece.kind](file_piece, data)
    except OSError as error:
        text = f"it cannot be read: {error}"
        yield part.finding(part.start, part.end - part.start, "unreadable", text)


Place = tuple[int, int, str]


def _runs(bad: Mask, unit_bytes: int, start: int, name: str) -> Iterator[Place]:
    """Yield (position, bytes, text) of runs of bad units."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
    for first, end in edges.reshape(-1, 2)[:RUNS_MAX].tolist():
        size = (end - first) * unit_bytes
        yield start + first * unit_bytes, size, f"{size} bytes are not {name}"


def _timer_log(file_piece: FilePiece, data: Bytes) -> Iterator[Finding]:
    """Yield the malformed units, and the wrong pointers of pending units."""
    part, about = file_piece.segment, file_piece.about
    for position, size, text in _malformed_units(file_piece, data):
        yield part.finding(part.start + position, size, "gap", text)
    if about is None:
        return
    count = min(data.size, file_piece.limit - part.base - part.start) // UNIT_BYTES
    rows = np.frombuffer(data[: max(count, 0) * UNIT_BYTES], TIMER_UNIT)
    for low in range(0, rows.size, BLOCK_UNITS):
        block = rows[low : low + BLOCK_UNITS]
        pos = part.base + part.start + np.arange(low, low + block.size) * UNIT_BYTES
        yield from check_units(about, part, block, pos)


def _malformed_units(file_piece: FilePiece, data: Bytes) -> Iterator[Place]:
    """Yield the malformed units; an incremental audit examines those that are new."""
    part = file_piece.segment
    first = part.base + part.start
    written = max(min(data.size, file_piece.limit - first), 0) // UNIT_BYTES * UNIT_BYTES
    examined = 0 if file_piece.about is None else file_piece.about.part.timer_pos
    start = max(examined - first, 0) // UNIT_BYTES * UNIT_BYTES
    if start >= written:
        return
    data, first = data[start:], first + start
    rows = np.frombuffer(data[: written - start], TIMER_UNIT)
    pos = first + np.arange(rows.size) * UNIT_BYTES
    good = (rows["size"] == UNIT_BYTES) & (rows["magic"] > 0) & (rows["magic"] <= MAGIC_MAX)
    good &= (rows["prev_pos"] >= -1) & (rows["prev_pos"] < pos)
    good &= (rows["phys_offset"] >= 0) & (rows["record_size"] > 0)
    for index in np.flatnonzero(~good)[-3:].tolist():  # a blank record is at the end
        raw = data[index * UNIT_BYTES :][: TIMER_BLANK.itemsize]
        if raw.size == TIMER_BLANK.itemsize:
            blank = np.frombuffer(raw, TIMER_BLANK)[0]
            left = part.base + part.size - int(pos[index])
            if (int(blank["size"]), int(blank["magic"])) == (left, MAGIC_BLANK):
                good[index:] = True
                break
    yield from _runs(~good, UNIT_BYTES, start, "units of timers")


def _wheel(file_piece: FilePiece, data: Bytes) -> Iterator[Finding]:
    """Yield the invalid slots, and those whose chain lacks pending units."""
    part, about = file_piece.segment, file_piece.about
    numbers, slots = _used_slots(part, data)
    for position, size, text in _invalid_slots(file_piece, data.size, numbers, slots):
        yield part.finding(part.start + position, size, "gap", text)
    if about is not None and data.size == WHEEL_BYTES and slots["tick"].any():
        for number, reason in check_chains(about, part.root, numbers, slots):
            yield part.finding(number * SLOT_BYTES, SLOT_BYTES, POINTER, reason)


def _used_slots(part: ScanSegment, data: Bytes) -> tuple[Numbers, Rows]:
    """Return the slots that are not zeros: (n,) their numbers, in order, and (n,) TIMER_SLOT.

    A wheel has 38 MB, most of them without blocks on the disk: these are not read.
    """
    count, numbers = data.size // SLOT_BYTES, [np.empty(0, np.int64)]
    for start, end in part.root.data_parts(Entry(part.path, part.size)):
        last = min(-(-end // SLOT_BYTES), count)
        for low in range(start // SLOT_BYTES, last, BLOCK_SLOTS):
            block = data[low * SLOT_BYTES : min(low + BLOCK_SLOTS, last) * SLOT_BYTES]
            words = block.view(np.uint64).reshape(-1, SLOT_BYTES // 8)
            numbers.append(low + np.flatnonzero(np.bitwise_or.reduce(words, axis=1)))
    used = np.concatenate(numbers)
    return used, native_columns(np.frombuffer(data[: count * SLOT_BYTES], TIMER_SLOT)[used])


def _invalid_slots(
    file_piece: FilePiece, size: int, numbers: Numbers, slots: Rows
) -> Iterator[Place]:
    used = (slots["tick"] != 0) | (slots["last_pos"] > 0) | (slots["num"] != 0)
    if size != WHEEL_BYTES:
        yield size, max(WHEEL_BYTES - size, 0), f"a wheel has {WHEEL_BYTES} bytes"
    elif not used.any() and any_pending(
        file_piece.segment.root, file_piece.read_ms, file_piece.limit
    ):
        yield 0, size, "no slot was ever used, although the timer log has pending timers"
    end = file_piece.end + GROWTH_BYTES
    good = (slots["tick"] > 0) & (slots["tick"] % WHEEL_SLOTS == numbers)
    good &= (slots["first_pos"] >= -1) & (slots["last_pos"] < end)
    good &= (slots["last_pos"] >= -1) & (slots["first_pos"] < end)
    if (invalid := used & ~good).any():
        bad = np.zeros(size // SLOT_BYTES, np.bool_)
        bad[numbers[invalid]] = True
        yield from _runs(bad, SLOT_BYTES, 0, "slots of this wheel")


CHECKS: Final[Mapping[str, Callable[[FilePiece, Bytes], Iterator[Finding]]]] = {
    "timerlog": _timer_log,
    "timerwheel": _wheel,
}
