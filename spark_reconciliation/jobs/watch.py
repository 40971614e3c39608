"""Continuous audit: a stream of the log, open messages, one row per violation.

    log --stream--> records of this batch --+
    state/<batch-1>: open records -----------+--> verdicts.audit --> alarms/batch=<n>   violations
                                             |
                                             +--> state/<n>: records of messages that are still open

Each batch is audited in the same way as a store, so the stream has the same findings. A message is
open while it is pending, and for `keep_ms` after its end (or its due time, if it was cancelled), so
that a second delivery is detected. A batch overwrites its folders, and the checkpoint fixes the
records of a batch: a restart within a batch writes the same batch again, so each alarm exists once.

Due messages are determined at a time before the log was read, so that all deliveries until then are
in the batch. With `tickMs` (see `stream`) there are batches without new records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from duemq_common.clock import Clock
from duemq_common.errors import UsageError
from duemq_common.existence import exists
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.keyed_events import origin
from spark_reconciliation.audit.rules import CLEAN
from spark_reconciliation.audit.verdicts import COLUMNS, AuditSurvey, reader_of, take_survey
from spark_reconciliation.engine import F
from spark_reconciliation.jobs.run import write_whole
from spark_reconciliation.scan.options import FORMAT
from spark_reconciliation.scan.tables import schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

VERSION: Final = 1  # of the state; grows with each change of the columns of an audit
KEEP_MS: Final = 3_600_000
BATCHES_KEPT: Final = 2  # states: the newest, and the one that a restart within a batch needs
REPORTED: Final = ("store", "root", "verdict")
Alarm = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """Settings of a watch.

    Attributes:
        audit: Its late_ms and levels_ms; the watch sets as_of_ms.
        delay_ms: Maximum time from a violation to its alarm, without the duration of a batch.
        keep_ms: Time that a message stays open after its end.
    """

    audit: AuditConfig
    delay_ms: int = 5_000
    keep_ms: int = KEEP_MS


class Watch:
    """Audit of a stream, batch by batch.

    Args:
        home: Folder for checkpoint, state and alarms.
        report: Called with the alarms of a batch after they are written, in order.
    """

    def __init__(
        self,
        spark: SparkSession,
        home: Path,
        config: WatchConfig,
        clock: Clock,
        report: Callable[[Iterable[Alarm]], None] = lambda alarms: None,
    ) -> None:
        self._spark, self._home, self._config, self._clock = spark, home, config, clock
        self._report = report
        self._looked_ms: int | None = None

    @property
    def alarms(self) -> str:
        """Folder of the alarms, as Parquet: columns of verdicts, alarm_ms, batch."""
        return str(self._home / "alarms")

    def start(
        self, stores: Sequence[str], *, every_ms: int = 0, **options: str | int
    ) -> StreamingQuery:
        """Watch stores; a watch with the same `home` continues from its checkpoint.

        Args:
            every_ms: Interval between batches; 0: audit the current records, and end.
            options: Options of the source, such as `tickMs`.
        Raises:
            UsageError: `home` has the state of other stores, or of another version.
        """
        claim_home(self._home, stores)
        schema = schema_of("messages", COLUMNS)
        reader = self._spark.readStream.format(FORMAT).schema(schema)
        for key, value in (options | {"path": ",".join(stores)}).items():
            reader = reader.option(key, str(value))
        writer = reader.load().writeStream.foreachBatch(self.take)
        query = writer.option("checkpointLocation", str(self._home / "checkpoint"))
        rhythm: dict[str, Any] = {"availableNow": True}
        if every_ms:
            rhythm = {"processingTime": f"{every_ms} milliseconds"}
        return query.trigger(**rhythm).start()

    def take(self, batch: DataFrame, number: int) -> None:
        """Audit one batch; another call with the same number replaces its output."""
        state = self._state(number - 1)
        rows = (batch if state is None else batch.unionByName(state["rows"])).persist()
        as_of_ms = self._as_of_ms(rows)
        survey = self._survey(rows, as_of_ms)
        verdicts = survey.verdicts(survey.histories(survey.plain), ids=True).persist()
        findings = verdicts.where(~F.col("verdict").isin(*CLEAN))
        new = (
            findings
            if state is None
            else findings.join(state["reported"], list(REPORTED), "left_anti")
        )
        path = f"{self.alarms}/batch={number}"
        new.withColumn("alarm_ms", F.lit(self._clock.now_ms())).write.mode("overwrite").parquet(
            path
        )
        self._write_state(number, rows, verdicts, findings, as_of_ms)
        alarms = self._spark.read.parquet(path).orderBy("store", "root")
        self._report(row.asDict() for row in alarms.toLocalIterator())
        self._looked_ms = self._clock.now_ms()  # the next batch ends later
        for frame in (verdicts, rows):
            frame.unpersist()
        survey.release()
        self._forget(number - BATCHES_KEPT)

    def _as_of_ms(self, rows: DataFrame) -> int:
        """Return the time until which the rows contain all deliveries."""
        if self._looked_ms is not None:
            return self._looked_ms - self._config.delay_ms
        (newest,) = rows.agg(F.max("store_ms").alias("ms")).collect()
        return int(newest["ms"] or 0) - self._config.delay_ms

    def _survey(self, rows: DataFrame, as_of_ms: int) -> AuditSurvey:
        spark, config = self._spark, replace(self._config.audit, as_of_ms=as_of_ms)
        stores = rows.groupBy("store_id", "store").agg(
            F.min("phys_offset").alias("log_min"), F.max("store_ms").alias("last_ms")
        )
        # the files of the store are newer than the batch, so their cursors do not apply to it
        ahead = rows.withColumn("passed", F.lit(0))
        nothing = spark.createDataFrame([], schema_of("consume_queue"))
        return take_survey(reader_of(ahead), lambda topics: nothing, stores, config)

    def _write_state(
        self, number: int, rows: DataFrame, verdicts: DataFrame, findings: DataFrame, as_of_ms: int
    ) -> None:
        since_ms = as_of_ms - self._config.keep_ms
        pending = (F.col("deliveries") == 0) & F.col("verdict").isin("pending", "late", "lost")
        until = F.greatest("delivered_ms", "due_ms", "store_ms")
        still = verdicts.where(pending | (until > since_ms))
        folder = self._folder(number)
        _records_of(rows, still).write.mode("overwrite").parquet(f"{folder}/rows")
        open_ones = still.select("store", "root")
        reported = findings.select(*REPORTED).join(open_ones, ["store", "root"], "left_semi")
        reported.write.mode("overwrite").parquet(f"{folder}/told")

    def _state(self, number: int) -> dict[str, DataFrame] | None:
        if number < 0:
            return None
        folder, read = self._folder(number), self._spark.read
        reported = ", ".join(f"{n} {'bigint' if n == 'root' else 'string'}" for n in REPORTED)
        rows = read.schema(schema_of("messages", COLUMNS)).parquet(f"{folder}/rows")
        return {"rows": rows, "reported": read.schema(reported).parquet(f"{folder}/told")}

    def _folder(self, number: int) -> str:
        return str(self._home / "state" / f"{number:010d}")

    def _forget(self, number: int) -> None:
        import shutil

        if number >= 0:
            shutil.rmtree(self._folder(number), ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _HomeNote:
    """Contents of watch.json."""

    version: int = 0
    stores: tuple[str, ...] = ()


def claim_home(home: Path, stores: Sequence[str]) -> None:
    """Note whose state is in a directory; open messages of other stores would become alarms.

    Raises:
        UsageError: It has the state of other stores, or of another version.
        OSError: It cannot be written.
    """
    path, own, former = home / "watch.json", _HomeNote(VERSION, tuple(stores)), _HomeNote()
    if exists(path):
        try:
            former = msgspec.json.decode(path.read_bytes(), type=_HomeNote)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} is not a note of a watch: {error}") from error
    elif not exists(home / "checkpoint"):
        home.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(own).decode())
        return
    if former != own:
        others = ", ".join(former.stores) or "unknown stores"
        raise UsageError(
            f"{home} is the state of a watch of {others}, version {former.version}; this one "
            f"watches {', '.join(stores)}, version {VERSION}: give another directory with --home"
        )


def _records_of(rows: DataFrame, histories: DataFrame) -> DataFrame:
    """Return the records of open messages, found by unique id or by log offset."""
    named = histories.where(F.col("unique_id").isNotNull()).select("store", "unique_id").distinct()
    places = histories.select(
        "store", F.explode(F.array_distinct(F.array("root", "leaf"))).alias("place")
    )
    places = places.where(F.col("place").isNotNull()).distinct()
    name = F.coalesce(F.substring_index("cancels", "+", -1), F.col("unique_id"))
    keyed = rows.withColumns({"_name": name, "_origin": origin()})
    by_name = keyed.join(
        named.select(F.col("store"), F.col("unique_id").alias("_name")),
        ["store", "_name"],
        "left_semi",
    )
    by_place = keyed.join(
        places.select("store", F.col("place").alias("phys_offset")),
        ["store", "phys_offset"],
        "left_semi",
    ).unionByName(
        keyed.join(
            places.select("store", F.col("place").alias("_origin")),
            ["store", "_origin"],
            "left_semi",
        )
    )
    records = by_name.unionByName(by_place).select(*rows.columns)
    return records.dropDuplicates(["store", "phys_offset"])
