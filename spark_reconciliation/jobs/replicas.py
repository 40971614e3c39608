"""Comparison of the stores of one broker group: the same records at the same log offsets.

    messages, stores --differences--> offsets in the common range at which the stores differ
    stores           --extents-----> begin and end of each log, and the bytes missing at its end

A replica may lack old files (retention) and the last records (lag). The records between are equal
byte for byte, except one letter: a migration renames DELAY in the record of a level message in
place, independently at each member. The same message in several stores of a group is one message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_reconciliation.engine import F
from spark_reconciliation.scan.roles import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
MISSING, DIFFERENT = "missing", "different"


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
    content = F.xxhash64(*map(_compared, COMPARED)).alias("content")
    records = messages.where("record_size > 0").select("store", "phys_offset", content)
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


def _compared(name: str) -> Column:
    """Return a column; for level messages without the letter that depends on the owner."""
    column = F.col(name)
    if name != "property_text":
        return column
    text = F.decode(column, "ISO-8859-1")
    renamed = F.encode(F.regexp_replace(text, MOVED_LEVEL, "$1DELAY\u0001"), "ISO-8859-1")
    return F.when(F.col("topic") == SCHEDULE_TOPIC, renamed).otherwise(column)
