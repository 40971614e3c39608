"""The log as a stream: every record is in one micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from duemq_common.errors import UsageError
from spark_reconciliation.kernels.columns import follow
from spark_reconciliation.scan import planning
from spark_reconciliation.spark.data_source import StoreSource
from spark_reconciliation.spark.table_source import TableSource
from tests.support.written_logs import FILE_BYTES, LogWriter

SCHEMA = StructType([StructField("phys_offset", LongType()), StructField("damage", StringType())])


def stream(root: Path, **options: str) -> Any:
    return StoreSource({"path": str(root), **options}).streamReader(SCHEMA)


def rows(reader: Any, start: dict[str, int], end: dict[str, int]) -> list[tuple[int, str | None]]:
    found = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += [(row["phys_offset"], row["damage"]) for row in batch.to_pylist()]
    return sorted(found)


@pytest.mark.parametrize("bytes_max", ["700", "1000000"])
def test_each_record_is_read_once_while_the_log_grows(tmp_path: Path, bytes_max: str) -> None:
    log, found = LogWriter(tmp_path), []
    log.add(b"first")
    log.write()
    offset = stream(tmp_path).initialOffset()
    for count in (0, 1, 50, 0, 120):
        for number in range(count):
            log.add(b"x" * (number * 7 % 400))
        log.write()
        reader = stream(tmp_path, partitionBytes=bytes_max)  # as after a restart
        end = reader.latestOffset(offset)
        log.add(b"appended while the batch is read")
        log.write()
        found += rows(reader, offset, end)
        offset = end
    assert found == [(at, None) for at, _ in log.places if at < offset[str(tmp_path)]]
    assert len(found) >= 171


@pytest.mark.parametrize("source", [StoreSource, TableSource])
def test_the_end_is_sought_from_the_last_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any
) -> None:
    """Records that were not on the disk at the last batch may be stale after a crash."""
    log, synced, begun = LogWriter(tmp_path), [0], list[int]()

    def add(count: int) -> int:
        for _ in range(count):
            log.add(b"x" * 30)
        log.write()
        return log.places[-1][0]

    def followed(data: object, pos: int, *others: object) -> object:
        begun.append(pos)
        return follow(data, pos, *others)

    monkeypatch.setattr(planning, "follow", followed)
    monkeypatch.setattr(planning, "_durable", lambda root: synced[0])
    first = add(10)
    reader = source({"path": str(tmp_path)}).streamReader(SCHEMA)
    start = reader.initialOffset()
    second = add(5)
    end = reader.latestOffset(start)
    assert begun == [0, 0], "nothing was on the disk"
    synced[0] = second
    assert reader.latestOffset(end) == end
    assert begun[2:] == [first]
    synced[0], _ = len(log.data), add(5)
    del begun[:]
    end = reader.latestOffset(end)
    assert (begun, end[str(tmp_path)]) == ([second], len(log.data))
    assert reader.partitions(start, end)
    assert len(begun) == 1, "the end of a batch is known"


def test_records_removed_before_are_reported(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for _ in range(100):
        log.add(b"y" * 300)
    folder = log.write() / "commitlog"
    (folder / f"{0:020d}").unlink()
    reader = stream(tmp_path)
    found = rows(reader, {str(tmp_path): 0}, reader.latestOffset())
    assert found == [(0, "missing-file"), *((at, None) for at, _ in log.places if at >= FILE_BYTES)]


def test_a_stream_never_goes_back(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(b"body")
    log.write()
    ahead = {str(tmp_path): 1 << 20}
    assert stream(tmp_path).latestOffset(ahead) == ahead


def test_other_tables_cannot_be_streamed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only the table messages can be streamed"):
        stream(tmp_path, table="cursors")
