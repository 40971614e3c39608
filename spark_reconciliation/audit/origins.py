"""Derived origins of records that name none: records of Apache's brokers, markers of clients.

    rolled timer   the record with the same identity and one roll less; Apache's timeline in RocksDB
                   does not count rolls: the n-th roll of k equal timers is roll (n - 1) / k + 1
    delivery       the pending record with the same identity; of several, the n-th delivery belongs
                   to the n-th record, and surplus deliveries to the last one
    marker         the pending timers whose topic+key it names, in the same slot; if there are none,
                   a timer of the slot whose record was removed with the log file that had its key

The identity of a message consists of fields that a broker copies from record to record: unique id
(without one: body CRC and length), real topic and queue, birth, level, TIMER_OUT_MS. The column
`identity` is a hash of them. A message that a client sends again has another birth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_reconciliation.engine import F, Window
from spark_reconciliation.scan.roles import Role

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class DerivedOrigins:
    """Attributes:
    rolled, marked: Records with origins; a marker has one row per timer that it names, or none.
    delivered: Candidates that are deliveries, as Role.DELIVERY.
    """

    rolled: DataFrame
    delivered: DataFrame
    marked: DataFrame


def with_origins(
    rolled: DataFrame,
    candidates: DataFrame,
    markers: DataFrame,
    held: DataFrame,
    ended: DataFrame,
    removed: DataFrame,
) -> DerivedOrigins:
    """Return records that name no origin, with their derived origins.

    Args:
        rolled, candidates, markers: Records that name no origin.
        held: All pending records, with `identity` and `name_hash`.
        ended: store_id and origin of records that name their origin.
        removed: Pending timers whose records were removed, with their slots in `out_ms`.
    """
    ended = ended.select("store_id", F.col("origin").alias("phys_offset")).distinct()
    held = held.withColumn("turn", _turn())
    open_ones = held.join(ended, ["store_id", "phys_offset"], "left_anti")
    named = _named(markers, held)
    marked = named.unionByName(_of_slots(markers, named, removed))
    return DerivedOrigins(_rolled(rolled, held), _delivered(candidates, open_ones), marked)


def _turn() -> Column:
    """Return the number of rolls of a pending record, 0 for one that was not rolled."""
    counted = F.coalesce("rolls", F.lit(0))
    is_roll = F.col("origin").isNull() & (F.col("role") == Role.TIMER_COPY)
    is_labelled = is_roll & (counted == 0)
    same = Window.partitionBy("store_id", "identity")
    timers = F.greatest(F.count_if(F.col("role") == Role.TIMER).over(same), F.lit(1))
    number = F.row_number().over(
        Window.partitionBy("store_id", "identity", is_labelled).orderBy("phys_offset")
    )
    return F.when(is_labelled, F.floor((number - 1) / timers) + 1).otherwise(counted)


def _rolled(rolled: DataFrame, held: DataFrame) -> DataFrame:
    """Return rolled records with the previous record as their origin."""
    order = Window.partitionBy("store_id", "identity", "turn").orderBy("phys_offset")
    turns = held.select("store_id", "phys_offset", (F.col("turn") - 1).alias("turn"))
    records = rolled.join(turns, ["store_id", "phys_offset"])
    records = records.withColumn("place", F.row_number().over(order))
    before = held.withColumn("place", F.row_number().over(order)).select(
        "store_id", "identity", "turn", "place", F.col("phys_offset").alias("found")
    )
    made = records.join(before, ["store_id", "identity", "turn", "place"], "left")
    origin = F.when(F.col("found") < F.col("phys_offset"), F.col("found"))
    return made.withColumn("origin", origin).select(*rolled.columns)


def _delivered(candidates: DataFrame, held: DataFrame) -> DataFrame:
    """Return deliveries with pending records of the same identity, the last of a rolled one."""
    whole = Window.partitionBy("store_id", "identity")
    order = whole.orderBy("phys_offset")
    pending = held.withColumn("newest", F.max("turn").over(whole))
    pending = pending.where(F.col("turn") == F.col("newest"))
    pending = pending.withColumn("place", F.row_number().over(order))
    pending = pending.withColumn("places", F.count("*").over(whole))
    pending = pending.select(
        "store_id", "identity", "place", "places", F.col("phys_offset").alias("found")
    )
    last = pending.where(F.col("place") == F.col("places")).select("store_id", "identity", "places")
    deliveries = candidates.withColumn("number", F.row_number().over(order))
    deliveries = deliveries.join(last, ["store_id", "identity"])
    deliveries = deliveries.withColumn("place", F.least("number", "places")).drop(
        "places", "number"
    )
    made = deliveries.join(pending.drop("places"), ["store_id", "identity", "place"])
    made = made.where(F.col("found") < F.col("phys_offset"))
    made = made.withColumns({"origin": F.col("found"), "role": F.lit(Role.DELIVERY)})
    return made.select(*candidates.columns)


def _named(markers: DataFrame, held: DataFrame) -> DataFrame:
    """Return a row for each marker and timer that it names, with the timer as origin."""
    names = held.where(F.col("name_hash").isNotNull()).select(
        "store_id", "name_hash", "out_ms", F.col("phys_offset").alias("found")
    )
    made = markers.join(names, ["store_id", "name_hash", "out_ms"])
    made = made.where(F.col("found") < F.col("phys_offset"))
    return made.withColumn("origin", F.col("found")).select(*markers.columns)


def _of_slots(markers: DataFrame, named: DataFrame, removed: DataFrame) -> DataFrame:
    """Return the markers that name no pending timer, with a removed timer of their slot as origin.

    The number of removed timers of a slot that are cancelled is exact, their log offsets are not.
    """
    record_key, slot = ["store_id", "phys_offset"], ["store_id", "out_ms"]
    order = Window.partitionBy(*slot).orderBy("phys_offset")
    spare = markers.where(F.col("out_ms").isNotNull()).dropDuplicates(record_key)
    spare = spare.join(named.select(*record_key), record_key, "left_anti")
    spare = spare.withColumn("number", F.row_number().over(order))
    gone = removed.where(F.col("out_ms").isNotNull()).dropDuplicates(record_key)
    gone = gone.withColumn("number", F.row_number().over(order))
    gone = gone.select(*slot, "number", F.col("phys_offset").alias("found"))
    made = spare.join(gone, [*slot, "number"])
    return made.withColumn("origin", F.col("found")).select(*markers.columns)
