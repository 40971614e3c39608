"""Origins of the newest deliveries, copies and markers: what a marker of DueMQ means.

    cancel   marker, marker          the first one is the decision
    move     copy, marker            the marker repeats the move for an Apache broker
    fire     delivery, marker        the marker is the only sign that an operator fired a timer

A marker follows its record in the same turn of the broker, so the last bytes of the log suffice.
They are read again if an export begins between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_reconciliation.arrays import Numbers
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.file_runs import scans_of
from spark_reconciliation.scan.planning import PARTITION_BYTES, log_segments
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.tables.due_times import numbers
from spark_reconciliation.tables.exported_log import ExportedLog
from spark_reconciliation.tables.promises import COPY_ROLES, origins_of

WINDOW_BYTES: Final = 32 << 20
READ: Final = ("role", "phys_offset", "prepared_offset")
ROLES: Final = frozenset({Role.DELIVERY, *COPY_ROLES, Role.MARK})


class MarkerMeaning(IntEnum):
    """Record with the same origin before a marker; COPIED also stands for another marker."""

    UNDECIDED = 0
    DELIVERED = 1
    COPIED = 2


@dataclass(frozen=True, slots=True)
class _DecidingRecords:
    """Deciding records of a chunk: their log offsets, origins and roles."""

    positions: Numbers
    origins: Numbers
    roles: Numbers

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> _DecidingRecords:
        roles = numbers(batch, "role")
        mask = np.isin(roles, list(ROLES))
        return cls(numbers(batch, "phys_offset")[mask], origins_of(batch)[mask], roles[mask])


class DecidedOrigins:
    """Origins of deliveries, copies and markers in a window before the current position."""

    def __init__(self, log: ExportedLog) -> None:
        self._log = log
        self._window: list[_DecidingRecords] = []
        self._begin: int | None = None
        self._is_loaded = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a chunk of the log; its markers can be classified then."""
        positions = numbers(batch, "phys_offset")
        if self._begin is None:
            self._begin = int(positions[0])
        chunk = _DecidingRecords.of_batch(batch)
        if chunk.positions.size:
            self._window.append(chunk)
        oldest = int(positions[0]) - WINDOW_BYTES
        while self._window and self._window[0].positions[-1] < oldest:
            del self._window[0]

    def find(self, marks: Numbers) -> npt.NDArray[np.int8]:
        """Return (n,) `MarkerMeaning` of the markers at sorted log offsets in the last chunk."""
        self._load()
        positions, origins, roles = (
            np.concatenate([getattr(chunk, name) for chunk in self._window])
            for name in ("positions", "origins", "roles")
        )
        order = np.lexsort((positions, origins))
        before, after = order[:-1], order[1:]
        repeats = (origins[before] == origins[after]) & (
            positions[after] - positions[before] <= WINDOW_BYTES
        )
        decided = np.zeros(positions.size, np.int8)
        kinds = np.where(
            roles[before] == Role.DELIVERY, MarkerMeaning.DELIVERED, MarkerMeaning.COPIED
        )
        decided[after] = np.where(repeats, kinds, MarkerMeaning.UNDECIDED)
        return decided[np.searchsorted(positions, marks)]

    def _load(self) -> None:
        """Read the window before the first chunk, once."""
        if self._is_loaded or self._begin is None:
            return
        self._is_loaded, log = True, self._log
        first, chunks = max(self._begin - WINDOW_BYTES, log.plan.min), []
        columns = MessageColumns(READ, roles=ROLES)
        segments = log_segments(
            log.root, log.plan, bytes_max=PARTITION_BYTES, first=first, end=self._begin
        )
        for scan in scans_of(segments):
            for rows in scan.chunks() if scan.open() else ():
                batch = columns.batch(scan, rows)
                chunks += [] if batch is None else [_DecidingRecords.of_batch(batch)]
        self._window[:0] = [chunk for chunk in chunks if chunk.positions.size]
