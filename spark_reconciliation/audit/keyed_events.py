"""Records with the key of the message that they belong to: the columns of histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.plain_histories import tally_column
from spark_reconciliation.audit.tally import PLACE_MAX, STORE_BITS
from spark_reconciliation.engine import F
from spark_reconciliation.kernels.columns import CRC_MASK
from spark_reconciliation.scan.roles import PENDING_ROLES, Role
from spark_reconciliation.scan.tables import TIME_MIN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
MS_MAX: Final = 10**18
BROADCAST_MAX: Final = 1_000_000  # maximum rows that every task has in memory, and the driver


def key_of(offset: str) -> Column:
    number = F.shiftleft(F.col("store_id").cast("bigint"), STORE_BITS)
    return number.bitwiseOR(F.col(offset))


def unit_events(units: DataFrame, plain: DataFrame) -> DataFrame:
    """Return units with the key of the message whose record or delivery they name; an action."""
    own = units.where(F.col("damage").isNull()).select(
        key_of("phys_offset").alias("key"), "role", F.col("phys_offset").alias("at")
    )
    others = units.where(F.col("damage").isNotNull())
    places = others.select(key_of("phys_offset").alias("place"), "role").distinct()
    store = F.shiftleft(F.shiftright("key", STORE_BITS), STORE_BITS)
    sent = plain.where(F.col("role") == Role.DELIVERY).select(
        "key", "at", store.bitwiseOR(F.col("at")).alias("place")
    )
    return own.unionByName(sent.join(broadcast_if_few(places), "place").select("key", "role", "at"))


def broadcast_if_few(rows: DataFrame) -> DataFrame:
    """Return rows for a join that sends them to each task, if these can have them; an action."""
    return F.broadcast(rows) if rows.count() <= BROADCAST_MAX else rows


def body_number(body: bytes) -> int:
    """Return the number by which histories compare bodies: CRC, as Apache stores it, and length."""
    return (crc32(body) & CRC_MASK) << 32 ^ len(body)


def origin() -> Column:
    """Return the log offset that a record names as its origin, null if it names none.

    An impossible offset is replaced by that of the record itself.
    """
    named = F.bitwise_not(F.col("prepared_offset"))
    far = F.when(named >= PLACE_MAX, F.col("phys_offset")).otherwise(named)
    return F.when(F.col("prepared_offset") < 0, far)


def with_origin(rows: DataFrame) -> DataFrame:
    """Return rows with `origin`, the log offset of the origin of each record."""
    return rows.withColumn("origin", origin())


def _delay(config: AuditConfig) -> Column:
    """Return the delay of `level` in a record's store."""

    def among(levels_ms: Sequence[int]) -> Column:
        level = F.least(F.col("level"), F.lit(len(levels_ms)))
        delays = F.array(*(F.lit(delay) for delay in (0, *levels_ms)))
        return F.element_at(delays, (level + 1).cast("int"))

    delay_ms = among(config.levels_ms)
    for levels_ms, stores in config.levels_of.items():
        delay_ms = F.when(F.col("store_id").isin(*stores), among(levels_ms)).otherwise(delay_ms)
    return delay_ms


def keyed(rows: DataFrame, config: AuditConfig) -> DataFrame:
    """Return the columns of histories, numbers only; `due_ms` is the due time of the record."""
    held = F.col("role").isin(*PENDING_ROLES)
    own = held | F.col("role").isin(Role.REMOVED_PENDING, Role.REMOVED_SETTLED)
    store_ms = F.greatest(F.least("store_ms", F.lit(MS_MAX)), F.lit(0))  # also of damaged records
    by_table = store_ms + _delay(config)
    in_queue = F.when(F.col("unit_ms").between(TIME_MIN, MS_MAX), F.col("unit_ms"))
    promised = F.when(F.col("out_ms").isNull(), F.col("due_ms"))
    is_level = F.col("role").isin(Role.LEVEL, Role.LEVEL_COPY)
    due_ms = F.when(is_level, F.coalesce(in_queue, promised, by_table)).otherwise(F.col("due_ms"))
    body = F.shiftleft(F.col("body_crc").cast("bigint"), 32).bitwiseXOR(
        F.col("body_len").cast("bigint")
    )
    named = F.when(F.col("origin").isNotNull(), key_of("origin"))
    return rows.select(
        F.when(own, key_of("phys_offset")).otherwise(named).alias("key"),
        "role",
        F.col("phys_offset").alias("at"),
        "origin",
        store_ms.alias("store_ms"),
        body.alias("body"),
        "properties_hash",
        "head_hash",
        "target",
        "topic_hash",
        F.col("damage").isNotNull().alias("damaged"),
        F.when(held, F.col("real_queue_id")).otherwise(F.col("queue_id")).alias("queue_id"),
        "level",
        F.when(held, due_ms).alias("due_ms"),
        "rolls",
        "passed",
        "other_time",
        "queued",
        tally_column().alias("tally"),
    ).where("key is not null")
