"""Promises behind deliveries and decisions: the pending record that each of them names.

    scheduled <--origin-- copy <--origin-- delivery      scheduled_offset, promised time of the copy

Origins are read in the log. Those that retention has removed are looked up in the exported tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_reconciliation.arrays import Mask, Numbers
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.pointed_scan import (
    PointedRun,
    PointedScan,
    Segments,
    pointed_files,
    pointed_scan,
)
from spark_reconciliation.scan.roles import PENDING_ROLES, Role
from spark_reconciliation.tables.due_times import NEEDED, NONE, due_times, numbers
from spark_reconciliation.tables.exported_log import ExportedLog

COPY_ROLES: Final = (Role.LEVEL_COPY, Role.TIMER_COPY)
COPIES_MAX: Final = 1_000
"""Maximum copies of one message that are followed to its first record."""
OPEN_MAX: Final = 8
READ: Final = (*NEEDED, "phys_offset", "prepared_offset")


@dataclass(frozen=True, slots=True)
class Promised:
    """Promises of some pending records.

    Attributes:
        roots: (n,) log offset of the first record of each message; NONE: unknown.
        due_ms: (n,) promised times; NONE: unknown.
    """

    roots: Numbers
    due_ms: Numbers

    @classmethod
    def unknown(cls, count: int) -> Promised:
        """Return unknown promises."""
        return cls(np.full(count, NONE, np.int64), np.full(count, NONE, np.int64))


Earlier = Callable[[Numbers], Promised]
"""Returns the promises of records that the log no longer has, by sorted log offset."""


def origins_of(batch: pa.RecordBatch) -> Numbers:
    """Return the log offsets that rows of `messages` name as their origins; NONE without one."""
    prepared = numbers(batch, "prepared_offset")
    origins = ~prepared
    is_valid = (prepared < 0) & (origins < numbers(batch, "phys_offset"))
    return np.where(is_valid, origins, NONE)


class Promises:
    """Lookup of promises by the log offset of a pending record."""

    def __init__(self, log: ExportedLog, earlier: Earlier | None = None) -> None:
        self._log, self._earlier = log, earlier
        self._columns = MessageColumns(READ, progress=log.progress)
        self._scans: dict[int, PointedScan | None] = {}

    def find(self, offsets: Numbers) -> Promised:
        """Return the promises of the pending records at (n,) log offsets; NONE: without one."""
        offsets, inverse = np.unique(offsets, return_inverse=True)
        made = self._find(offsets, COPIES_MAX)
        return Promised(made.roots[inverse], made.due_ms[inverse])

    def _find(self, offsets: Numbers, copies_max: int) -> Promised:
        """Return the promises of records at sorted log offsets."""
        made = Promised.unknown(offsets.size)
        in_log, origins = np.zeros(offsets.size, np.bool_), np.full(offsets.size, NONE, np.int64)
        for batch in self._read(offsets):
            role, positions = numbers(batch, "role"), numbers(batch, "phys_offset")
            here = np.searchsorted(offsets, positions)
            in_log[here] = True
            pending = np.isin(role, PENDING_ROLES)
            due_ms = due_times(batch, self._log.levels_ms)
            made.due_ms[here[pending]] = due_ms[pending]
            made.roots[here[pending]] = positions[pending]
            is_copy = np.isin(role, COPY_ROLES)
            origins[here[is_copy]] = origins_of(batch)[is_copy]
            made.roots[here[is_copy & (origins_of(batch) == NONE)]] = NONE
        self._follow(made, origins, copies_max)
        removed = ~in_log & (offsets >= 0) & (offsets < self._log.plan.min)
        if removed.any() and self._earlier is not None:
            earlier = self._earlier(offsets[removed])
            made.roots[removed], made.due_ms[removed] = earlier.roots, earlier.due_ms
        return made

    def _follow(self, made: Promised, origins: Numbers, copies_max: int) -> None:
        """Replace the roots of copies by those of their origins."""
        copies: Mask = origins >= self._log.first
        if copies.any() and copies_max:
            values, inverse = np.unique(origins[copies], return_inverse=True)
            roots = self._find(values, copies_max - 1).roots
            made.roots[copies] = roots[inverse]

    def _read(self, offsets: Numbers) -> list[pa.RecordBatch]:
        """Return the records at sorted log offsets, file by file."""
        log, batches = self._log, list[pa.RecordBatch]()
        for segments, indexes in pointed_files(log.root, log.plan, offsets):
            scan = self._scan(segments, offsets[indexes])
            if scan is None:
                continue
            for rows in scan.chunks():
                batch = self._columns.batch(scan, rows)
                batches += [] if batch is None else [batch]
        return batches

    def _scan(self, segments: Segments, offsets: Numbers) -> PointedScan | PointedRun | None:
        """Return the opened scan of some records; None if their files are unreadable.

        Large files stay mapped.
        """
        if len(segments) > 1:
            run = pointed_scan(segments, offsets)
            return run if run.open() else None
        [segment] = segments
        if segment.base not in self._scans:
            if len(self._scans) >= OPEN_MAX:
                self._scans.pop(next(iter(self._scans)))
            mapped = PointedScan(segment, offsets)
            self._scans[segment.base] = mapped if mapped.open() else None
        scan = self._scans[segment.base]
        return None if scan is None else scan.at(offsets)
