"""Small files and stores share a task."""

from __future__ import annotations

from spark_reconciliation.audit.table_reader import ScanPart, TableReader
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.scan.planning import PARTITION_BYTES, grouped
from tests.support.golden_stores import golden_store


def test_parts_of_a_small_store_share_a_task() -> None:
    given = {"path": str(golden_store("apache-5.3.3-clean")), "table": "findings"}
    parts = TableReader(parse_options(given), ["file"]).partitions()
    assert len(parts) > 1
    assert sum(map(ScanPart.length, parts)) < PARTITION_BYTES
    assert grouped(parts, PARTITION_BYTES, ScanPart.length) == [tuple(parts)]
    assert grouped(parts, 1, ScanPart.length) == [(part,) for part in parts]
