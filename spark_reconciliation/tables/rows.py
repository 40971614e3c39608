"""Rows of the exported tables, made of the records of log segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delayed_delivery.ownership_projection import Ownership
from spark_reconciliation.arrays import Mask
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.levels import DEFAULT_LEVELS_MS, stored_levels_ms
from spark_reconciliation.scan.planning import Finding, LogPlan, ScanSegment
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.store_state import Progress, read_journal
from spark_reconciliation.tables.due_times import LEVEL_ROLES, NEEDED, NONE, due_times, numbers
from spark_reconciliation.tables.schemas import TABLES

READ: Final = (
    *NEEDED,
    "phys_offset",
    "prepared_offset",
    "born_ms",
    "real_topic",
    "real_queue_id",
    "unique_id",
    "keys",
    "tags",
    "body_len",
)
ROLES: Final = frozenset({Role.LEVEL, Role.TIMER})
INT_RANGE: Final = (-(1 << 31), (1 << 31) - 1)
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
TableBatch = tuple[str, pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class ExportedLog:
    """Log of a store at planning time, with what its rows need.

    Attributes:
        broker: Name of the broker, for the rows.
        levels_ms: Delays of levels 1, 2, ...
        progress: Due times of level messages that their queue lacks.
    """

    root: Root
    plan: LogPlan
    broker: str
    levels_ms: tuple[int, ...]
    progress: Progress

    @classmethod
    def at(cls, root: Root, plan: LogPlan, broker: str) -> ExportedLog:
        """Read the levels and the ownership journal of a store.

        Raises:
            OSError: A file cannot be read.
        """
        levels_ms = next(iter(stored_levels_ms([root.url])), DEFAULT_LEVELS_MS)
        ownership = Ownership()
        for entry in read_journal(root, plan):
            ownership.apply(entry)
        promised = {level - 1: dict(due) for level, due in ownership.promised.items()}
        return cls(root, plan, broker, levels_ms, Progress(promised=promised))


class TableRows:
    """Reader of the rows of a log's segments.

    Attributes:
        findings: Unreadable ranges in the segments that were read.
        first_offset, last_offset: First and last record of these segments; None without records.
    """

    def __init__(self, log: ExportedLog) -> None:
        self._log = log
        self._columns = MessageColumns(READ, roles=ROLES, progress=log.progress)
        self.findings: list[Finding] = []
        self.first_offset: int | None = None
        self.last_offset: int | None = None

    def read(self, segment: ScanSegment) -> Iterator[TableBatch]:
        """Yield the rows of each chunk of a segment, by table."""
        scan = RecordScan(segment)
        for rows in scan.chunks() if scan.open() else ():
            self.last_offset = int(rows[-1]["phys_offset"])
            if self.first_offset is None:
                self.first_offset = int(rows[0]["phys_offset"])
            batch = self._columns.batch(scan, rows)
            if batch is not None:
                yield from self._tables(batch)
        self.findings += scan.findings

    def _tables(self, batch: pa.RecordBatch) -> Iterator[TableBatch]:
        is_pop = pc.starts_with(batch.column("real_topic"), REVIVE_PREFIX).fill_null(False)
        batch = batch.filter(pc.invert(is_pop))
        role = numbers(batch, "role")
        due_ms = due_times(batch, self._log.levels_ms)
        scheduled = np.isin(role, (Role.LEVEL, Role.TIMER))
        if scheduled.any():
            yield "scheduled", self._scheduled(batch, scheduled, due_ms)

    def _scheduled(self, batch: pa.RecordBatch, mask: Mask, due_ms: np.ndarray) -> pa.RecordBatch:
        size = batch.num_rows
        role = numbers(batch, "role")
        kinds = pa.array(["timer", "level"]).take(pa.array(np.isin(role, LEVEL_ROLES).astype("i4")))
        columns = {
            "broker": pa.repeat(pa.scalar(self._log.broker), size),
            "message_id": batch.column("unique_id"),
            "topic": batch.column("real_topic"),
            "queue_id": batch.column("real_queue_id"),
            "kind": kinds,
            "due_ms": pa.array(due_ms, mask=due_ms == NONE),
            "accepted_ms": batch.column("store_ms"),
            "body_bytes": batch.column("body_len"),
            "log_offset": batch.column("phys_offset"),
        }
        return _batch("scheduled", batch, columns).filter(pa.array(mask))


def _batch(table: str, batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return rows of a table: the given columns, the others from `batch` by name."""
    schema = TABLES[table].arrow
    arrays = [columns.get(field.name) for field in schema]
    filled = [
        _valid(batch.column(field.name) if array is None else array, field.type)
        for field, array in zip(schema, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(filled, schema=schema)


def _valid(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of a type; numbers that it cannot hold are null, texts are valid UTF-8."""
    if pa.types.is_string(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            texts = array.cast(pa.binary()).to_pylist()
            return pa.array([None if t is None else t.decode("utf-8", "replace") for t in texts])
        return array
    if array.type == kind:
        return array
    low, high = (pa.scalar(value, array.type) for value in INT_RANGE)
    inside = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
    return pc.if_else(inside, array, None).cast(kind)
