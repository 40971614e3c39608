"""Closed messages of a former audit, compared with a loop over them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_reconciliation.audit.aggregated_audit import late_bucket as late_column
from spark_reconciliation.engine import F, use_engine_of
from spark_reconciliation.incremental import carry as carrying
from spark_reconciliation.incremental import closed_messages
from spark_reconciliation.incremental.audit_state import TABLES, kind_of
from spark_reconciliation.incremental.carry import Carried, Present, carry, late_bucket
from spark_reconciliation.incremental.closed_messages import (
    COLUMNS,
    TIMER,
    ClosedFiles,
    DeliveredFile,
    has_offsets,
    read_columns,
)
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.scan.store_state import Progress

LOG_MIN, READ_MS, OVERDUE_MS = 300, 5_000, 4_000
LEVELS = {2: ((0, 4), (6, 8))}
Row = tuple[int, int, int]
offsets = st.integers(0, 60).map(lambda number: number * 10)
times = st.integers(3_000, 7_000)
units = st.sampled_from([TIMER, TIMER, (2 << 48) + 3, (2 << 48) + 5, (1 << 48) + 3])
pending_rows = st.lists(st.tuples(offsets, times, units), unique_by=lambda row: row[0], max_size=20)
few = st.sampled_from([1, 3, 1 << 20])  # rows of a file that is not copied
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


@given(
    pending_rows, delivered_rows, st.lists(offsets, max_size=12), st.sampled_from([0, LOG_MIN]), few
)
def test_carrying_equals_a_loop(
    tmp_path_factory: pytest.TempPathFactory,
    pending: list[Row],
    delays: list[Row],
    named: list[int],
    log_min: int,
    least: int,
) -> None:
    delivered = [(offset, offset + more, late_ms) for offset, more, late_ms in delays]
    folder = tmp_path_factory.mktemp("state")
    files = ClosedFiles(folder, 1)
    files.pending.add(*columns_of(sorted(pending)))
    files.delivered.add(*columns_of(sorted(delivered)))
    files.records.add(np.array([7, 900]))
    progress = Progress(levels=LEVELS, read_ms=READ_MS)
    present = Present(log_min, progress, OVERDUE_MS, np.unique(np.array(named, np.int64)))
    saved, next_files = files.close(), ClosedFiles(folder, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrying, "KEPT_ROWS_MIN", least)
        carried = carry(folder, saved, present, next_files)
    kept = next_files.close()
    counts: Counter[tuple[str, int | None]] = Counter()
    records, removed, left = [7, 900], [], ([], [], [])  # type: ignore[var-annotated]
    for row in pending:
        if row[0] >= log_min and (row[0] in named or is_due(row)):
            records.append(row[0])
        elif row[0] >= log_min:
            counts["pending", None] += 1
            left[0].append(row)
    for row in delivered:
        if row[1] >= log_min and row[0] in named:
            records += row[:2]
        elif row[1] >= log_min:
            is_removed = row[0] < log_min
            removed += [row[0]] if is_removed else []
            counts["removed" if is_removed else "ok", None if is_removed else row[2]] += 1
            left[1].append(row)
    assert carried.counts == counts
    assert sorted(np.concatenate(carried.records).tolist()) == sorted(records)
    assert sorted(np.concatenate(carried.removed).tolist()) == sorted(removed)
    for kind, expected in zip(TABLES, left, strict=True):
        rows = rows_of(folder, [name for name in kept if kind_of(name) == kind])
        assert sorted(rows) == sorted(expected)
    changed = len(left[1]) < len(delivered) or any(row[0] < log_min for row in delivered)
    is_kept = "delivered-1.parquet" in kept
    assert is_kept == (least <= len(delivered) and not changed)
    if is_kept:
        late_ms = Counter(row[2] for row in delivered)
        assert kept["delivered-1.parquet"].late_ms == late_ms


def rows_of(folder: Path, names: list[str]) -> list[tuple[int, ...]]:
    groups = [
        np.stack(columns, axis=1) for name in names for columns in read_columns(folder / name)
    ]
    return [tuple(row) for group in groups for row in group.tolist()]


def test_a_group_is_read_only_if_it_may_have_an_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_messages, "ROWS_OF_GROUP", 2)
    file = DeliveredFile(tmp_path / "a.parquet", COLUMNS["delivered"])
    for offset in (10, 30):
        file.add(*np.array([[offset, offset + 8], [90, 91], [0, 0]]))
    assert file.close().lowest == 10
    reads, read = list[int](), pq.ParquetFile.read_row_group

    def read_noted(parquet: Any, number: int, *names: Any) -> Any:
        reads.append(number)
        return read(parquet, number, *names)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_noted)
    found: dict[tuple[int, ...], tuple[bool, list[int]]] = {}
    cases: list[list[int]] = [[], [9], [10], [12, 20], [25, 38], [39]]
    for sought in cases:
        reads.clear()
        is_there = has_offsets(tmp_path / "a.parquet", np.array(sought, np.int64))
        found[tuple(sought)] = is_there, list(reads)
    assert found == {
        (): (False, []),
        (9,): (False, []),
        (10,): (True, [0]),
        (12, 20): (False, [0]),
        (25, 38): (True, [1]),
        (39,): (False, []),
    }


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
