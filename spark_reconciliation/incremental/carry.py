"""Closed messages of a former audit: which remain closed, which are read again.

A closed message is read again once a new record names it, or its verdict may change: its time has
come, or its owner has passed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from spark_reconciliation.arrays import Mask, Numbers
from spark_reconciliation.audit.aggregated_audit import EXACT_BITS
from spark_reconciliation.audit.tally import PLACE_MAX, STORE_BITS
from spark_reconciliation.incremental.audit_state import SavedFile, kind_of
from spark_reconciliation.incremental.closed_messages import (
    ROWS_OF_GROUP,
    TIMER,
    ClosedFiles,
    counts_of,
    has_offsets,
    read_columns,
)
from spark_reconciliation.scan.store_part import NOTHING
from spark_reconciliation.scan.store_state import PASSED, Progress

KEPT_ROWS_MIN = ROWS_OF_GROUP
Row = dict[str, object]
"""Row of `aggregated_audit.by_lateness`."""


@dataclass(frozen=True, slots=True)
class Present:
    """Facts that decide which closed messages are read again.

    Attributes:
        log_min: First log offset.
        progress: Progress of levels and timers.
        overdue_ms: Messages due before it are overdue.
        named: (n,) ascending log offsets that new records name as their origins.
    """

    log_min: int
    progress: Progress
    overdue_ms: int
    named: Numbers


@dataclass(slots=True)
class Carried:
    """Result of a walk over the closed messages.

    Attributes:
        counts: Number of messages that remain closed, by verdict and lateness.
        records: Log offsets of records that are read again.
        removed: Log offsets of removed records whose messages remain closed.
    """

    counts: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    records: list[Numbers] = field(default_factory=lambda: [NOTHING])
    removed: list[Numbers] = field(default_factory=lambda: [NOTHING])

    def rows(self) -> list[Row]:
        """Return the counts as rows of `aggregated_audit.by_lateness`."""
        buckets: dict[tuple[str, int | None], list[tuple[int | None, int]]] = {}
        for (verdict, late_ms), count in self.counts.items():
            late = None if late_ms is None else late_bucket(late_ms)
            buckets.setdefault((verdict, late), []).append((late_ms, count))
        return [
            {
                "verdict": verdict,
                "late": late,
                "count": sum(count for _, count in counts),
                "max": max((ms for ms, _ in counts if ms is not None), default=None),
            }
            for (verdict, late), counts in buckets.items()
        ]


def late_bucket(late_ms: int) -> int:
    """Return a lateness of 0 or more as `aggregated_audit.late_bucket` rounds it."""
    step = 1 << max(late_ms.bit_length() - 1 - EXACT_BITS, 0)
    return late_ms // step * step


def carry(
    folder: Path, saved: Mapping[str, SavedFile], present: Present, files: ClosedFiles
) -> Carried:
    """Copy the messages that remain closed to new files, or keep their file.

    Args:
        saved: Files of the former state.
    Raises:
        OSError: A file cannot be read or written.
    """
    carried = Carried()
    for name, file in saved.items():
        path = folder / name
        if _remains(path, file, present):
            files.keep(name, file)
            for late_ms, count in file.late_ms.items():
                carried.counts["ok", late_ms] += count
            continue
        for columns in read_columns(path):
            _carry_rows(kind_of(name), columns, present, files, carried)
    return carried


def _remains(path: Path, file: SavedFile, present: Present) -> bool:
    """Return whether the delivered messages of a file remain closed, and none has a removed record.

    Small files are copied, so that a state has few files.
    """
    if kind_of(path.name) != "delivered" or file.rows < KEPT_ROWS_MIN:
        return False
    return file.lowest >= present.log_min and not has_offsets(path, present.named)


def _carry_rows(
    kind: str,
    columns: Sequence[Numbers],
    present: Present,
    files: ClosedFiles,
    carried: Carried,
) -> None:
    if kind == "pending":
        _carry_pending(columns, present, files, carried)
    elif kind == "delivered":
        _carry_delivered(columns, present, files, carried)
    else:
        carried.records += columns


def _carry_pending(
    columns: Sequence[Numbers], present: Present, files: ClosedFiles, carried: Carried
) -> None:
    offset, time_ms, unit = columns
    kept = offset >= present.log_min
    opened = kept & (is_sought(offset, present.named) | _may_change(columns, present))
    carried.records.append(offset[opened])
    closed = kept & ~opened
    if closed.any():
        carried.counts["pending", None] += int(closed.sum())
    files.pending.add(offset[closed], time_ms[closed], unit[closed])


def _may_change(columns: Sequence[Numbers], present: Present) -> Mask:
    """Return which pending messages may have another verdict now."""
    offset, time_ms, unit = columns
    progress = present.progress
    is_timer = unit == TIMER
    changes: Mask = time_ms < present.overdue_ms  # a timer is due after the start of its slot
    changes |= is_timer & (time_ms < (progress.read_ms or 0))
    queues, numbers = unit >> STORE_BITS, unit & PLACE_MAX
    for queue_id in np.unique(queues[~is_timer]).tolist():
        here = np.flatnonzero(queues == queue_id)
        flags = progress.of_level(queue_id, numbers[here], time_ms[here], offset[here])
        changes[here[flags == PASSED]] = True
    return changes


def _carry_delivered(
    columns: Sequence[Numbers], present: Present, files: ClosedFiles, carried: Carried
) -> None:
    offset, delivered, late_ms = columns
    kept = delivered >= present.log_min
    opened = kept & is_sought(offset, present.named)
    carried.records += [offset[opened], delivered[opened]]
    closed = kept & ~opened
    removed = closed & (offset < present.log_min)
    carried.removed.append(offset[removed])
    if removed.any():
        carried.counts["removed", None] += int(removed.sum())
    for late, count in counts_of(late_ms[closed & ~removed]).items():
        carried.counts["ok", late] += count
    files.delivered.add(offset[closed], delivered[closed], late_ms[closed])


def is_sought(offset: Numbers, sought: Numbers) -> Mask:
    """Return (n,) which ascending log offsets are among other ascending ones."""
    among = np.zeros(offset.size, np.bool_)
    positions = np.searchsorted(offset, sought)
    inside = positions < offset.size
    positions, sought = positions[inside], sought[inside]
    among[positions[offset[positions] == sought]] = True
    return among
