"""Rules of the audit: ordered conditions that turn a history into a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_reconciliation.audit.tally import STORE_BITS
from spark_reconciliation.engine import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_reconciliation.audit.audit_config import AuditConfig

VERDICTS: Final = (
    "corrupt",
    "moved_twice",
    "duplicated",
    "cancelled_but_fired",
    "misrouted",
    "unreachable",
    "early",
    "late",
    "lost",
    "unexpected",
    "quarantined",
    "cancelled",
    "pending",
    "moved",
    "removed",
    "ok",
)
"""Verdicts that rules give, the gravest first."""
CLEAN: Final = frozenset({"ok", "pending", "cancelled", "moved", "removed"})
"""Verdicts that are not findings."""
IGNORED: Final = "ignored"
EARLY_BY_CLOCK: Final = "delivered before its due time, after the clock was set back"
LOST_BY_CLOCK: Final = "its owner had passed its due time before the clock was set back"
LATE_BY_CLOCK: Final = "overdue by the clock before it was set back"
EXCUSED: Final = (EARLY_BY_CLOCK, LOST_BY_CLOCK, LATE_BY_CLOCK)
"""Reasons that a clock step explains: findings unless the clock is trusted."""


def _store_times(stores: DataFrame) -> DataFrame:
    """Return the times of stores; `behind`: the clock was set back.

    `last_ms` is the newest time of a store, `now_ms` the newest one by its present clock. If the
    clock was set back, the slot of the timers does not apply to messages that were put since.
    """
    names = ("store_id", "store", "log_min")
    if "steps" not in stores.columns:
        now_ms = F.col("last_ms").alias("now_ms")
        return stores.select(*names, "last_ms", now_ms, F.lit(False).alias("behind"))
    behind = F.coalesce(F.col("newest_ms") > F.col("log_ms"), F.lit(False))
    now_ms = F.when(behind, F.col("log_ms")).otherwise(F.col("last_ms")).alias("now_ms")
    return stores.select(*names, "last_ms", now_ms, behind.alias("behind"), "steps")


def judge(histories: DataFrame, stores: DataFrame, config: AuditConfig) -> DataFrame:
    """Return the verdicts about histories (`HISTORY`), with keys and weights (1).

    The due time of a message that was fired before its time is that of the fire.
    """
    histories = histories.withColumn("store_id", F.shiftright("root", STORE_BITS).cast("int"))
    about = _store_times(stores)
    rows = histories.join(F.broadcast(about), "store_id")
    rows = rows.withColumn("at_root", F.col("root").bitwiseAND(F.lit((1 << STORE_BITS) - 1)))
    rows = rows.withColumn("old", F.col("at_root") < F.col("log_min"))
    given = None if config.as_of_ms is None else F.lit(config.as_of_ms)
    as_of_ms, was_ms = (F.col(n) if given is None else given for n in ("now_ms", "last_ms"))
    rows = rows.withColumns(
        {
            "as_of_ms": as_of_ms,
            "was_ms": was_ms,
            "late_ms": F.when(F.col("held") > 0, F.col("sent_ms") - F.col("due_ms")),
        }
    )
    back_ms = _set_back_ms() if "steps" in about.columns else F.lit(0)
    rows = rows.withColumn("back_ms", back_ms)
    verdict, reason = F.lit("ok"), F.lit("")
    for name, holds, text in reversed(_rules(config)):
        verdict = F.when(holds, F.lit(name)).otherwise(verdict)
        reason = F.when(holds, F.lit(text)).otherwise(reason)
    rows = rows.withColumns({"verdict": verdict, "why": reason})
    at_fire = F.col("fired") & (F.col("late_ms") < 0)
    weight = F.col("weight") if "weight" in histories.columns else F.lit(1)
    leaf = F.when(F.col("held") > 0, F.col("leaf_at"))
    number = F.shiftleft(F.col("store_id").cast("bigint"), STORE_BITS)
    return rows.where(F.col("verdict") != IGNORED).select(
        "store",
        F.col("root").alias("key"),
        F.col("at_root").alias("root"),
        leaf.alias("leaf"),
        number.bitwiseOR(leaf).alias("leaf_key"),
        "topic_hash",
        "queue_id",
        "level",
        "store_ms",
        F.when(at_fire, F.col("sent_ms")).otherwise(F.col("due_ms")).alias("due_ms"),
        F.col("sent_at").alias("delivered_phys"),
        F.col("sent_ms").alias("delivered_ms"),
        F.when(at_fire, F.lit(0)).otherwise(F.col("late_ms")).alias("late_ms"),
        "hops",
        "deliveries",
        "verdict",
        "why",
        weight.alias("weight"),
    )


def _set_back_ms() -> Column:
    """Return by how much the clock was set back between a pending record and its delivery."""
    leaf, sent = F.col("leaf_at"), F.col("sent_at")
    between = F.filter("steps", lambda step: (step["at"] > leaf) & (step["at"] <= sent))
    amounts = F.transform(between, lambda step: step["ms"])
    total = F.aggregate(amounts, F.lit(0).cast("bigint"), lambda total, ms: total + ms)
    return F.coalesce(total, F.lit(0))


OTHER_TIME: Final = "the due time in its queue is not that of its level"
NO_UNIT: Final = "the unit of its queue does not agree with it"
RECORD_GONE: Final = "fired or moved, and the log has no delivery and no copy of it"
OTHER_UNIT: Final = "a unit that does not agree with it points at it"
Rule = tuple[str, "Column", str]


def _rules(config: AuditConfig) -> list[Rule]:
    """Return (verdict, condition, reason) in order: the first condition that holds applies."""
    c = F.col
    missing, sent = c("held") == 0, c("deliveries") > 0
    pending = ~sent & (c("quarantines") == 0) & ~c("cancelled")
    twice = c("deliveries") + c("quarantines") > 1
    overdue = pending & (c("due_ms") + config.late_ms < c("as_of_ms"))
    gone_by = c("passed") == 1
    by_now = F.when(c("is_level") | ~c("behind"), gone_by)
    passed = F.coalesce(by_now, overdue)
    excused = pending & F.coalesce(gone_by, F.lit(False)) & ~F.coalesce(passed, F.lit(False))
    early = c("late_ms") + c("back_ms") < 0
    was_overdue = pending & (c("due_ms") + config.late_ms < c("was_ms"))
    by_clock = ("ok", "pending", "pending") if config.trust_clock else ("early", "lost", "late")
    clock_early, clock_lost, clock_late = by_clock
    no_record, removed = missing & c("has_unit"), missing & c("old")
    lost_record = removed & c("removed_pending") & ~c("cancelled")
    ended = sent | (c("quarantines") > 0)
    yet = "not due, or not reached by its owner yet"
    return [
        ("duplicated", removed & twice, "delivered more than once"),
        ("removed", removed & ended, "delivered; retention has removed its record"),
        ("lost", lost_record, "its record was removed while pending"),
        ("removed", removed & c("removed_pending"), "decided; retention has removed its record"),
        ("removed", removed & c("removed_settled"), "settled; retention has removed its record"),
        ("quarantined", no_record & (c("quarantines") > 0), "its record cannot be read"),
        ("corrupt", no_record, "its queue points at no valid record"),
        ("unexpected", missing & ended, "its origin is not a scheduled message"),
        (IGNORED, missing, "a decision whose target is not a scheduled message"),
        ("moved_twice", c("copies") > 1, "two copies of one record"),
        ("moved_twice", c("ended_old") > 0, "delivered, although it has a copy"),
        ("duplicated", twice, "delivered more than once"),
        ("corrupt", sent & c("other_body"), "the delivered body differs"),
        ("corrupt", sent & c("other_properties"), "the delivered properties differ"),
        ("corrupt", sent & c("other_head"), "a field of the delivered record's head differs"),
        ("corrupt", sent & c("delivery_damaged"), "the delivered body does not match its CRC"),
        ("cancelled_but_fired", c("cancelled") & sent, "delivered after it was cancelled"),
        ("misrouted", sent & c("elsewhere"), "delivered to another topic or queue"),
        ("corrupt", sent & c("other_time"), OTHER_TIME),
        ("corrupt", ~missing & c("other_unit"), OTHER_UNIT),
        ("unreachable", sent & c("unreachable"), NO_UNIT),
        ("moved", early & c("fired"), "delivered early on request"),
        ("early", early, "delivered before its due time"),
        ("late", c("late_ms") > config.late_ms, "delivered late"),
        ("quarantined", c("quarantines") > 0, "it went to the quarantine topic"),
        ("lost", ~sent & c("record_gone"), RECORD_GONE),
        ("cancelled", c("cancelled"), "cancelled in time"),
        ("corrupt", pending & c("pending_damaged"), "its body does not match its CRC"),
        ("corrupt", pending & c("due_ms").isNull(), "it has no due time"),
        ("unreachable", pending & c("no_unit"), NO_UNIT),
        ("corrupt", pending & c("other_time"), OTHER_TIME),
        ("lost", pending & passed, "its owner passed it without a delivery"),
        ("late", overdue, "overdue, and not delivered"),
        (clock_lost, excused, LOST_BY_CLOCK),
        (clock_late, was_overdue, LATE_BY_CLOCK),
        ("pending", pending, yet),
        (clock_early, (c("late_ms") < 0) & ~c("fired"), EARLY_BY_CLOCK),
        ("moved", c("moved"), "delivered at the time to which it was moved"),
    ]
