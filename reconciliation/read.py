"""Tables of stores as DataFrames, and an audit of them in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from reconciliation.source import FORMAT, Part, StoreReader, wanted_of
from reconciliation.tables import TABLES
from reconciliation.verdicts import SCHEDULE_TOPIC, TIMER_TOPIC, AuditConfig, audit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

QUEUE_COLUMNS = ("topic", "phys_offset", "queue_offset", "store_id", "found", "damage")


def read_table(
    spark: SparkSession,
    paths: Sequence[str],
    table: str,
    columns: Sequence[str] = (),
    **options: str | int,
) -> DataFrame:
    """Return some columns of a table, all of them by default. Options: see `source`.

    The log's end is that of now. Where Spark Connect is between, the server looks for it when the
    table is used, as it does for `spark.read`.

    Raises:
        UsageError: A path has no store, or an option is wrong.
    """
    kinds = dict(TABLES[table])
    schema = ", ".join(f"{name} {kinds[name]}" for name in columns or kinds)
    given = {"path": ",".join(paths), "table": table} | {k: str(v) for k, v in options.items()}
    if is_remote():
        return spark.read.format(FORMAT).schema(schema).options(**given).load()
    reader = StoreReader(wanted_of(given), list(columns or kinds))
    parts = tuple(reader.partitions())
    one_each = spark.range(0, len(parts), 1, len(parts))
    return one_each.mapInArrow(partial(_read_parts, reader, parts), schema)


def _read_parts(
    reader: StoreReader, parts: Sequence[Part], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the parts of some numbers: what a worker does."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from reader.read(parts[number])


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
