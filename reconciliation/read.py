"""Tables of stores as DataFrames, and an audit of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reconciliation.source import FORMAT
from reconciliation.tables import TABLES
from reconciliation.verdicts import COLUMNS, AuditConfig, audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(
    spark: SparkSession,
    paths: Sequence[str],
    table: str,
    columns: Sequence[str] = (),
    **options: str | int,
) -> DataFrame:
    """Return some columns of a table, all of them by default. Options: see `source`."""
    kinds = dict(TABLES[table])
    schema = ", ".join(f"{name} {kinds[name]}" for name in columns or kinds)
    reader = spark.read.format(FORMAT).schema(schema).option("path", ",".join(paths))
    for key, value in (options | {"table": table}).items():
        reader = reader.option(key, str(value))
    return reader.load()


def audit_stores(
    spark: SparkSession, paths: Sequence[str], config: AuditConfig | None = None
) -> tuple[DataFrame, DataFrame]:
    """Return the verdicts about stores, and what of their logs could not be read.

    Both are computed when they are used; the rows read are kept until the session ends.
    """
    messages = read_table(spark, paths, "messages", COLUMNS).persist()
    queues = read_table(spark, paths, "consume_queue")
    cursors = read_table(spark, paths, "cursors")
    damaged = messages.where("damage is not null and damage != 'body-crc'")
    return audit(messages, queues, cursors, config), damaged.select(
        "store", "phys_offset", "damage"
    )
