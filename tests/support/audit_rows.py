"""Input of the audit from rows of random stores, with hashes in place of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from duemq_common.topics import DECISION_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_reconciliation.audit.aggregated_audit import Tallies
from spark_reconciliation.audit.plain_sums import by_bucket, pack, pack_removed
from spark_reconciliation.scan.hashes import hash_text
from spark_reconciliation.scan.roles import PENDING_ROLES, PLAIN, Role
from spark_reconciliation.scan.tables import ARROW, TABLES

Row = dict[str, Any]
HELD = (SCHEDULE_TOPIC, TIMER_TOPIC)
FAULT = "there is no record"


class AuditTables:
    """Input of `verdicts.audit`, built from rows with texts."""

    def __init__(self, messages: list[Row], queues: list[Row], cursors: list[Row]) -> None:
        names = sorted({row["store"] for row in messages})
        self.numbers = {name: number for number, name in enumerate(names)}
        self.units = {(u["store"], u["phys_offset"]): u for u in queues if u["topic"] in HELD}
        self.levels: dict[str, dict[int, int]] = {}
        self.read_ms: dict[str, int] = {}
        for row in cursors:
            if row["kind"] == "level":
                self.levels.setdefault(row["store"], {})[row["queue_id"]] = row["value"]
            elif row["name"] == "read_ms":
                self.read_ms[row["store"]] = row["value"]
        first = {
            name: min(r["phys_offset"] for r in messages if r["store"] == name) for name in names
        }
        gone = [u for u in queues if u["topic"] in HELD and u["phys_offset"] < first[u["store"]]]
        queues = [unit for unit in queues if unit not in gone]
        self.messages = [self.audit_row(row) for row in messages]
        held = {
            (row["store"], row["phys_offset"])
            for row in self.messages
            if row["role"] in PENDING_ROLES or row["role"] in (Role.MARK, Role.MARKER)
        }
        self.queues = [
            row
            | {"store_id": self.numbers[row["store"]]}
            | {"fault": FAULT if row.get("second") or record_key not in held else None}
            for row in queues
            for record_key in [(row["store"], row["phys_offset"])]
        ]
        self.sums = [
            {"store_id": 0, "role": Role.QUEUE, "topic": topic, "identity": 1, "file": "units"}
            for topic in HELD
        ]
        self.stores = [
            {
                "store_id": number,
                "store": name,
                "log_end": 1 << 40,
                "log_min": min(r["phys_offset"] for r in messages if r["store"] == name),
                "last_ms": max(r["store_ms"] for r in messages if r["store"] == name),
            }
            for name, number in self.numbers.items()
        ]
        self.messages += [
            {
                "store_id": self.numbers[unit["store"]],
                "phys_offset": unit["phys_offset"],
                "role": Role.REMOVED_PENDING if unit.get("pending") else Role.REMOVED_SETTLED,
            }
            for unit in gone
        ]
        topics = {name for row in messages for name in (row["topic"], row["real_topic"]) if name}
        self.topics = [
            {"role": Role.TOPIC, "topic": name, "topic_hash": _hash(name)} for name in topics
        ]

    def audit_row(self, row: Row) -> Row:
        """Return a message's row with the columns that the data source computes."""
        waits = row["topic"] in HELD
        real = (row["real_topic"], row["real_queue_id"])
        topic, queue = real if waits else (row["topic"], row["queue_id"])
        own = row["unique_id"] or f"{row['body_crc']}:{row['body_len']}"
        named = [text for text in (row["real_topic"], row["unique_id"]) if text is not None]
        name = row["cancels"] or ("+".join(named) if row["unique_id"] else None)
        source = (row["topic"], row["queue_id"]) if row["real_topic"] is None else real
        identity = (own, *source, row["born_ms"], row["level"], row["out_ms"])
        unit = self.units.get((row["store"], row["phys_offset"]))
        return row | {
            "store_id": self.numbers[row["store"]],
            "role": _role(row),
            "topic_hash": _hash(topic) if topic else None,
            "target": None if None in (topic, queue) else _hash(f"{topic}/{queue}"),
            "identity": _hash(repr(identity)),
            "name_hash": _hash(name) if name else None,
            "unit_ms": unit["tags_code"] if unit and unit["topic"] == SCHEDULE_TOPIC else None,
            "passed": self.passed(row),
        }

    def passed(self, row: Row) -> int | None:
        """Return whether the owner of a record has advanced past its delivery time."""
        levels, read_ms = self.levels.get(row["store"]), self.read_ms.get(row["store"])
        if row["topic"] == SCHEDULE_TOPIC and levels:
            return int(row["queue_offset"] < levels.get(row["queue_id"], 0))
        if row["topic"] == TIMER_TOPIC and read_ms is not None and row["out_ms"] is not None:
            return int(row["out_ms"] < read_ms)
        return None

    def tallies(self, spark: Any, buckets: int = 3) -> Tallies:
        """Return the additional input of `aggregate_verdicts`."""
        rows = [row for row in self.messages if row["role"] in PLAIN]
        kinds = dict(TABLES["messages"])
        removed = [row for row in self.messages if row["role"] == Role.REMOVED_SETTLED]
        packed = [pack_removed(row["store_id"], np.array([row["phys_offset"]])) for row in removed]
        packed.append(
            pack(lambda name: pa.array([row.get(name) for row in rows], ARROW[kinds[name]]))
        )
        made = by_bucket(np.concatenate(packed), buckets)
        as_of_ms = tuple(store["last_ms"] for store in self.stores)
        return Tallies(frame(spark, "tallies", made.to_pylist()), buckets, as_of_ms)

    def frames(self, spark: Any) -> tuple[Any, Any, DataFrame]:
        """Return the input of `audit`: readers of messages and queues, and stores."""
        names = [name for name, _ in TABLES["messages"]]
        whole = frame(spark, "messages", [*self.messages, *self.topics, *self.sums], names)
        whole = whole.repartition(2).persist()

        def read(columns: Sequence[str], roles: Sequence[int]) -> DataFrame:
            return whole.where(whole["role"].isin(*roles)).select(*columns)

        units = frame(spark, "consume_queue", self.queues)
        return read, lambda topics: units, frame(spark, "stores", self.stores)


