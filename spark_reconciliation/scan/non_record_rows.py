"""Rows of `messages` that are not records: unreadable ranges, clock steps, removed records."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_reconciliation.arrays import Numbers
from spark_reconciliation.audit.clock_steps import ClockStep
from spark_reconciliation.scan.planning import Finding
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.tables import batch_of_columns, batch_of_rows


def gap_rows(
    schema: pa.Schema, findings: Sequence[Finding], number: int = 0
) -> pa.RecordBatch | None:
    """Return unreadable ranges as rows of `messages`: position, size, kind and reason."""
    if "damage" not in schema.names or not findings:
        return None
    facts = [
        _position_of(f, number)
        | {"role": Role.GAP, "damage": f.kind, "record_size": min(f.size, 0x7FFFFFFF)}
        for f in findings
    ]
    return batch_of_rows(schema, facts)


def clock_rows(
    schema: pa.Schema, steps: Sequence[ClockStep], number: int = 0
) -> pa.RecordBatch | None:
    """Return clock steps as rows of `messages` with the role Role.CLOCK."""
    facts = [
        _position_of(step.finding, number)
        | {"role": Role.CLOCK, "out_ms": step.before_ms, "store_ms": step.after_ms}
        | {"passed": int(step.corroborated)}
        for step in steps
    ]
    return batch_of_rows(schema, facts) if facts else None


def removed_rows(
    schema: pa.Schema, number: int, offsets: Numbers, role: int, slots_ms: Numbers | None = None
) -> pa.RecordBatch:
    """Return log offsets of removed records as rows of the role `role`.

    Args:
        slots_ms: Slots of their timers, in ms; None: unknown.
    """
    columns = {"store_id": number, "phys_offset": offsets, "role": role, "out_ms": slots_ms}
    return batch_of_columns(schema, columns | {"prepared_offset": 0})


def _position_of(finding: Finding, number: int) -> dict[str, object]:
    position = finding.base + finding.offset if finding.base >= 0 else None
    return {
        "store": finding.store,
        "store_id": number,
        "phys_offset": position,
        "file": finding.file,
        "file_offset": finding.offset,
        "note": finding.text,
    }
