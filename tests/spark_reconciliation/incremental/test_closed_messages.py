"""Closed messages of random buckets, compared with a loop; their files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_reconciliation.audit.plain_sums import (
    NO_PLACE,
    PLACED_WORDS,
    BucketRows,
    add_up,
    by_bucket,
)
from spark_reconciliation.audit.tally import KNOWN, LEVEL, PASSED, REMOVED, SENT, TOUCHED
from spark_reconciliation.incremental import closed_messages
from spark_reconciliation.incremental.closed_messages import (
    TIMER,
    ClosedFiles,
    Closing,
    ColumnFile,
    read_columns,
)

LATE_MS, NOW_MS, LOG_MIN, COVERED_END = 50, 10_000, 200, 800
Record = tuple[int, int, int, int, int]
"""Key, tally, content, time, place."""


def held(key: int, due_ms: int, place: int, *bits: int) -> Record:
    return (key, 1 + sum(1 << bit for bit in bits), 0, -due_ms, place)


def sent(key: int, stored_ms: int, offset: int, content: int = 0) -> Record:
    return (key, 1 << SENT, content, stored_ms, offset)


def naive(records: list[Record]) -> dict[str, set[tuple[int, ...]]]:
    """Return the rows of each file, message by message."""
    rows: dict[str, set[tuple[int, ...]]] = {"pending": set(), "delivered": set(), "records": set()}
    for key in {record[0] for record in records}:
        own = [record for record in records if record[0] == key]
        pending = [record for record in own if record[1] & 0xFF]
        deliveries = [record for record in own if record[1] >> SENT]
        others = [record[1] for record in own if record not in pending + deliveries]
        counts = (len(pending), len(deliveries))
        if 1 << TOUCHED not in others and counts == (0, 1) and key < LOG_MIN:
            rows["delivered"].add((key, deliveries[0][4], 0))
        elif not others and counts == (1, 1) and is_fine(pending[0], deliveries[0]):
            rows["delivered"].add((key, deliveries[0][4], pending[0][3] + deliveries[0][3]))
        elif not others and counts == (1, 0) and is_waiting(pending[0]):
            _, tally, _, minus_due_ms, place = pending[0]
            is_level = tally >> LEVEL & 1
            rows["pending"].add((key, -minus_due_ms, place) if is_level else (key, place, TIMER))
        else:
            rows["records"] |= {(key,) for _ in pending} | {(one[4],) for one in deliveries}
    return rows


def is_fine(pending: Record, delivery: Record) -> bool:
    late_ms = pending[3] + delivery[3]
    return not delivery[2] and 0 <= late_ms <= LATE_MS and delivery[4] < COVERED_END


def is_waiting(pending: Record) -> bool:
    key, tally, _, minus_due_ms, place = pending
    not_due = not tally >> PASSED & 1 and LATE_MS - minus_due_ms >= NOW_MS
    return not_due and key < COVERED_END and not (tally >> LEVEL & 1 and place == NO_PLACE)


def read(folder: Path, name: str) -> list[tuple[int, ...]]:
    groups = [np.stack(columns, axis=1) for columns in read_columns(folder / name)]
    return [tuple(row) for group in groups for row in group.tolist()]


keys = st.integers(0, 12).map(lambda number: number * 83)
offsets = st.integers(0, 1_000)
times = st.integers(NOW_MS - 80, NOW_MS + 80)
flags = st.sampled_from([(), (KNOWN,), (KNOWN, PASSED), (LEVEL,), (LEVEL, KNOWN, PASSED)])
places = st.sampled_from([NO_PLACE, 5, 700, (3 << 48) + 9])
records = st.one_of(
    st.builds(
        lambda key, due, place, bits: held(key, due, place, *bits), keys, times, places, flags
    ),
    st.builds(sent, keys, times, offsets, st.sampled_from([0, 0, 0, 1])),
    st.builds(lambda key: (key, 1 << TOUCHED, 0, 0, 0), keys),
    st.builds(lambda key: (key, 1 << REMOVED, 0, 0, 0), keys),
)


@given(st.lists(records, max_size=40), st.integers(1, 3))
def test_closing_equals_a_loop(
    tmp_path_factory: pytest.TempPathFactory, made: list[Record], count: int
) -> None:
    pairs = {(record[0], record[1] >> TOUCHED & 1) for record in made}
    once = [r for n, r in enumerate(made) if not r[1] >> TOUCHED & 1 or r not in made[:n]]
    assert pairs == {(record[0], record[1] >> TOUCHED & 1) for record in once}
    folder = tmp_path_factory.mktemp("closed")
    files = ClosedFiles(folder, 1)
    closing = Closing(files, LOG_MIN, COVERED_END)
    whole = np.array(
        [(key, tally, content, 0, ms, place) for key, tally, content, ms, place in once], np.int64
    ).reshape(-1, PLACED_WORDS)
    batch = by_bucket(whole, count)
    for number in range(count):
        options = {"late_ms": LATE_MS, "as_of_ms": (NOW_MS,), "words": PLACED_WORDS}
        list(add_up([batch.slice(number, 1)], note=closing.take, **options))
    names = files.close()
    expected = naive(once)
    found = {name.partition("-")[0]: read(folder, name) for name in names}
    assert {kind: set(rows) for kind, rows in found.items()} == expected
    for kind in ("pending", "delivered"):
        assert len(found[kind]) == len(expected[kind])


def test_groups_of_rows_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_messages, "ROWS_OF_GROUP", 4)
    file = ColumnFile(tmp_path / "a.parquet", ("offset", "time_ms"))
    for low in (7, 4, 1, 9):
        offset = np.array([low, low + 1])
        file.add(offset, -offset)
    file.add(np.array([], np.int64), np.array([], np.int64))
    file.add(np.array([3]), np.array([-3]))
    file.close()
    groups = [columns[0].tolist() for columns in read_columns(tmp_path / "a.parquet")]
    assert groups == [[4, 5, 7, 8], [1, 2, 9, 10], [3]]
    assert all((time == -offset).all() for offset, time in read_columns(tmp_path / "a.parquet"))


@pytest.mark.parametrize("number", range(3))
def test_files_that_cannot_be_created_leave_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, paths = pq.ParquetWriter, list[Path]()

    def make(path: Path, *words: Any, **more: Any) -> pq.ParquetWriter:
        paths.append(path)
        path.touch()
        if len(paths) > number:
            raise OSError(errno.ENOSPC, "Error writing bytes to file")
        return writer(path, *words, **more)

    monkeypatch.setattr(pq, "ParquetWriter", make)
    with pytest.raises(OSError, match="No space left") as failure:
        ClosedFiles(tmp_path, 3)
    assert failure.value.filename == str(paths[-1])
    assert list(tmp_path.iterdir()) == []


def test_abandoned_files_leave_nothing(tmp_path: Path) -> None:
    files = ClosedFiles(tmp_path, 3)
    files.pending.add(*(np.array([1]),) * 3)
    files.abandon()
    assert list(tmp_path.iterdir()) == []
    files.abandon()


def test_rows_of_a_bucket_are_those_of_its_records() -> None:
    """The sums and masks of `BucketRows` belong to the same messages as `first`."""
    rows: list[BucketRows] = []
    made = [held(100, NOW_MS, 5, KNOWN), sent(100, NOW_MS + 7, 300), held(400, NOW_MS + 9, 6)]
    whole = np.array([(k, t, c, 0, ms, p) for k, t, c, ms, p in made], np.int64)
    batch = by_bucket(whole, 1)
    options = {"late_ms": LATE_MS, "as_of_ms": (NOW_MS,), "words": PLACED_WORDS}
    list(add_up([batch], note=rows.append, **options))
    [one] = rows
    assert one.records[0].tolist() == [100, 100, 400]
    assert one.first.tolist() == [0, 2]
    assert one.sums[:, 0].tolist() == [100, 400]
    assert (one.delivered.tolist(), one.pending.tolist()) == ([True, False], [False, True])
