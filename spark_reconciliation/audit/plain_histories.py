"""Histories of plain messages: one pending record and its deliveries, in one numeric aggregation.

Each record adds to the sums of its key; `tally` has the counts and flags.

The exclusive or of body, properties, head and target of both records is 0 if they are equal. With
more than one delivery it has no meaning, but then the message is a duplicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_reconciliation.audit.tally import (
    COUNT_MASK,
    DAMAGED,
    KNOWN,
    LEVEL,
    NO_TARGET,
    NO_UNIT,
    OTHER_TIME,
    PASSED,
    REMOVED,
    REMOVED_MASK,
    SENT,
    SENT_DAMAGED,
    SENT_MASK,
    SENT_WITHOUT_UNIT,
    STORE_BITS,
    record_tally,
)
from spark_reconciliation.engine import F
from spark_reconciliation.scan.roles import Role

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HISTORY: Final = (
    "root",
    "held",
    "deliveries",
    "quarantines",
    "leaf_at",
    "store_ms",
    "level",
    "due_ms",
    "topic_hash",
    "queue_id",
    "sent_at",
    "sent_ms",
    "other_body",
    "other_properties",
    "other_head",
    "elsewhere",
    "delivery_damaged",
    "pending_damaged",
    "passed",
    "is_level",
    "hops",
    "moved",
    "has_unit",
    "cancelled",
    "fired",
    "record_gone",
    "copies",
    "ended_old",
    "other_time",
    "no_unit",
    "unreachable",
    "removed_pending",
    "removed_settled",
    "other_unit",
)
"""Columns of a history, which `rules` reads; `root` is the key of the message."""


def plain_message_histories(events: DataFrame) -> DataFrame:
    """Return `HISTORY` of messages with a pending record and deliveries only.

    Args:
        events: Result of `keyed_events.keyed`, roles Role.LEVEL, Role.TIMER, Role.DELIVERY and
        Role.REMOVED_SETTLED.
    """
    sent, removed = F.col("role") == Role.DELIVERY, F.col("role") == Role.REMOVED_SETTLED

    def of_held(name: str) -> Column:
        return F.max(F.when(~sent & ~removed, F.col(name)))

    sums = events.groupBy("key").agg(
        F.sum("tally").alias("tally"),
        F.bit_xor("body").alias("body"),
        F.bit_xor("properties_hash").alias("properties"),
        F.bit_xor("head_hash").alias("head"),
        F.bit_xor("target").alias("target"),
        of_held("due_ms").alias("due_ms"),
        F.min(F.when(sent, F.col("store_ms"))).alias("sent_ms"),
        F.min(F.when(sent, F.col("at"))).alias("sent_at"),
        of_held("store_ms").alias("store_ms"),
        of_held("level").alias("level"),
        of_held("topic_hash").alias("held_topic"),
        F.min(F.when(sent, F.col("topic_hash"))).alias("sent_topic"),
        of_held("queue_id").alias("held_queue"),
        F.min(F.when(sent, F.col("queue_id"))).alias("sent_queue"),
    )
    return history_of_sums(sums)


def history_of_sums(sums: DataFrame, *more: str) -> DataFrame:
    """Return `HISTORY` of sums, with `more` of their columns."""
    no, none = F.lit(False), F.lit(0).cast("bigint")
    held = F.col("tally").bitwiseAND(F.lit(COUNT_MASK).cast("bigint"))
    return sums.select(
        F.col("key").alias("root"),
        held.alias("held"),
        _part(SENT, SENT_MASK).alias("deliveries"),
        none.alias("quarantines"),
        F.col("key").bitwiseAND(F.lit((1 << STORE_BITS) - 1)).alias("leaf_at"),
        "store_ms",
        "level",
        "due_ms",
        F.coalesce("held_topic", "sent_topic").alias("topic_hash"),
        F.coalesce("held_queue", "sent_queue").alias("queue_id"),
        "sent_at",
        "sent_ms",
        (F.col("body") != 0).alias("other_body"),
        (F.col("properties") != 0).alias("other_properties"),
        (F.col("head") != 0).alias("other_head"),
        (~_has(NO_TARGET) & (F.coalesce("target", F.lit(0)) != 0)).alias("elsewhere"),
        (_part(SENT_DAMAGED, COUNT_MASK) > 0).alias("delivery_damaged"),
        _has(DAMAGED).alias("pending_damaged"),
        F.when(_has(KNOWN), _has(PASSED).cast("int")).alias("passed"),
        _has(LEVEL).alias("is_level"),
        held.alias("hops"),
        *(no.alias(name) for name in ("moved", "has_unit", "cancelled", "fired", "record_gone")),
        *(none.alias(name) for name in ("copies", "ended_old")),
        _has(OTHER_TIME).alias("other_time"),
        _has(NO_UNIT).alias("no_unit"),
        (F.shiftright("tally", SENT_WITHOUT_UNIT) > 0).alias("unreachable"),
        no.alias("removed_pending"),
        (_part(REMOVED, REMOVED_MASK) > 0).alias("removed_settled"),
        no.alias("other_unit"),
        *more,
    )


class _Columns:
    """Columns of the table `messages` in a query, for `record_tally`."""

    def equals(self, name: str, value: int) -> Column:
        return F.coalesce(F.col(name) == F.lit(value), F.lit(False))

    def is_null(self, name: str) -> Column:
        return F.col(name).isNull()

    def invert(self, flags: Column) -> Column:
        return ~flags

    def bits(self, base: int, *flags: tuple[Column, int]) -> Column:
        total = F.lit(base).cast("bigint")
        for holds, bit in flags:
            total = total + F.when(holds, F.lit(1 << bit)).otherwise(F.lit(0)).cast("bigint")
        return total

    def choose(self, flags: Column, chosen: Column, other: Column) -> Column:
        return F.when(flags, chosen).otherwise(other)


def tally_column() -> Column:
    """Return the amount that a row of `messages` adds to the tally of its message."""
    return record_tally(_Columns())


def _part(bit: int, mask: int) -> Column:
    return F.shiftright("tally", bit).bitwiseAND(F.lit(mask).cast("bigint"))


def _has(bit: int) -> Column:
    return F.col("tally").bitwiseAND(F.lit(1 << bit).cast("bigint")) != 0
