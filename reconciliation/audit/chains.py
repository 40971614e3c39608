"""Chains of copies: the root of every pending record.

    up(x) := source record of the copy x;  up := up of up,  until nothing changes

Each round doubles the distance, so a message that rolled a thousand times takes ten rounds. The
input is only copies and their source records: most stores have few, many have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from reconciliation.scan.roles import Role

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Roots:
    """Attributes:
    frame: key (of a copy or of a copied record), key of its root, number of its copies, and
        position of its first copy.
    """

    frame: DataFrame


def find_roots(rows: DataFrame) -> Roots | None:
    """Return the roots of all copies among records, None without copies.

    Args:
        rows: Result of `verdicts._keyed`; a copy is after its origin, else it has another role.
    """
    copies = rows.where(
        F.col("role").isin(Role.LEVEL_COPY, Role.TIMER_COPY) & F.col("origin").isNotNull()
    ).select("key", "at", (F.col("key") - F.col("at") + F.col("origin")).alias("up"))
    copies = copies.localCheckpoint()
    if copies.isEmpty():
        return None
    made = copies.groupBy(F.col("up").alias("key")).agg(
        F.count("*").alias("copies"), F.min("at").alias("first_copy")
    )
    roots = _doubled(copies.select("key", "up")).withColumnRenamed("up", "root")
    both = roots.join(made, "key", "full")
    return Roots(both.withColumn("root", F.coalesce("root", "key")).localCheckpoint())


def _doubled(copies: DataFrame) -> DataFrame:
    """Return key and up of copies whose source is a copy as well, two levels up."""
    for _ in range(ROUNDS_MAX):
        above = copies.select(F.col("key").alias("up"), F.col("up").alias("next"))
        found = copies.join(above, "up", "left").localCheckpoint()
        if found.where(F.col("next").isNotNull()).isEmpty():
            return copies
        copies = found.select("key", F.coalesce("next", "up").alias("up"))
    return copies
