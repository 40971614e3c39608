"""Chains of copies: which root every held record goes back to.

    up(x) := the record x was copied from;  up := up of up,  until nothing changes

Each round doubles the distance, so a message rolled a thousand times takes ten rounds. Only copies
and what was copied take part: most stores have few, many have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Roots:
    """Attributes:
    frame: store, key (log offset of a copy or of what was copied), root, copies made of it, and
        where the first of those lies.
    """

    frame: DataFrame


def find_roots(rows: DataFrame) -> Roots | None:
    """Return the roots of all copies among held records; None: there are no copies."""
    copies = rows.where(
        (F.col("kind") == "held")
        & F.col("origin").isNotNull()
        & (F.col("origin") < F.col("phys_offset"))
    ).select("store", F.col("phys_offset").alias("key"), F.col("origin").alias("up"))
    copies = copies.localCheckpoint()
    if copies.isEmpty():
        return None
    made = copies.groupBy("store", F.col("up").alias("key")).agg(
        F.count("*").alias("copies"), F.min("key").alias("first_copy")
    )
    roots = _jumped(copies).withColumnRenamed("up", "root")
    both = roots.join(made, ["store", "key"], "full")
    return Roots(both.withColumn("root", F.coalesce("root", "key")).localCheckpoint())


def _jumped(copies: DataFrame) -> DataFrame:
    """Return store, key, up, where `up` is no copy itself."""
    for _ in range(ROUNDS_MAX):
        above = copies.select("store", F.col("key").alias("up"), F.col("up").alias("next"))
        found = copies.join(above, ["store", "up"], "left").localCheckpoint()
        if found.where(F.col("next").isNotNull()).isEmpty():
            return copies
        copies = found.select("store", "key", F.coalesce("next", "up").alias("up"))
    return copies