def frame(spark: Any, table: str, rows: list[Row], columns: Sequence[str] = ()) -> DataFrame:
    """Return rows as a table of the data source."""
    kinds = dict(TABLES[table])
    names = list(columns or kinds)
    schema = ", ".join(f"{name} {kinds[name]}" for name in names)
    tuples = [tuple(row.get(name) for name in names) for row in rows]
    made: DataFrame = spark.createDataFrame(tuples, schema)
    return made


def _hash(text: str) -> int:
    value = hash_text(text.encode())
    return value - (1 << 64) if value >> 63 else value


def _role(row: Row) -> int:
    """Return the role of a message from its row."""
    topic, named = row["topic"], row["prepared_offset"] < 0
    if row["damage"] not in (None, "body-crc"):
        return Role.GAP
    if row["sys_flag"] & 0xC not in (0, 8):
        return Role.NONE
    behind = named and -row["prepared_offset"] - 1 < row["phys_offset"]
    copied = behind or (not named and row["rolls"] is not None)
    if topic == TIMER_TOPIC and row["cancels"] is not None:
        return Role.MARK if named else Role.MARKER
    if topic == TIMER_TOPIC:
        return Role.TIMER_COPY if copied else Role.TIMER
    if topic == SCHEDULE_TOPIC:
        return Role.LEVEL_COPY if copied else Role.LEVEL
    if named:
        others = {DECISION_TOPIC: Role.DECISION, QUARANTINE_TOPIC: Role.QUARANTINE}
        return others.get(topic, Role.DELIVERY)
    waited = row["level"] is not None and row["real_topic"] is not None
    return Role.CANDIDATE if waited or row["out_ms"] is not None else Role.NONE
