"""Tables of stores as DataFrames, and an audit of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reconciliation.source import FORMAT
from reconciliation.tables import TABLES
from reconciliation.verdicts import SCHEDULE_TOPIC, TIMER_TOPIC, AuditConfig, audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE_COLUMNS = ("topic", "phys_offset", "queue_offset", "store_id", "found", "damage")


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
    spark: SparkSession,
    paths: Sequence[str],
    config: AuditConfig | None = None,
    *,
    ids: bool = True,
) -> tuple[DataFrame, DataFrame]:
    """Return the verdicts about stores, and what of their files could not be read.

    What is rare is looked for at once, the verdicts are computed when they are used: persist them
    to use them twice. Without `ids` nobody's `unique_id` is told, which is faster.
    """

    def messages(columns: Sequence[str], roles: Sequence[int]) -> DataFrame:
        numbers = ",".join(str(role) for role in roles)
        return read_table(spark, paths, "messages", columns, roles=numbers)

    queues = read_table(
        spark, paths, "consume_queue", QUEUE_COLUMNS, topics=f"{SCHEDULE_TOPIC},{TIMER_TOPIC}"
    )
    return audit(messages, queues, read_table(spark, paths, "stores"), config, ids=ids)
