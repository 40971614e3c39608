"""Proof of a migration: every transferred message was delivered once, at its due time.

    journal --> units transferred --+
    log     --> timers routed     --+--verdicts--> proven or not, and why

A message is proven if its verdict is ok, pending, cancelled or moved, and its due time is the same
as before the migration, in the unit of its level's queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duemq_common.topics import TIMER_TOPIC
from spark_reconciliation.audit.rules import CLEAN
from spark_reconciliation.engine import F
from spark_reconciliation.scan.ownership_tables import read_journals, routes_of, transferred_units

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DRAINED, ROUTED = "drained", "routed"
EARLIER: Final = "it had another due time before the migration"
KEYS: Final = ("store", "migration", "level")


def migration_proof(
    verdicts: DataFrame, messages: DataFrame, schedule: DataFrame, migration_id: str = ""
) -> DataFrame:
    """Return a row for each message of a migration: proven or not; an action.

    Args:
        verdicts: Result of `verdicts.audit`.
        messages: store, phys_offset, topic, queue_offset, level, due_ms and body.
        schedule: Table `schedule`.
        migration_id: One migration; empty: all migrations in the log.
    Returns:
        store, migration, level, way (`drained`: transferred, `routed`: sent after the start),
        phys_offset (of the record that changed its owner), promised_ms, due_ms, delivered_ms,
        deliveries, verdict, proven, why.
    """
    journals = read_journals(messages)
    routes = routes_of(schedule, journals)
    drained = transferred_units(schedule, journals, migration_id).withColumn("way", F.lit(DRAINED))
    names = (*KEYS, "way", "phys_offset", "promised_ms")
    moved = drained.select(*names).unionByName(_routed(messages, routes, migration_id, names))
    histories = verdicts.select(
        "store",
        F.explode(F.array_distinct(F.array("root", "leaf"))).alias("phys_offset"),
        "due_ms",
        "delivered_ms",
        "deliveries",
        "verdict",
        "why",
    ).where(F.col("phys_offset").isNotNull())
    rows = moved.join(histories, ["store", "phys_offset"], "left")
    verdict = F.coalesce("verdict", F.lit("lost"))
    # a moved message has a new due time, a cancelled one has none
    same = (F.col("due_ms") == F.col("promised_ms")) | verdict.isin("moved", "cancelled")
    same = F.coalesce(same, F.lit(False))
    kept = verdict.isin(*CLEAN)
    reason = F.when(kept & ~same, EARLIER).otherwise(
        F.coalesce("why", F.lit("the audit has no verdict about it"))
    )
    return rows.withColumns(
        {
            "verdict": verdict,
            "proven": kept & same,
            "why": reason,
            "deliveries": F.coalesce("deliveries", F.lit(0)),
        }
    ).select(
        *KEYS,
        "way",
        "phys_offset",
        "promised_ms",
        "due_ms",
        "delivered_ms",
        "deliveries",
        "verdict",
        "proven",
        "why",
    )


def proof_totals(proof: DataFrame) -> DataFrame:
    """Return the numbers of a proof, a row for each level and way, in order.

    Args:
        proof: Result of `migration_proof`.
    Returns:
        store, migration, level, way, messages, delivered, pending, ended (cancelled, moved),
        not_proven.
    """
    verdict = F.col("verdict")
    totals = proof.groupBy(*KEYS, "way").agg(
        F.count("*").alias("messages"),
        F.count(F.when(F.col("deliveries") > 0, 1)).alias("delivered"),
        F.count(F.when(verdict == "pending", 1)).alias("pending"),
        F.count(F.when(verdict.isin("cancelled", "moved"), 1)).alias("ended"),
        F.count(F.when(~F.col("proven"), 1)).alias("not_proven"),
    )
    return totals.orderBy(*KEYS, "way")


def _routed(
    messages: DataFrame, routes: DataFrame, migration_id: str, names: tuple[str, ...]
) -> DataFrame:
    """Return the timers of level messages that were sent while their level was routed."""
    timers = messages.where((F.col("topic") == TIMER_TOPIC) & F.col("level").isNotNull())
    timers = timers.select(
        "store",
        "phys_offset",
        F.col("level").cast("int").alias("level"),
        F.col("due_ms").alias("promised_ms"),
    )
    both = timers.join(F.broadcast(routes), ["store", "level"]).where(
        F.col("mark_at") < F.col("phys_offset")
    )
    last = F.max_by(F.struct("on", "migration"), "mark_at").alias("last")
    routed_timers = both.groupBy("store", "level", "phys_offset", "promised_ms").agg(last)
    routed_timers = routed_timers.where(F.col("last.on")).withColumn(
        "migration", F.col("last.migration")
    )
    if migration_id:
        routed_timers = routed_timers.where(F.col("migration") == migration_id)
    return routed_timers.withColumn("way", F.lit(ROUTED)).select(*names)
