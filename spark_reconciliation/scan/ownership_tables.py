"""Ownership journal as tables: transferred ranges, joined with queue units.

The driver decodes the few records and applies `delayed_delivery.ownership_projection`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from delayed_delivery.ownership import JournalEntry, Route, Transfer, decode
from delayed_delivery.ownership_projection import Ownership, change_of
from duemq_common.topics import OWNERSHIP_TOPIC
from spark_reconciliation.engine import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Journals = Mapping[str, Sequence[JournalEntry]]
"""Journals of stores, by name of the store."""
Range = tuple[str, int, int, int, str, dict[int, int]]
RANGES: Final = (
    "store string, level int, first bigint, end bigint, migration string, "
    "promised map<bigint, bigint>"
)
ROUTES: Final = "store string, level int, migration string, on boolean, mark_at bigint"


def read_journals(messages: DataFrame) -> Journals:
    """Return the journals among records, in order; an action.

    Args:
        messages: store, phys_offset, topic, queue_offset and body.
    """
    rows = messages.where((F.col("topic") == OWNERSHIP_TOPIC) & F.col("body").isNotNull())
    journals: dict[str, list[JournalEntry]] = {}
    names = ("store", "queue_offset", "phys_offset", "body")
    for row in rows.select(*names).orderBy("store", "queue_offset").collect():
        with suppress(ValueError):  # a malformed record has no effect
            record = decode(bytes(row["body"]))
            entry = JournalEntry(row["queue_offset"], row["phys_offset"], 0, record)
            journals.setdefault(row["store"], []).append(entry)
    return journals


def owned_by_timers(schedule: DataFrame, journals: Journals) -> DataFrame:
    """Return the units that the timers own now.

    Args:
        schedule: Table `schedule`.
    Returns:
        store, level, queue_offset, migration (which transferred the unit).
    """
    ranges: list[Range] = []
    for store, journal in journals.items():
        timers = Ownership()
        for entry in journal:
            timers.apply(entry)
        migrations = {entry.queue_offset: entry.record.migration for entry in journal}
        ranges += [
            (store, level, first, end, migrations[position], {})
            for level, pieces in timers.pieces.items()
            for first, end, position in pieces
        ]
    units = _units_in(schedule, ranges)
    return units.select("store", "level", "queue_offset", "migration")


def transferred_units(schedule: DataFrame, journals: Journals, migration_id: str = "") -> DataFrame:
    """Return the units that migrations transferred to the timers, without repetitions.

    Args:
        migration_id: One migration; empty: all.
    Returns:
        store, migration, level, queue_offset, phys_offset, promised_ms (the due time in the unit,
        or in the ownership record if the unit has none).
    """
    ranges: list[Range] = []
    for store, journal in journals.items():
        for record in (entry.record for entry in journal):
            change = change_of(record)
            if change and isinstance(record, Transfer) and migration_id in ("", record.migration):
                ranges += [
                    (store, record.level, first, end, record.migration, dict(record.promised))
                    for first, end in change.to_timers
                ]
    promised = F.element_at("promised", F.col("queue_offset"))
    rows = _units_in(schedule, ranges).withColumn("promised_ms", F.coalesce(promised, "due_ms"))
    return rows.groupBy("store", "migration", "level", "queue_offset").agg(
        F.max("phys_offset").alias("phys_offset"), F.max("promised_ms").alias("promised_ms")
    )


def routes_of(schedule: DataFrame, journals: Journals) -> DataFrame:
    """Return store, level, migration, on and mark_at (log offset) of each change of a route."""
    rows = [
        (store, entry.record.level, entry.record.migration, entry.record.on, entry.phys_offset)
        for store, journal in journals.items()
        for entry in journal
        if isinstance(entry.record, Route)
    ]
    return schedule.sparkSession.createDataFrame(rows, ROUTES)


def _units_in(schedule: DataFrame, ranges: list[Range]) -> DataFrame:
    """Return units with each range that contains them."""
    range_table = F.broadcast(schedule.sparkSession.createDataFrame(ranges, RANGES))
    number = F.col("queue_offset")
    within = (number >= F.col("first")) & (number < F.col("end"))
    return schedule.join(range_table, ["store", "level"]).where(within).drop("first", "end")
