"""Complete histories: all records of one root, with moves, cancels and quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delayed_delivery.names import FIRED_BODY, MOVED_BODY
from spark_reconciliation.audit.keyed_events import body_number
from spark_reconciliation.audit.plain_histories import HISTORY
from spark_reconciliation.engine import F
from spark_reconciliation.scan.roles import PENDING_ROLES, Role

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLLOWING: Final = tuple(body_number(body) for body in (FIRED_BODY, MOVED_BODY))
"""Bodies of the records that follow a delivery or a copy; those of a cancel have another one."""


def whole_histories(events: DataFrame) -> DataFrame:
    """Return `plain_histories.HISTORY` of each root.

    Args:
        events: Result of `keyed_events.keyed`, units included, with `root`, `copies` and
            `first_copy` of their keys.
    """
    role, position = F.col("role"), F.col("at")
    is_held, is_sent = role.isin(*PENDING_ROLES), role == Role.DELIVERY
    quarantines = role == Role.QUARANTINE
    decides = role.isin(Role.MARK, Role.MARKER, Role.DECISION)
    cancels = decides & (F.col("first_copy").isNull() | (position < F.col("first_copy")))
    marks = role.isin(Role.MARK, Role.DECISION)
    # the marker of a fire and of a move follows a delivery or a copy
    follows = marks & F.col("body").isin(*FOLLOWING) & F.col("first_copy").isNull()
    copied = is_held & (F.col("key") != F.col("root")) & F.col("rolls").isNull()
    held = F.struct(
        position.alias("at"),
        "role",
        "store_ms",
        "level",
        "due_ms",
        "topic_hash",
        "queue_id",
        "body",
        "properties_hash",
        "head_hash",
        "target",
        "damaged",
        "passed",
        "other_time",
        "queued",
    )
    sent = F.struct(
        position.alias("at"),
        "store_ms",
        "topic_hash",
        "queue_id",
        "body",
        "properties_hash",
        "head_hash",
        "target",
        "damaged",
        "queued",
    )
    histories = events.groupBy("root").agg(
        F.min(F.when(is_held, held)).alias("first"),
        F.max(F.when(is_held, held)).alias("leaf"),
        F.count(F.when(is_held, 1)).alias("held"),
        F.count(F.when(copied, 1)).alias("moves"),
        F.collect_set(F.when(role == Role.UNIT, position)).alias("units"),
        F.collect_set(F.when(is_held | is_sent, position)).alias("places"),
        F.count(F.when(role == Role.REMOVED_PENDING, 1)).alias("removed_pending"),
        F.count(F.when(role == Role.REMOVED_SETTLED, 1)).alias("removed_settled"),
        F.min(F.when(is_sent, sent)).alias("sent"),
        F.count(F.when(is_sent, 1)).alias("deliveries"),
        F.count(F.when(quarantines, 1)).alias("quarantines"),
        F.min(F.when(is_sent | quarantines, position)).alias("ended_at"),
        F.min(F.when(cancels, position)).alias("cancelled_at"),
        F.max(F.when(marks, position)).alias("marked_at"),
        F.count(F.when(follows, 1)).alias("following"),
        F.max(F.when(is_held, F.col("copies"))).alias("copies"),
        F.count(F.when((is_sent | quarantines) & (F.col("copies") > 0), 1)).alias("ended_old"),
    )
    return _facts(histories)


def _facts(histories: DataFrame) -> DataFrame:
    before_end = F.col("ended_at").isNull() | (F.col("cancelled_at") < F.col("ended_at"))
    other_time = ~F.col("leaf.due_ms").eqNullSafe(F.col("first.due_ms"))
    elsewhere = F.col("sent.target") != F.col("leaf.target")
    is_level = F.col("leaf.role").isin(Role.LEVEL, Role.LEVEL_COPY)
    made = {
        "leaf_at": F.col("leaf.at"),
        "store_ms": F.col("first.store_ms"),
        "level": F.col("leaf.level"),
        "due_ms": F.col("leaf.due_ms"),
        "topic_hash": F.coalesce("leaf.topic_hash", "sent.topic_hash"),
        "queue_id": F.coalesce("leaf.queue_id", "sent.queue_id"),
        "sent_at": F.col("sent.at"),
        "sent_ms": F.col("sent.store_ms"),
        "other_body": F.col("sent.body") != F.col("leaf.body"),
        "other_properties": F.col("sent.properties_hash") != F.col("leaf.properties_hash"),
        "other_head": F.col("sent.head_hash") != F.col("leaf.head_hash"),
        "elsewhere": F.coalesce(elsewhere, F.lit(False)),
        "delivery_damaged": F.coalesce("sent.damaged", F.lit(False)),
        "pending_damaged": F.coalesce("leaf.damaged", F.lit(False)),
        "passed": F.col("leaf.passed"),
        "is_level": F.coalesce(is_level, F.lit(False)),
        "hops": F.col("held"),
        "moved": (F.col("moves") > 0) & other_time,
        "has_unit": F.size("units") > 0,
        "other_unit": F.arrays_overlap("units", "places"),
        "cancelled": F.col("cancelled_at").isNotNull() & before_end,
        # a fire appends a marker after the delivery
        "fired": F.coalesce(F.col("marked_at") > F.col("sent.at"), F.lit(False)),
        "record_gone": F.col("following") > 0,
        "copies": F.coalesce("copies", F.lit(0)),
        "other_time": F.coalesce("leaf.other_time", F.lit(False)),
        "no_unit": F.coalesce(~F.col("leaf.queued"), F.lit(False)),
        "unreachable": F.coalesce(~F.col("sent.queued"), F.lit(False)),
        "removed_pending": F.col("removed_pending") > 0,
        "removed_settled": F.col("removed_settled") > 0,
    }
    return histories.withColumns(made).select(*HISTORY)
