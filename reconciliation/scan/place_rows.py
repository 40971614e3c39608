"""Rows of `messages` that are no records: unreadable places, clock steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from reconciliation.audit.clock_steps import Step
from reconciliation.scan.planning import Finding
from reconciliation.scan.tables import ROLE_CLOCK, ROLE_GAP


def gap_rows(
    schema: pa.Schema, findings: Sequence[Finding], number: int = 0
) -> pa.RecordBatch | None:
    """Return what could not be read as rows of `messages`: a place, a size, a kind and why."""
    if "damage" not in schema.names or not findings:
        return None
    facts = [
        _place(f, number)
        | {"role": ROLE_GAP, "damage": f.kind, "record_size": min(f.size, 0x7FFFFFFF)}
        for f in findings
    ]
    rows = [{name: fact.get(name) for name in schema.names} for fact in facts]
    return pa.RecordBatch.from_pylist(rows, schema)


def clock_rows(schema: pa.Schema, steps: Sequence[Step], number: int = 0) -> pa.RecordBatch | None:
    """Return where the clock was set back as rows of `messages` of the role ROLE_CLOCK."""
    facts = [
        _place(step.finding, number)
        | {"role": ROLE_CLOCK, "out_ms": step.before_ms, "store_ms": step.after_ms}
        | {"passed": int(step.corroborated)}
        for step in steps
    ]
    rows = [{name: fact.get(name) for name in schema.names} for fact in facts]
    return pa.RecordBatch.from_pylist(rows, schema) if rows else None


def _place(found: Finding, number: int) -> dict[str, Any]:
    at = found.base + found.offset if found.base >= 0 else None
    return {
        "store": found.store, "store_id": number, "phys_offset": at, "file": found.file,
        "file_offset": found.offset, "note": found.text,
    }  # fmt: skip
