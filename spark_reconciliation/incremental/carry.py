"""Closed messages of a former audit: which remain closed, which are read again.

A closed message is read again once a new record names it, or its verdict may change: its time has
come, or its owner has passed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_reconciliation.arrays import Mask, Numbers
from spark_reconciliation.audit.aggregated_audit import EXACT_BITS
from spark_reconciliation.audit.tally import PLACE_MAX, STORE_BITS
from spark_reconciliation.incremental.closed_messages import TIMER, ClosedFiles, read_columns
from spark_reconciliation.scan.store_part import NOTHING
from spark_reconciliation.scan.store_state import PASSED, Progress

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


def carry(folder: Path, names: Sequence[str], present: Present, files: ClosedFiles) -> Carried:
    """Copy the messages that remain closed to new files.

    Args:
        names: Files of the former state.
    Raises:
        OSError: A file cannot be read or written.
    """
    carried = Carried()
    by_kind = {name.partition("-")[0]: folder / name for name in names}
    for columns in read_columns(by_kind["pending"]):
        _carry_pending(columns, present, files, carried)
    for columns in read_columns(by_kind["delivered"]):
        _carry_delivered(columns, present, files, carried)
    carried.records += [offset for (offset,) in read_columns(by_kind["records"])]
    return carried


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
    for entry in pa.array(late_ms[closed & ~removed]).value_counts().to_pylist():
        carried.counts["ok", entry["values"]] += entry["counts"]
    files.delivered.add(offset[closed], delivered[closed], late_ms[closed])


def is_sought(offset: Numbers, sought: Numbers) -> Mask:
    """Return (n,) which ascending log offsets are among other ascending ones."""
    among = np.zeros(offset.size, np.bool_)
    positions = np.searchsorted(offset, sought)
    inside = positions < offset.size
    positions, sought = positions[inside], sought[inside]
    among[positions[offset[positions] == sought]] = True
    return among
