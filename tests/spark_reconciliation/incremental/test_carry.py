"""Closed messages of a former audit, compared with a loop over them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_reconciliation.audit.aggregated_audit import late_bucket as late_column
from spark_reconciliation.engine import F, use_engine_of
from spark_reconciliation.incremental.carry import Carried, Present, carry, late_bucket
from spark_reconciliation.incremental.closed_messages import TIMER, ClosedFiles, read_columns
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.scan.store_state import Progress

LOG_MIN, READ_MS, OVERDUE_MS = 300, 5_000, 4_000
LEVELS = {2: ((0, 4), (6, 8))}
Row = tuple[int, int, int]
offsets = st.integers(0, 60).map(lambda number: number * 10)
times = st.integers(3_000, 7_000)
units = st.sampled_from([TIMER, TIMER, (2 << 48) + 3, (2 << 48) + 5, (1 << 48) + 3])
pending_rows = st.lists(st.tuples(offsets, times, units), unique_by=lambda row: row[0], max_size=20)
delivered_rows = st.lists(
    st.tuples(offsets, st.integers(0, 400), st.integers(0, 3)),
    unique_by=lambda row: row[0],
    max_size=20,
)


def is_due(row: Row) -> bool:
    _, time_ms, unit = row
    if unit == TIMER:
        return time_ms < max(READ_MS, OVERDUE_MS)
    queue_id, number = divmod(unit, 1 << 48)
    passed = any(first <= number < end for first, end in LEVELS.get(queue_id, ()))
    return passed or time_ms < OVERDUE_MS


def columns_of(rows: list[Row]) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(-1, 3).T.copy())


@given(pending_rows, delivered_rows, st.lists(offsets, max_size=12))
def test_carrying_equals_a_loop(
    tmp_path_factory: pytest.TempPathFactory,
    pending: list[Row],
    delays: list[Row],
    named: list[int],
) -> None:
    delivered = [(offset, offset + more, late_ms) for offset, more, late_ms in delays]
    folder = tmp_path_factory.mktemp("state")
    files = ClosedFiles(folder, 1)
    files.pending.add(*columns_of(sorted(pending)))
    files.delivered.add(*columns_of(sorted(delivered)))
    files.records.add(np.array([7, 900]))
    names = list(files.close())
    progress = Progress(levels=LEVELS, read_ms=READ_MS)
    present = Present(LOG_MIN, progress, OVERDUE_MS, np.unique(np.array(named, np.int64)))
    next_files = ClosedFiles(folder, 2)
    carried = carry(folder, names, present, next_files)
    kept = next_files.close()
    counts: Counter[tuple[str, int | None]] = Counter()
    records, removed, left = [7, 900], [], ([], [], [])  # type: ignore[var-annotated]
    for row in pending:
        if row[0] >= LOG_MIN and (row[0] in named or is_due(row)):
            records.append(row[0])
        elif row[0] >= LOG_MIN:
            counts["pending", None] += 1
            left[0].append(row)
    for row in delivered:
        if row[1] >= LOG_MIN and row[0] in named:
            records += row[:2]
        elif row[1] >= LOG_MIN:
            is_removed = row[0] < LOG_MIN
            removed += [row[0]] if is_removed else []
            counts["removed" if is_removed else "ok", None if is_removed else row[2]] += 1
            left[1].append(row)
    assert carried.counts == counts
    assert sorted(np.concatenate(carried.records).tolist()) == sorted(records)
    assert sorted(np.concatenate(carried.removed).tolist()) == sorted(removed)
    for name, expected in zip(kept, left, strict=True):
        groups = [np.stack(columns, axis=1).tolist() for columns in read_columns(folder / name)]
        assert sorted(tuple(row) for rows in groups for row in rows) == sorted(expected)


def test_lateness_is_rounded_as_in_a_query() -> None:
    values = [0, 1, 4_095, 4_096, 4_097, 8_191, 8_192, 9_001, 1 << 20, (1 << 31) - 1]
    session = LocalSession()
    try:
        with use_engine_of(session):
            frame = session.createDataFrame([(value,) for value in values], "late bigint")
            rows = frame.select(late_column(F.col("late")).alias("bucket")).collect()
    finally:
        session.stop()
    assert [late_bucket(value) for value in values] == [row["bucket"] for row in rows]


def test_rows_of_counts() -> None:
    carried = Carried()
    carried.counts.update({("ok", 8_192): 2, ("ok", 8_193): 1, ("ok", 0): 4, ("pending", None): 3})
    rows = {(row["verdict"], row["late"]): (row["count"], row["max"]) for row in carried.rows()}
    assert rows == {("ok", 8_192): (3, 8_193), ("ok", 0): (4, 0), ("pending", None): (3, None)}
