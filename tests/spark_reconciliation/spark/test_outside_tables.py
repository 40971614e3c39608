"""Values in tables of producers and consumers, read by both engines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

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
