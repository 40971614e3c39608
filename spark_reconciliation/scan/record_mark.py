"""Marks of records, by which a log is recognized: the same record at the same log offset."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import LogPlan, ScanSegment
from spark_reconciliation.scan.pointed_scan import PointedScan

FINGERPRINT: Final = (
    "phys_offset",
    "record_size",
    "topic",
    "queue_id",
    "queue_offset",
    "store_ms",
    "born_ms",
    "body_crc",
)
"""Columns of `messages` that identify a record; a migration changes its properties in place."""


@dataclass(frozen=True, slots=True)
class RecordMark:
    """Record of a log: its log offset, and fields that identify it."""

    offset: int
    fingerprint: str


def read_mark(root: Root, plan: LogPlan, offset: int) -> RecordMark | None:
    """Return the record at a log offset, None without one."""
    entry = plan.file_at(offset)
    if entry is None:
        return None
    scan = PointedScan(ScanSegment.whole(root, entry, plan.end), np.array([offset]))
    rows = next(scan.chunks(), None) if scan.open() else None
    batch = None if rows is None else MessageColumns(FINGERPRINT).batch(scan, rows)
    if batch is None:
        return None
    return RecordMark(offset, json.dumps(list(batch.to_pylist()[0].values())))
