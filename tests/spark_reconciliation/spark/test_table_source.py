"""`format("duemq")` has the rows of an export; as a stream, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from duemq_common.errors import UsageError
from spark_reconciliation.spark.table_source import TableSource
from spark_reconciliation.tables.schemas import OF_LOG, TABLES
from tests.spark_reconciliation.tables.test_model import SCHEMAS, sort
from tests.support.naive_tables import BROKER, RandomLog, expected
from tests.support.scheduled_logs import FILE_BYTES


def random_log() -> RandomLog:
    made = RandomLog()
    for number in range(80):
        made.step(number * 7 % 24, number * 5 % 41)
    return made


def source(root: Path, table: str, **options: str) -> TableSource:
    return TableSource({"path": str(root), "table": table, "brokers": BROKER, **options})


def schema_of(table: str) -> StructType:
    kinds = {"string": StringType(), "bigint": LongType(), "int": IntegerType()}
    columns = TABLES[table].columns
    return StructType([StructField(one.name, kinds[one.kind]) for one in columns])


def stream(root: Path, table: str, **options: str) -> Any:
    return source(root, table, **options).streamReader(schema_of(table))


def read(reader: Any, parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def without_day(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sort([{name: row[name] for name in row if name != "day"} for row in rows])


@pytest.mark.sampled
@pytest.mark.parametrize("table", OF_LOG)
def test_rows_of_a_store(tmp_path: Path, table: str) -> None:
    made = random_log()
    made.log.write(tmp_path)
    reader = source(tmp_path, table, partitionBytes="3000").reader(schema_of(table))
    parts = reader.partitions()
    assert len(parts) > 4
    assert sort(read(reader, parts)) == without_day(expected(made.events, 0, SCHEMAS)[table])


@pytest.mark.sampled
@pytest.mark.parametrize("table", OF_LOG)
def test_a_stream_of_a_growing_log(tmp_path: Path, table: str) -> None:
    made, rows, start = random_log(), list[dict[str, Any]](), dict[str, int]()
    for number in (3, 40, 41, len(made.log.records)):
        made.log.write(tmp_path, end=made.log.records[number - 1].end)
        reader = stream(tmp_path, table)
        start = start or reader.initialOffset()
        end = reader.latestOffset(start)
        rows += read(reader, reader.partitions(start, end))
        start = end
    assert sort(rows) == without_day(expected(made.events, 0, SCHEMAS)[table])


def test_a_stream_notices_removed_records(tmp_path: Path) -> None:
    made = random_log()
    made.log.write(tmp_path, first=2 * FILE_BYTES)
    start = {str(tmp_path): 0}
    reader = stream(tmp_path, "scheduled")
    with pytest.raises(UsageError, match="acceptGap=true continues"):
        reader.partitions(start, reader.latestOffset(start))
    reader = stream(tmp_path, "scheduled", acceptGap="true")
    assert read(reader, reader.partitions(start, reader.latestOffset(start)))


@pytest.mark.parametrize("kept", [40, 5])
def test_a_stream_notices_a_truncated_log(tmp_path: Path, kept: int) -> None:
    """Of the records after the truncation, it would read those after its former end only."""
    made, other = random_log(), RandomLog()
    made.log.write(tmp_path, end=made.log.records[39].end)
    reader = stream(tmp_path, "scheduled")
    start = reader.latestOffset(reader.initialOffset())
    for number in range(200):
        other.step(number * 5 % 24, number * 3 % 37)
    log = made.log if kept == 40 else other.log
    log.write(tmp_path)
    end = reader.latestOffset(start)
    assert end[str(tmp_path)] > start[str(tmp_path)]
    if kept == 40:
        assert reader.partitions(start, end)
        return
    with pytest.raises(UsageError, match=r"was truncated: .*Begin a new stream"):
        reader.partitions(start, end)


def test_missing_and_unreadable_records_are_noticed(tmp_path: Path) -> None:
    made = random_log()
    made.log.write(tmp_path)
    file, other = (tmp_path / "commitlog" / f"{n * FILE_BYTES:020d}" for n in (2, 3))
    file.write_bytes(b"\1" * FILE_BYTES)
    streamed = stream(tmp_path, "scheduled")
    start, end = streamed.initialOffset(), streamed.latestOffset()
    whole: Any = source(tmp_path, "scheduled").reader(schema_of("scheduled"))
    for reader, arguments in ((streamed, (start, end)), (whole, ())):
        with pytest.raises(UsageError, match="acceptGap=true continues without these records"):
            read(reader, reader.partitions(*arguments))
    other.unlink()
    for reader, arguments in ((streamed, (start, end)), (whole, ())):
        with pytest.raises(UsageError, match="acceptGap=true continues without them"):
            reader.partitions(*arguments)
    reader = source(tmp_path, "scheduled", acceptGap="true").reader(schema_of("scheduled"))
    assert read(reader, reader.partitions())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs the option path"),
        ({"path": "/s", "table": "lateness"}, "has no table lateness; there are scheduled"),
        ({"path": "/s", "topic": "T"}, "unknown option topic"),
        ({"path": "/s", "partitionBytes": "0"}, "is not a number of bytes"),
        ({"path": "/a/s,/b/s"}, "brokers need different names"),
    ],
)
def test_invalid_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        TableSource(options).schema()
