"""Comparison of the stores of one broker group: the same records at the same log offsets.

    messages, stores --differences--> offsets in the common range at which the stores differ
    stores           --extents-----> begin and end of each log, and the bytes missing at its end

A replica may lack old files (retention) and the last records (lag). The records between are equal
byte for byte, except one letter: a migration renames DELAY in the record of a level message in
place, independently at each member. The same message in several stores of a group is one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from duemq_common.topics import SCHEDULE_TOPIC
from spark_reconciliation.engine import F
from spark_reconciliation.scan.store_groups import StoreGroup
from spark_reconciliation.scan.tables import schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COMPARED: Final = (
    "phys_offset",
    "record_size",
    "topic",
    "queue_id",
    "queue_offset",
    "store_ms",
    "born_ms",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_offset",
    "body_crc",
    "property_text",
    "body",
)
COLUMNS: Final = ("store", *COMPARED)
"""Columns of `messages` that `differences` reads."""
MOVED_LEVEL: Final = "(^|\u0002)DELAy\u0001"
OWN_LEVEL: Final = "\\1DELAY\u0001"
MISSING, DIFFERENT = "missing", "different"
SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class LogRange:
    """Row of `extents`."""

    store: str
    log_min: int
    log_end: int
    behind: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """Row of `differences`."""

    phys_offset: int
    verdict: str
    have: list[str]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Comparison of the stores of one group in an audit.

    Attributes:
        store: Store that was audited.
        logs: Range of each log.
        differing: Number of log offsets at which the stores differ.
        examples: The first of these.
    """

    store: str
    logs: list[LogRange]
    differing: int
    examples: list[Divergence]


def compare_groups(spark: SparkSession, groups: Sequence[StoreGroup]) -> tuple[GroupResult, ...]:
    """Compare the stores of each group that has several."""
    from spark_reconciliation.spark.read import read_table

    results = []
    for group in groups:
        if not group.copies:
            continue
        paths = (group.store, *group.copies)
        stores = read_table(spark, paths, "stores").persist()
        rows = differences(read_table(spark, paths, "messages", COLUMNS), stores).persist()
        count = rows.count()
        first = rows.limit(SHOWN_MAX).collect() if count else []
        examples = [Divergence(**row.asDict()) for row in first]
        logs = [LogRange(**row.asDict()) for row in extents(stores).collect()]
        results.append(GroupResult(group.store, logs, count, examples))
        for frame in (rows, stores):
            frame.unpersist()
    return tuple(results)


def extents(stores: DataFrame) -> DataFrame:
    """Return the range of each log.

    Args:
        stores: The table `stores`.
    Returns:
        store, log_min, log_end, behind (bytes that another store has after its end).
    """
    longest = stores.agg(F.max("log_end").alias("longest"))
    ranges = stores.crossJoin(longest).withColumn("behind", F.col("longest") - F.col("log_end"))
    return ranges.select("store", "log_min", "log_end", "behind").orderBy("store")


def differences(messages: DataFrame, stores: DataFrame) -> DataFrame:
    """Return the records that differ between the stores of a group, in order.

    Args:
        messages: `COLUMNS` of the table `messages`.
        stores: The table `stores`.
    Returns:
        phys_offset, verdict (`missing`: some stores have no record there; `different`: the records
        differ), have (the stores with a record there).
    """
    common = stores.agg(
        F.max("log_min").alias("common_min"),
        F.min("log_end").alias("common_end"),
        F.count("*").alias("count"),
    )
    schema = schema_of("messages", COLUMNS)
    texts = messages.where("record_size > 0").select(*COLUMNS).mapInArrow(without_owner, schema)
    records = texts.select("store", "phys_offset", F.xxhash64(*COMPARED).alias("content"))
    in_common = (F.col("phys_offset") >= F.col("common_min")) & (
        F.col("phys_offset") < F.col("common_end")
    )
    by_offset = records.crossJoin(F.broadcast(common)).where(in_common).groupBy("phys_offset")
    counts = by_offset.agg(
        F.count("*").alias("stores"),
        F.countDistinct("content").alias("contents"),
        F.first("count").alias("count"),
        F.sort_array(F.collect_list("store")).alias("have"),
    )
    is_missing = F.col("stores") < F.col("count")
    verdict = F.when(is_missing, MISSING).when(F.col("contents") > 1, DIFFERENT)
    named = counts.withColumn("verdict", verdict).where("verdict is not null")
    return named.select("phys_offset", "verdict", "have").orderBy("phys_offset")


def without_owner(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return level messages without the letter that depends on their owner. Runs on a worker."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        texts = batch.column("property_text")
        renamed = pc.replace_substring_regex(
            texts.cast(pa.binary()), pattern=MOVED_LEVEL, replacement=OWN_LEVEL
        )
        are_levels = pc.fill_null(pc.equal(batch.column("topic"), SCHEDULE_TOPIC), False)
        index = batch.schema.get_field_index("property_text")
        yield batch.set_column(
            index, batch.schema.field(index), pc.if_else(are_levels, renamed, texts)
        )
