"""Origins for records that name none: what Apache's brokers wrote, and markers of clients.

    roll      a timer written again: the record of the same identity with one roll less
    delivery  the held record of the same identity; of several, the n-th delivery of the n-th
              record; what is too many belongs to the last one
    marker    the held timers whose topic+key it names, in the same slot

The identity of a message is what a broker copies from record to record: unique id (without one:
body CRC and length), real topic and queue, birth, level, TIMER_OUT_MS. A client that sends a
received message again gives it another birth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMES: Final = ("real_topic", "real_queue_id", "born_ms", "level", "out_ms")
NOTHING: Final = "-"


def with_origins(rows: DataFrame) -> DataFrame:
    """Return classified rows with an origin wherever one can be found.

    Deliveries that were found become `delivery`; other candidates stay what they are.
    """
    is_held, nameless = F.col("kind") == "held", F.col("origin").isNull()
    is_roll = is_held & F.col("rolls").isNotNull() & nameless
    is_marker = (F.col("kind") == "cancel") & nameless
    is_candidate = F.col("kind") == "candidate"
    held = rows.where(is_held)
    ended = rows.where(F.col("kind").isin("delivery", "quarantine"))
    ended = ended.select("store", F.col("origin").alias("phys_offset"))
    waiting = held.join(ended, ["store", "phys_offset"], "left_anti")
    return (
        rows.where(~is_roll & ~is_marker & ~is_candidate)
        .unionByName(_rolled(rows.where(is_roll), held))
        .unionByName(_delivered(rows.where(is_candidate), waiting))
        .unionByName(_named(rows.where(is_marker), held))
    )


def _identified(rows: DataFrame) -> DataFrame:
    own = F.coalesce("unique_id", F.concat_ws(":", "body_crc", "body_len"))
    parts = [F.coalesce(F.col(name).cast("string"), F.lit(NOTHING)) for name in NAMES]
    return rows.withColumn("identity", F.concat_ws("\x01", own, *parts))


def _rolled(rolled: DataFrame, held: DataFrame) -> DataFrame:
    """Give a rolled record the one before it as its origin."""
    order = Window.partitionBy("store", "identity", "turn").orderBy("phys_offset")
    mine = _identified(rolled).withColumn("turn", F.col("rolls") - 1)
    mine = mine.withColumn("place", F.row_number().over(order))
    before = _identified(held).withColumn("turn", F.coalesce("rolls", F.lit(0)))
    before = before.withColumn("place", F.row_number().over(order)).select(
        "store", "identity", "turn", "place", F.col("phys_offset").alias("found")
    )
    made = mine.join(before, ["store", "identity", "turn", "place"], "left")
    origin = F.when(F.col("found") < F.col("phys_offset"), F.col("found"))
    return made.withColumn("origin", origin).drop("identity", "turn", "place", "found")


def _delivered(candidates: DataFrame, held: DataFrame) -> DataFrame:
    """Pair deliveries with held records of the same identity, the last of a rolled one."""
    whole = Window.partitionBy("store", "identity")
    order = whole.orderBy("phys_offset")
    known = _identified(held).withColumn("turn", F.coalesce("rolls", F.lit(0)))
    known = known.withColumn("newest", F.max("turn").over(whole))
    known = known.where(F.col("turn") == F.col("newest"))
    known = known.withColumn("place", F.row_number().over(order))
    known = known.withColumn("places", F.count("*").over(whole))
    known = known.select(
        "store", "identity", "place", "places", F.col("phys_offset").alias("found")
    )
    last = known.where(F.col("place") == F.col("places")).select("store", "identity", "places")
    mine = _identified(candidates).withColumn("number", F.row_number().over(order))
    mine = mine.join(last, ["store", "identity"])
    mine = mine.withColumn("place", F.least("number", "places")).drop("places", "number")
    made = mine.join(known.drop("places"), ["store", "identity", "place"])
    made = made.where(F.col("found") < F.col("phys_offset"))
    made = made.withColumns({"origin": F.col("found"), "kind": F.lit("delivery")})
    return made.drop("identity", "place", "found")


def _named(markers: DataFrame, held: DataFrame) -> DataFrame:
    """Give markers the timers that they name as their origins: a row for each of them."""
    names = held.where(F.col("unique_id").isNotNull()).select(
        "store",
        F.concat_ws("+", "real_topic", "unique_id").alias("cancels"),
        "out_ms",
        F.col("phys_offset").alias("found"),
    )
    made = markers.join(names, ["store", "cancels", "out_ms"])
    made = made.where(F.col("found") < F.col("phys_offset"))
    return made.withColumn("origin", F.col("found")).drop("found")
