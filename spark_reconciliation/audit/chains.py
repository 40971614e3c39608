"""Chains of copies: the root of every pending record.

    up(x) := source record of the copy x;  up := up of up,  until nothing changes

Each round doubles the distance, so a message that rolled a thousand times takes ten rounds. One
worker takes all copies of a store: two numbers each. Most stores have few, many have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_reconciliation.audit.tally import STORE_BITS
from spark_reconciliation.engine import F
from spark_reconciliation.scan.roles import Role

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Roots:
    """Attributes:
    frame: key (of a copy or of a copied record), key of its root, number of its copies, and
        position of its first copy.
    cached: Persisted frames.
    """

    frame: DataFrame
    cached: tuple[DataFrame, ...]


def find_roots(rows: DataFrame) -> Roots | None:
    """Return the roots of all copies among records, None without copies.

    Args:
        rows: Result of `keyed_events.keyed`; a copy is after its origin, else it has another role.
    """
    copies = rows.where(
        F.col("role").isin(Role.LEVEL_COPY, Role.TIMER_COPY) & F.col("origin").isNotNull()
    ).select("key", "at", (F.col("key") - F.col("at") + F.col("origin")).alias("up"))
    copies = copies.persist()
    if copies.isEmpty():
        copies.unpersist()
        return None
    made = copies.groupBy(F.col("up").alias("key")).agg(
        F.count("*").alias("copies"), F.min("at").alias("first_copy")
    )
    by_store = copies.select("key", "up").groupBy(F.shiftright("key", STORE_BITS))
    roots = by_store.applyInArrow(follow_up, "key bigint, root bigint")
    both = roots.join(made, "key", "full")
    both = both.withColumn("root", F.coalesce("root", "key")).persist()
    return Roots(both, (copies, both))


def follow_up(copies: pa.Table) -> pa.Table:
    """Return key and root of the copies of a store: `key` and `up`, which is below `key`."""
    key, up = (copies.column(name).to_numpy() for name in ("key", "up"))
    order = np.argsort(key)
    key, up = key[order], up[order]
    while True:
        position = np.minimum(np.searchsorted(key, up), key.size - 1)
        above = key[position] == up
        if not above.any():
            return pa.table({"key": key, "root": up})
        up = np.where(above, up[position], up)
