"""Generator of docs/reference/tables.md: the schemas of the exported tables."""

from __future__ import annotations

from spark_reconciliation.tables.schemas import DAY, TABLES, TableSchema


def tables_page(generated: str) -> str:
    """Return the page.

    Args:
        generated: Note for readers of its source.
    """
    lines = [
        "# Exported tables",
        "",
        generated,
        "",
        "`duemq reconcile export` writes these tables as Parquet",
        "([how to](../how-to/nightly-tables.md)). The data source `duemq` of Spark returns all but",
        "`lateness` directly from a store.",
        "",
        "Times are ms since the epoch (UTC); `timestamp_millis(due_ms)` is a timestamp of Spark.",
        "A value that a record lacks is null. `broker` and `log_offset` identify a record. Each",
        f"table has the partition column `{DAY}` (`yyyy-mm-dd`, UTC). The version grows with each",
        "change of the columns; an export into tables of another version is refused.",
        "",
    ]
    for name, table in TABLES.items():
        lines += _section(name, table)
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, table: TableSchema) -> list[str]:
    rows = [f"| `{column.name}` | {column.kind} | {column.text} |" for column in table.columns]
    return [
        f"## {name}",
        "",
        f"{table.text} Version {table.version}; `{DAY}` is the day of `{table.time}`.",
        "",
        "| column | type | meaning |",
        "|---|---|---|",
        *rows,
        "",
    ]
