"""Jobs beside the audit: DataFrame in, DataFrame out, for a notebook or a schedule.

forecast    what falls due in each minute from now on, and how much that is
lateness    how late deliveries were, by hour, level and topic
repair      messages that did not arrive, and where their records lie
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
TO_REPAIR: Final = ("lost", "quarantined")


def forecast(verdicts: DataFrame, *, bucket_ms: int = MINUTE_MS) -> DataFrame:
    """Return how many pending messages fall due in each piece of time, in order.

    Args:
        verdicts: of `verdicts.audit`.
        bucket_ms: length of a piece.
    Returns:
        from_ms (where it begins), topic, messages, per_second (its mean load).
    """
    waiting = verdicts.where(F.col("verdict") == "pending")
    found = waiting.groupBy(_bucket("due_ms", bucket_ms).alias("from_ms"), "topic")
    load = F.col("messages") * 1_000 / F.lit(bucket_ms)
    counted = found.agg(F.count("*").alias("messages")).withColumn("per_second", load)
    return counted.orderBy("from_ms", "topic")


def lateness(verdicts: DataFrame, *, bucket_ms: int = HOUR_MS) -> DataFrame:
    """Return how late deliveries were in each piece of time, in order.

    Returns:
        from_ms, level (null: timers), topic, messages, p50_ms, p99_ms, max_ms.
    """
    sent = verdicts.where(F.col("late_ms").isNotNull())
    found = sent.groupBy(_bucket("delivered_ms", bucket_ms).alias("from_ms"), "level", "topic").agg(
        F.count("*").alias("messages"),
        F.percentile_approx("late_ms", 0.5).alias("p50_ms"),
        F.percentile_approx("late_ms", 0.99).alias("p99_ms"),
        F.max("late_ms").alias("max_ms"),
    )
    return found.orderBy("from_ms", "level", "topic")


def repair(verdicts: DataFrame) -> DataFrame:
    """Return where the records lie of messages that were not delivered and should have been.

    Returns:
        store, phys_offset (of the newest record of each), topic, queue_id, unique_id, due_ms, why.
    """
    wanted = verdicts.where(F.col("verdict").isin(*TO_REPAIR) & F.col("leaf").isNotNull())
    at = F.col("leaf").alias("phys_offset")
    return wanted.select("store", at, "topic", "queue_id", "unique_id", "due_ms", "why")


def _bucket(column: str, bucket_ms: int) -> Column:
    return F.col(column) - F.pmod(F.col(column), F.lit(bucket_ms))
