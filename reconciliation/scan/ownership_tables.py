"""Ownership journal as tables: ranges of each step. See `delivery.ownership`.

Expressed in SQL functions, so that a worker needs nothing of ours: a mark's body is JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BODY: Final = (
    "kind string, migration string, level int, first bigint, end bigint, count bigint, "
    "gone bigint, on boolean, excluded array<array<bigint>>, pending array<array<bigint>>, "
    "promised map<string, bigint>, target string"
)
HANDOVER, GIVEBACK, ROUTE = "handover", "giveback", "route"


def marks_of(messages: DataFrame) -> DataFrame:
    """Return the marks among records: store, at (queue offset), phys_offset, and what they say.

    Args:
        messages: store, phys_offset, queue_offset and body of the topic of marks.
    """
    body = F.from_json(F.col("body").cast("string"), BODY)
    found = messages.where("body is not null").select(
        "store", F.col("queue_offset").alias("at"), "phys_offset", body.alias("mark")
    )
    return found.select("store", "at", "phys_offset", "mark.*").where("kind is not null")


def owned_by_timers(schedule: DataFrame, mark_messages: DataFrame) -> DataFrame:
    """Return the units that belong to the timers now: the last mark that names one says so.

    Args:
        schedule: that table; mark_messages: see `marks_of`.
    Returns:
        store, level, queue_offset, migration (whose handover it was).
    """
    marks = marks_of(mark_messages).where(F.col("kind").isin(HANDOVER, GIVEBACK))
    named = _named(schedule, marks)
    last = F.max_by(F.struct("kind", "migration"), "at").alias("last")
    found = named.groupBy("store", "level", "queue_offset").agg(last)
    found = found.where(F.col("last.kind") == HANDOVER)
    return found.select(
        "store", "level", "queue_offset", F.col("last.migration").alias("migration")
    )


def handed_over(schedule: DataFrame, mark_messages: DataFrame, migration_id: str = "") -> DataFrame:
    """Return the units that migrations handed over to the timers, each once.

    Args:
        migration_id: of one migration; empty: of all.
    Returns:
        store, migration, level, queue_offset, phys_offset, promised_ms (its queue's due time, or
        what the mark says where the queue has no time).
    """
    marks = marks_of(mark_messages).where(F.col("kind") == HANDOVER)
    if migration_id:
        marks = marks.where(F.col("migration") == migration_id)
    named = _named(schedule, marks).where(~F.col("settled"))
    told = F.element_at("promised", F.col("queue_offset").cast("string"))
    rows = named.withColumn("promised_ms", F.coalesce(told, "due_ms"))
    keys = ("store", "migration", "level", "queue_offset")
    return rows.groupBy(*keys).agg(
        F.max("phys_offset").alias("phys_offset"), F.max("promised_ms").alias("promised_ms")
    )


def _named(schedule: DataFrame, marks: DataFrame) -> DataFrame:
    """Return units with each mark that names them; `settled`: the mark leaves them out."""
    said = F.broadcast(marks.select(
        "store", "level", "at", "kind", "migration", "promised",
        F.col("first"), F.col("end"), F.coalesce("excluded", F.array()).alias("excluded"),
    ))  # fmt: skip
    unit, one = schedule.alias("unit"), said.alias("one")
    within = (
        (F.col("unit.store") == F.col("one.store"))
        & (F.col("unit.level") == F.col("one.level"))
        & (F.col("unit.queue_offset") >= F.col("one.first"))
        & (F.col("unit.queue_offset") < F.col("one.end"))
    )
    settled = F.expr(
        "exists(one.excluded, r -> unit.queue_offset >= r[0] and unit.queue_offset < r[1])"
    )
    return unit.join(one, within).select(
        "unit.*", "one.at", "one.kind", "one.migration", "one.promised", settled.alias("settled")
    )
