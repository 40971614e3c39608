"""Proofs of one audit against tables of producers and consumers: run, counted, stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_reconciliation.audit.outside_proof import (
    ACCEPTABLE,
    Lookup,
    consumer_proof,
    named_messages,
    names_of,
    producer_proof,
)
from spark_reconciliation.engine import F, Window
from spark_reconciliation.scan.roles import PENDING_ROLES, Role
from spark_reconciliation.spark.outside_tables import OutsideRows, OutsideTable, read_outside
from spark_reconciliation.spark.read import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_OF_EACH: Final = 3
PERCENTILES: Final = (0.5, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """Requested comparison of an audit with tables.

    Attributes:
        sent, received: Tables of producers and of consumers; None: none.
        tolerance_ms: Maximum difference between the promised time in `sent` and the accepted one.
    """

    sent: OutsideTable | None = None
    received: OutsideTable | None = None
    tolerance_ms: int = 0

    @property
    def needs_spark(self) -> bool:
        """Whether the local engine cannot read a table.

        Raises:
            OSError: There is no such file.
        """
        return any(table.needs_spark for table in (self.sent, self.received) if table is not None)


@dataclass(frozen=True, slots=True)
class ProofSummary:
    """Result of a proof.

    Attributes:
        table: `sent` or `received`.
        outcomes: Number of names by outcome.
        skipped: Rows of the table without a time.
        examples: Some rows of each finding.
        lateness_ms: From the promised time to the receipt: percentiles and maximum.
    """

    table: str
    outcomes: dict[str, int]
    skipped: int
    examples: list[dict[str, object]] = field(default_factory=list)
    lateness_ms: dict[str, int | None] = field(default_factory=dict)

    @property
    def findings(self) -> int:
        """Number of names with a finding."""
        return sum(count for name, count in self.outcomes.items() if name not in ACCEPTABLE)


@dataclass(frozen=True, slots=True)
class ComparedTables:
    """Tables of a comparison, read before the stores.

    A table of a database may grow meanwhile. The stores contain all that it has at this time.

    Attributes:
        read_ms: Time at which they were read.
    """

    sent: OutsideRows | None
    received: OutsideRows | None
    tolerance_ms: int
    read_ms: int

    def release(self) -> None:
        """Free the rows that the engine keeps."""
        for rows in (self.sent, self.received):
            if rows is not None:
                rows.release()


def read_tables(spark: SparkSession, comparison: TableComparison, now_ms: int) -> ComparedTables:
    """Read the tables of a comparison; an action.

    Raises:
        UsageError: A table is not usable, see `read_outside`.
        pyspark.errors.PySparkException: See `read_outside`.
    """
    sent = None if comparison.sent is None else read_outside(spark, comparison.sent)
    received = None if comparison.received is None else read_outside(spark, comparison.received)
    return ComparedTables(sent, received, comparison.tolerance_ms, now_ms)


def run_proofs(
    spark: SparkSession,
    stores: Sequence[str],
    verdicts: DataFrame,
    tables: ComparedTables,
    *,
    out: str,
) -> tuple[ProofSummary, ...]:
    """Compare the verdicts about stores with tables.

    Args:
        out: The rows are written to `out`-sent and `out`-received; empty: they are not written.

    Raises:
        pyspark.errors.PySparkException: Spark failed, or an output exists.
    """
    sent, received = tables.sent, tables.received
    oldest_ms = _oldest_ms(spark, stores)
    # retention may have removed the first record of a message, and its deliveries remain
    roles = PENDING_ROLES if oldest_ms is None else (*PENDING_ROLES, Role.DELIVERY)

    def named(rows: OutsideRows) -> DataFrame:
        return _named(spark, stores, verdicts, roles, rows)

    def lookup(rows: OutsideRows) -> Lookup:
        return lambda topics: _records_of(spark, stores, topics, rows)

    proofs = []
    if sent is not None:
        frame = producer_proof(
            named(sent),
            sent,
            lookup(sent),
            None if oldest_ms is None else _cancelled(spark, stores, sent),
            tolerance_ms=tables.tolerance_ms,
            oldest_ms=oldest_ms,
            read_ms=tables.read_ms,
        )
        proofs.append(_summary("sent", frame, sent, out))
    if received is not None:
        frame = consumer_proof(
            named(received), received, lookup(received), sent, oldest_ms=oldest_ms
        )
        proofs.append(_summary("received", frame, received, out))
    tables.release()
    return tuple(proofs)


def _named(
    spark: SparkSession,
    stores: Sequence[str],
    verdicts: DataFrame,
    roles: Sequence[int],
    rows: OutsideRows,
) -> DataFrame:
    columns = ("store", "phys_offset", "unique_id", "keys", "due_ms")
    records = read_table(spark, stores, "messages", columns, roles=",".join(map(str, roles)))
    units = read_table(spark, stores, "schedule", ("store", "phys_offset", "due_ms"))
    return named_messages(verdicts, records, units, by_key=rows.by_key)


def _records_of(
    spark: SparkSession, stores: Sequence[str], topics: Sequence[str], rows: OutsideRows
) -> DataFrame:
    """Return topic and name of all records of some topics; of all without any."""
    columns = ("topic", "unique_id", "keys")
    records = read_table(spark, stores, "messages", columns, topics=",".join(topics))
    return records.select("topic", F.explode(names_of(rows.by_key)).alias("name"))


def _cancelled(spark: SparkSession, stores: Sequence[str], rows: OutsideRows) -> DataFrame:
    """Return topic, name and unique id of the timers that markers name."""
    columns = ("real_topic", "unique_id", "keys")
    markers = read_table(spark, stores, "messages", columns, roles=str(Role.MARK))
    name = F.explode(names_of(rows.by_key)).alias("name")
    return markers.select(F.col("real_topic").alias("topic"), name, "unique_id")


def _oldest_ms(spark: SparkSession, stores: Sequence[str]) -> int | None:
    """Return the store time of the oldest record if retention has removed older ones; of several
    such stores the latest of these times.
    """
    starts = read_table(spark, stores, "stores", ("store", "log_min"))
    truncated = starts.where("log_min > 0").select("store")
    if truncated.isEmpty():
        return None
    records = read_table(spark, stores, "messages", ("store", "store_ms"))
    records = records.join(F.broadcast(truncated), "store", "left_semi")
    times = records.groupBy("store").agg(F.min("store_ms").alias("oldest_ms"))
    oldest_ms: int | None = times.agg(F.max("oldest_ms")).collect()[0][0]
    return oldest_ms


def _summary(table: str, proof: DataFrame, rows: OutsideRows, out: str) -> ProofSummary:
    proof = proof.persist()
    if out:
        proof.write.partitionBy("outcome").parquet(f"{out.rstrip('/')}-{table}")
    counts = proof.groupBy("outcome").count().orderBy("outcome").collect()
    alike = Window.partitionBy("outcome").orderBy("topic", "name")
    findings = proof.where(~F.col("outcome").isin(*ACCEPTABLE))
    some = findings.withColumn("number", F.row_number().over(alike))
    some = some.where(F.col("number") <= SHOWN_OF_EACH).drop("number").orderBy("outcome", "name")
    examples = [row.asDict() for row in some.collect()]
    lateness: dict[str, int | None] = {}
    if "late_ms" in proof.columns:
        shares = {f"p{round(share * 100)}": share for share in PERCENTILES}
        times = (
            F.percentile_approx("late_ms", share).alias(name) for name, share in shares.items()
        )
        lateness = proof.agg(*times, F.max("late_ms").alias("max")).collect()[0].asDict()
    proof.unpersist()
    outcomes = {row["outcome"]: row["count"] for row in counts}
    return ProofSummary(table, outcomes, rows.skipped, examples, lateness)
