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
DELIVERED: Final = TableSchema(
    1,
    "Each delivery to the topic of its message.",
    "delivered_ms",
    (
        BROKER,
        *MESSAGE,
        *TARGET,
        Column("queue_offset", "bigint", "position in the queue"),
        *KIND,
        Column("due_ms", "bigint", "promised time, after a move the new one; null: unknown"),
        Column("delivered_ms", "bigint", "time at which the broker stored the delivery"),
        Column("late_ms", "bigint", "`delivered_ms` - `due_ms`; below 0: before its time"),
        LOG_OFFSET,
        *ORIGIN,
    ),
)
DECISIONS: Final = TableSchema(
    1,
    "Each decision about a scheduled message.",
    "decided_ms",
    (
        BROKER,
        *MESSAGE,
        Column("topic", "string", "topic of the message; null: see `scheduled`"),
        Column(
            "decision",
            "string",
            "`cancelled`; `cancel_requested`: a marker of a client, which names the message only; "
            "`moved` to `due_ms`; `fired` before its time; `quarantined`; `copied`, `rolled`: the "
            "same promise in a newer record",
        ),
        Column("decided_ms", "bigint", "time of the record"),
        Column("due_ms", "bigint", "promised time of a copy"),
        LOG_OFFSET,
        *ORIGIN,
    ),
)
POPS: Final = TableSchema(
    1,
    "Each message that a group popped, and each that it acknowledged.",
    "stored_ms",
    (
        BROKER,
        Column(
            "record",
            "string",
            "`pop`, `ack`; `malformed`: a record of the revive topic that is neither",
        ),
        Column("topic", "string", "topic that was popped"),
        Column("consumer_group", "string", "group that popped"),
        Column("queue_id", "int", "queue of the topic"),
        Column("queue_offset", "bigint", "position of the message in the queue"),
        Column("popped_ms", "bigint", "time of the pop; an acknowledgement names it, too"),
        Column("invisible_ms", "bigint", "time until the message is visible again, of a pop"),
        Column("stored_ms", "bigint", "time of the record"),
        LOG_OFFSET,
    ),
)
LATENESS: Final = TableSchema(
    1,
    "Lateness by topic and minute. A step replaces the minutes in which it has deliveries.",
    "minute_ms",
    (
        BROKER,
        Column("topic", "string", "topic of the messages"),
        Column("minute_ms", "bigint", "begin of the minute of `delivered_ms`"),
        Column("deliveries", "bigint", "deliveries at or after their promised time"),
        Column(
            "early", "bigint", "deliveries before it: fired, or delivered by a broker of Apache"
        ),
        Column("p50_ms", "bigint", "half of `deliveries` were no later"),
        Column("p90_ms", "bigint", "90 % were no later"),
        Column("p99_ms", "bigint", "99 % were no later"),
        Column("p999_ms", "bigint", "99.9 % were no later"),
        Column("max_ms", "bigint", "the latest"),
    ),
)
TABLES: Final[Mapping[str, TableSchema]] = {
    "scheduled": SCHEDULED,
    "delivered": DELIVERED,
    "decisions": DECISIONS,
    "pops": POPS,
    "lateness": LATENESS,
}
OF_LOG: Final = ("scheduled", "delivered", "decisions", "pops")
"""Tables whose rows are made of single records."""
