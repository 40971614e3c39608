"""Rows of the audit's tables, read without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_reconciliation.audit.table_reader import TableReader
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.scan.tables import TABLES


def read_rows(path: object, table: str, *columns: str, **options: str) -> list[dict[str, Any]]:
    """Return rows of a store as Spark gets them; without `columns`, all columns."""
    names = list(columns) or [name for name, _ in TABLES[table]]
    reader = TableReader(parse_options({"path": str(path), "table": table} | options), names)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []
