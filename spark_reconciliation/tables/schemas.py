"""Schemas of the exported tables: columns, types, meaning, version.

    log --> scheduled    a message that was accepted for a later delivery, once
            delivered    a delivery
            decisions    a cancellation, a move, a fire, a copy, a quarantine
            pops         a message that a consumer popped or acknowledged
            delivered --> lateness   per topic and minute

A version grows with each change of its table's columns. `docs/reference/tables.md` is generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_reconciliation.scan.tables import ARROW

DAY: Final = "day"
"""Partition column: UTC date of the table's time."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table; `kind` is Spark's type."""

    name: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Schema of an exported table.

    Attributes:
        time: Column whose UTC date is the partition.
    """

    version: int
    text: str
    time: str
    columns: tuple[Column, ...]

    @property
    def arrow(self) -> pa.Schema:
        """Schema of the files."""
        return pa.schema([(column.name, ARROW[column.kind]) for column in self.columns])

    @property
    def sql(self) -> str:
        """Schema in Spark's notation."""
        return ", ".join(f"{column.name} {column.kind}" for column in self.columns)


BROKER: Final = Column("broker", "string", "name of the broker")
MESSAGE: Final = (
    Column("message_id", "string", "unique id of the message (property UNIQ_KEY)"),
    Column("keys", "string", "keys of the message (property KEYS)"),
)
TARGET: Final = (
    Column("topic", "string", "topic of the message"),
    Column("queue_id", "int", "queue of the topic"),
)
KIND: Final = (
    Column("kind", "string", "`level` or `timer`"),
    Column("level", "int", "delay level, for a level message"),
)
LOG_OFFSET: Final = Column("log_offset", "bigint", "log offset of the record")
ORIGIN: Final = (
    Column("origin_offset", "bigint", "log offset of the pending record that this record ends"),
    Column(
        "scheduled_offset", "bigint", "`log_offset` of the message in `scheduled`; null: unknown"
    ),
)
SCHEDULED: Final = TableSchema(
    1,
    "Each message that the broker accepted for a later delivery, once.",
    "accepted_ms",
    (
        BROKER,
        *MESSAGE,
        Column("tags", "string", "tag of the message"),
        *TARGET,
        *KIND,
        Column("due_ms", "bigint", "promised time"),
        Column("accepted_ms", "bigint", "time at which the broker stored the message"),
        Column("born_ms", "bigint", "time of the producer"),
        Column("body_bytes", "int", "size of the body"),
        LOG_OFFSET,
    ),
)
TABLES: Final[Mapping[str, TableSchema]] = {"scheduled": SCHEDULED}
