"""Proof of a migration: every transferred message was delivered once, at its due time.

    marks --> units handed over   --+
    log   --> timers routed         +--verdicts--> proven or not, and why

A message is proven when its verdict keeps the promise (ok, pending, cancelled, moved) and the
promise is the one that it had before: the due time that its level's queue says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from delivery.ownership import OWNERSHIP_TOPIC
from reconciliation.audit.verdicts import CLEAN, TIMER_TOPIC
from reconciliation.scan.ownership_tables import ROUTE, handed_over, marks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DRAINED, ROUTED = "drained", "routed"
EARLIER: Final = "promised for another time before the migration"
KEYS: Final = ("store", "migration", "level")


def migration_proof(
    verdicts: DataFrame, messages: DataFrame, schedule: DataFrame, migration_id: str = ""
) -> DataFrame:
    """Return a row for each message of a migration: whether its promise was kept.

    Args:
        verdicts: of `verdicts.audit`.
        messages: store, phys_offset, topic, queue_offset, level, due_ms and body.
        schedule: that table.
        migration_id: of one migration; empty: of all that the log tells of.
    Returns:
        store, migration, level, way (`drained`: handed over, `routed`: new ones meanwhile),
        phys_offset (of the record that changed its owner), promised_ms, due_ms, delivered_ms,
        deliveries, verdict, proven, why.
    """
    marks = messages.where(F.col("topic") == OWNERSHIP_TOPIC)
    drained = handed_over(schedule, marks, migration_id).withColumn("way", F.lit(DRAINED))
    names = (*KEYS, "way", "phys_offset", "promised_ms")
    moved = drained.select(*names).unionByName(_routed(messages, marks, migration_id, names))
    histories = verdicts.select(
        "store", F.explode(F.array_distinct(F.array("root", "leaf"))).alias("phys_offset"),
        "due_ms", "delivered_ms", "deliveries", "verdict", "why",
    ).where(F.col("phys_offset").isNotNull())  # fmt: skip
    rows = moved.join(histories, ["store", "phys_offset"], "left")
    told = F.coalesce("verdict", F.lit("lost"))
    # one that was moved by its owner has another promise, and one that waits for nothing has none
    same = (F.col("due_ms") == F.col("promised_ms")) | told.isin("moved", "cancelled")
    same = F.coalesce(same, F.lit(False))
    kept = told.isin(*CLEAN)
    why = F.when(kept & ~same, EARLIER).otherwise(
        F.coalesce("why", F.lit("nothing is known of it"))
    )
    return rows.withColumns(
        {"verdict": told, "proven": kept & same, "why": why,
         "deliveries": F.coalesce("deliveries", F.lit(0))}
    ).select(
        *KEYS, "way", "phys_offset", "promised_ms", "due_ms", "delivered_ms", "deliveries",
        "verdict", "proven", "why",
    )  # fmt: skip


def proof_totals(proof: DataFrame) -> DataFrame:
    """Return the proof in numbers, a row for each level and way, in order.

    Args:
        proof: of `migration_proof`.
    Returns:
        store, migration, level, way, messages, delivered, pending, ended (cancelled, moved),
        not_proven.
    """
    verdict = F.col("verdict")
    found = proof.groupBy(*KEYS, "way").agg(
        F.count("*").alias("messages"),
        F.count(F.when(F.col("deliveries") > 0, 1)).alias("delivered"),
        F.count(F.when(verdict == "pending", 1)).alias("pending"),
        F.count(F.when(verdict.isin("cancelled", "moved"), 1)).alias("ended"),
        F.count(F.when(~F.col("proven"), 1)).alias("not_proven"),
    )
    return found.orderBy(*KEYS, "way")


def _routed(
    messages: DataFrame, marks: DataFrame, migration_id: str, names: tuple[str, ...]
) -> DataFrame:
    """Return the timers that level messages became while their level was routed."""
    routes = marks_of(marks).where(F.col("kind") == ROUTE)
    timers = messages.where((F.col("topic") == TIMER_TOPIC) & F.col("level").isNotNull())
    timers = timers.select(
        "store", "phys_offset", F.col("level").cast("int").alias("level"),
        F.col("due_ms").alias("promised_ms"),
    )  # fmt: skip
    said = F.broadcast(
        routes.select("store", "level", "migration", "on", F.col("phys_offset").alias("mark_at"))
    )
    both = timers.join(said, ["store", "level"]).where(F.col("mark_at") < F.col("phys_offset"))
    last = F.max_by(F.struct("on", "migration"), "mark_at").alias("last")
    found = both.groupBy("store", "level", "phys_offset", "promised_ms").agg(last)
    found = found.where(F.col("last.on")).withColumn("migration", F.col("last.migration"))
    if migration_id:
        found = found.where(F.col("migration") == migration_id)
    return found.withColumn("way", F.lit(ROUTED)).select(*names)
