"""Exports of random logs, at once and in steps, compared with the naive twin."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_reconciliation.tables.export import export_stores
from spark_reconciliation.tables.schemas import TABLES
from tests.support.naive_tables import BROKER, RandomLog, Tables, expected
from tests.support.scheduled_logs import FILE_BYTES

SCHEMAS = {name: [column.name for column in table.columns] for name, table in TABLES.items()}
KEPT_RECORDS = 12
"""Records before the end of an export that retention does not remove before the next one."""


def tables_of(out: Path) -> Tables:
    return {
        name: sort(ds.dataset(out / name, partitioning="hive").to_table().to_pylist())
        for name in TABLES
    }


def sort(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


@given(
    steps=st.lists(st.tuples(st.integers(0, 23), st.integers(0, 40)), min_size=1, max_size=60),
    ends=st.lists(st.integers(1, 59), max_size=4, unique=True),
    first=st.integers(0, 4),
    removes=st.booleans(),
)
@settings(max_examples=30)
def test_tables_of_random_logs(
    steps: list[tuple[int, int]], ends: list[int], first: int, removes: bool
) -> None:
    made = RandomLog()
    for kind, number in steps:
        made.step(kind, number)
    log = made.log
    base = min(first * FILE_BYTES, log.records[-1].offset // FILE_BYTES * FILE_BYTES)
    if "TIMER_DEL_UNIQKEY" in next(r for r in log.records if r.offset >= base).properties:
        base = 0  # nothing shows what a marker means whose record was removed
    rows = expected(made.events, base, SCHEMAS)
    with tempfile.TemporaryDirectory() as name:
        root, at_once, in_steps = (Path(name) / part for part in ("store", "once", "steps"))
        export_stores([str(log.write(root, first=base))], at_once, [BROKER])
        removed = base
        for number in [*sorted(ends), len(log.records)]:
            end = log.records[min(number, len(log.records)) - 1].end
            if end <= base:
                continue
            log.write(root, end=end, first=removed)
            export_stores([str(root)], in_steps, [BROKER])
            exported = min(number, len(log.records))
            if removes and exported > KEPT_RECORDS:
                removed = max(removed, log.records[exported - KEPT_RECORDS].offset - FILE_BYTES)
        once = tables_of(at_once)
        for table in TABLES:
            assert once[table] == sort(rows[table]), table
        assert tables_of(in_steps) == once
