"""Values in tables of producers and consumers, read by both engines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from duemq_common.errors import UsageError
from spark_reconciliation.spark.outside_tables import OutsideTable, read_outside
from tests.spark_reconciliation.conftest import IN_TEST_ALL, session_of_each

engine = session_of_each(IN_TEST_ALL, "local")
NINE = datetime(2026, 11, 28, 9, tzinfo=UTC)


def rows_of(engine: Any, path: Path, zone: str = "") -> list[tuple[str, datetime]]:
    """Return the names and times of a table, in order."""
    rows = read_outside(engine, OutsideTable(str(path), zone=zone)).frame.orderBy("name").collect()
    return [(row["name"], datetime.fromtimestamp(row["time_ms"] / 1_000, UTC)) for row in rows]


@pytest.mark.parametrize("zone", ["", "Europe/Berlin"])
def test_timestamps_that_spark_writes_by_default_are_instants(
    engine: Any, tmp_path: Path, zone: str
) -> None:
    """INT96 has no ns limit in 2262, and a time after it is not one of 1815."""
    last = datetime(9999, 1, 1, tzinfo=UTC)
    times = pa.array([NINE, last], pa.timestamp("us", "UTC"))
    table = pa.table({"id": ["A", "B"], "topic": ["T", "T"], "time": times})
    path = tmp_path / "t.parquet"
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    assert rows_of(engine, path, zone) == [("A", NINE), ("B", last)]


@pytest.mark.parametrize("zone", ["", "Asia/Tokyo"])
@pytest.mark.parametrize(
    "time", ["2026-11-28 10:00:00.000+01", "2026-11-28T09:00:00Z", "2026-11-28 03:30:00-0530"]
)
def test_a_time_with_an_offset_does_not_depend_on_the_zone(
    engine: Any, tmp_path: Path, zone: str, time: str
) -> None:
    """PostgreSQL writes offsets of whole hours with two digits."""
    path = tmp_path / "t.csv"
    path.write_text(f"id,topic,time\nA,T,{time}\n")
    assert rows_of(engine, path, zone) == [("A", NINE)]


@pytest.mark.parametrize("end", [" EST", "+01:00[Europe/Berlin]", " America/New_York", "+99"])
def test_the_unknown_end_of_a_time_is_not_ignored(engine: Any, tmp_path: Path, end: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"id,topic,time\nA,T,2026-11-28T09:00:00{end}\n")
    with pytest.raises(UsageError, match="rows without a valid time in time: 1"):
        rows_of(engine, path, "Asia/Tokyo")


def test_times_without_an_offset_are_those_of_the_zone(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,topic,time\nA,T,2026-11-28 18:00\nB,T,2026-11-29\n")
    second = datetime(2026, 11, 28, 15, tzinfo=UTC)
    assert rows_of(engine, path, "Asia/Tokyo") == [("A", NINE), ("B", second)]


def test_csv_has_doubled_quotes_and_plain_backslashes(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = ("\ufefftime,topic,id", '1764320400000,T,"A""1"", x"', r'1764320400000,T,"B\"')
    path.write_text("\r\n".join(lines), encoding="utf-8")
    assert [name for name, _ in rows_of(engine, path)] == ['A"1", x', "B\\"]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.decimal128(38, 18)])
def test_a_number_with_a_fraction_is_no_name(engine: Any, tmp_path: Path, kind: Any) -> None:
    """pandas writes whole numbers as doubles if one is missing; the text would be 17.0."""
    path = tmp_path / "t.parquet"
    keys = pa.array([17]).cast(kind)
    parquet.write_table(pa.table({"key": keys, "topic": ["T"], "time": [1_764_320_400_000]}), path)
    with pytest.raises(
        UsageError, match=r"the column key has type .*give a text or a whole number"
    ):
        rows_of(engine, path)


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.decimal128(38, 0)])
def test_a_whole_number_is_a_name(engine: Any, tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "t.parquet"
    keys = pa.array([17]).cast(kind)
    parquet.write_table(pa.table({"key": keys, "topic": ["T"], "time": [1_764_320_400_000]}), path)
    assert [name for name, _ in rows_of(engine, path)] == ["17"]
