"""Tables of stores as DataFrames, and their audit in one call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_reconciliation.audit.aggregated_audit import AggregatedAudit, Tallies, aggregate_verdicts
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.plain_sums import PLACED_WORDS, WORDS, Note
from spark_reconciliation.audit.table_reader import ScanPart, TableReader
from spark_reconciliation.audit.verdicts import UNREAD_ROLES, AuditSurvey, take_survey
from spark_reconciliation.jobs.phases import PLANNING, RULES, SCAN, Phases, current_phases
from spark_reconciliation.local.choice import LOCAL_BYTES_MAX
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.local.streams import in_threads
from spark_reconciliation.scan.levels import DEFAULT_LEVELS_MS, stored_levels_ms
from spark_reconciliation.scan.options import BUCKETS_MAX, FORMAT, parse_options
from spark_reconciliation.scan.planned_store import Planned, plan_store
from spark_reconciliation.scan.planning import PARTITION_BYTES, grouped
from spark_reconciliation.scan.tables import TABLES, arrow_schema, schema_of
from spark_reconciliation.spark.tasks import PackedTasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PIECES_PER_CORE: Final = 8
PIECE_BYTES_MAX: Final = 512 << 20
BUCKET_BYTES: Final = 128 << 20  # bytes of the log; its tallies take a sixth of that
BUCKETS_REMOTE: Final = 200  # number of buckets if only the server knows the size of the store
_READS: Final = itertools.count()
QUEUE_COLUMNS = ("topic", "queue_id", "phys_offset", "queue_offset", "store_id", "fault")


def read_table(
    spark: SparkSession,
    paths: Sequence[str],
    table: str,
    columns: Sequence[str] = (),
    *,
    stores: Sequence[Planned] | None = None,
    **options: str | int,
) -> DataFrame:
    """Return columns of a table, all by default. Options: see `data_source`.

    Args:
        stores: Snapshot of each path (`planned_store.plan_store`); None: a snapshot is made now.
            With Spark Connect, the server makes it when the table is used, as for `spark.read`.
    Raises:
        UsageError: A path is not a store, or an option is invalid.
    """
    schema = schema_of(table, columns)
    given = {"path": ",".join(paths), "table": table} | {k: str(v) for k, v in options.items()}
    if _is_remote(spark):
        return spark.read.format(FORMAT).schema(schema).options(**given).load()
    scan_options, names = parse_options(given), list(columns or dict(TABLES[table]))
    if stores is None:
        stores = [plan_store(number, path) for number, path in enumerate(scan_options.paths)]
    if isinstance(spark, LocalSession):
        reader = TableReader(scan_options, names, stores)
        batches = partial(_batches, reader, spark.threads, current_phases())
        keep = stores_bytes(stores) <= LOCAL_BYTES_MAX
        return spark.read(arrow_schema(table, names), batches, keep=keep)
    if "partitionbytes" not in {key.lower() for key in options}:
        scan_options = replace(scan_options, partition_bytes=_piece_bytes(spark, stores))
    parts = TableReader(scan_options, names, stores).partitions()
    tasks = PackedTasks(  # the start of a task takes 25 ms
        grouped(parts, scan_options.partition_bytes, ScanPart.length)
    )
    one_each = spark.range(0, len(tasks), 1, len(tasks))
    return one_each.mapInArrow(
        partial(_read_parts, next(_READS), TableReader(scan_options, names), tasks), schema
    )


def _batches(reader: TableReader, threads: int, phases: Phases) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts of a table, read by threads of this process."""
    parts, before = reader.partitions(), phases.name
    phases.begin(SCAN, sum(map(ScanPart.length, parts)))
    results = in_threads(lambda part: list(reader.read(part)), parts, threads)
    for part, batches in zip(parts, results, strict=True):
        yield from batches
        phases.done += part.length()
    phases.begin(before)


def stores_bytes(stores: Sequence[Planned]) -> int:
    """Return the bytes of the logs of stores that are read."""
    return sum(store.scanned_bytes for store in stores)


def _is_remote(spark: SparkSession) -> bool:
    """Return whether Spark runs behind Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _cores(spark: SparkSession) -> int:
    """Return the number of tasks that run at a time."""
    if isinstance(spark, LocalSession):
        return spark.threads
    return int(spark.sparkContext.defaultParallelism)


def _piece_bytes(spark: SparkSession, stores: Sequence[Planned]) -> int:
    """Return the bytes that one task reads, large enough for its start to be negligible.

    Remote files are read into memory completely.
    """
    if not all(store.root.is_local for store in stores):
        return PARTITION_BYTES
    task_bytes = stores_bytes(stores) // (_cores(spark) * PIECES_PER_CORE)
    return min(max(task_bytes, PARTITION_BYTES), PIECE_BYTES_MAX)


def _read_parts(
    read: int, reader: TableReader, tasks: PackedTasks, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the parts of the tasks with some numbers. Runs on a worker.

    Args:
        read: Number of the read. Without it, Spark would use the persisted rows of an equal read,
            although the store may have changed since.
    """
    from spark_reconciliation.spark.reader import settle_worker

    settle_worker()
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for part in tasks.parts(number):
                yield from reader.read(part)


def survey_stores(
    spark: SparkSession,
    paths: Sequence[str],
    config: AuditConfig | None = None,
    *,
    planned: Sequence[Planned] | None = None,
    note: Note | None = None,
) -> tuple[AuditSurvey, Tallies]:
    """Return the rare records of stores, and their tallies, of one snapshot.

    Args:
        planned: Snapshot of each store; None: it is taken now.
        note: Called with the sums of each bucket, by threads; of the local engine only.
    Raises:
        UsageError: A path is not a store.
    """
    config, phases = config or AuditConfig(), current_phases()
    phases.begin(PLANNING)
    if not _is_remote(spark):
        if planned is None:
            planned = [plan_store(number, path) for number, path in enumerate(paths)]
        if config.levels_ms == DEFAULT_LEVELS_MS and not config.levels_of:
            config = replace(config, levels_of=stored_levels_ms(paths))

    def table(name: str, columns: Sequence[str] = (), **options: str) -> DataFrame:
        return read_table(spark, paths, name, columns, stores=planned, **options)

    def messages(columns: Sequence[str], roles: Sequence[int]) -> DataFrame:
        return table("messages", columns, roles=",".join(str(role) for role in roles))

    def queues(topics: Sequence[str]) -> DataFrame:
        return table("consume_queue", QUEUE_COLUMNS, topics=",".join(topics), lost="true")

    phases.begin(SCAN)
    survey = take_survey(messages, queues, table("stores"), config)
    size = stores_bytes(planned or ())
    least = BUCKETS_REMOTE if planned is None else 2 * _cores(spark)
    count = min(max(size // BUCKET_BYTES, least), BUCKETS_MAX)
    given_ms = config.as_of_ms
    as_of_ms = [store.last_ms if given_ms is None else given_ms for store in planned or ()]
    places = "false" if note is None else "true"
    frame = table("tallies", buckets=str(count), places=places)
    words = WORDS if note is None else PLACED_WORDS
    return survey, Tallies(frame, count, tuple(as_of_ms), words, note)


def audit_stores(
    spark: SparkSession,
    paths: Sequence[str],
    config: AuditConfig | None = None,
    *,
    ids: bool = True,
) -> tuple[DataFrame, DataFrame]:
    """Return the verdicts about stores, and unreadable ranges.

    Rare records are searched at once; verdicts are computed when they are used, so persist them to
    use them twice. Without `ids` there is no `unique_id`, which is faster.
    """
    survey, _ = survey_stores(spark, paths, config)
    current_phases().begin(RULES)
    return survey.verdicts(survey.histories(survey.plain), ids=ids), survey.unread


def count_stores(
    spark: SparkSession, paths: Sequence[str], config: AuditConfig | None = None
) -> tuple[AggregatedAudit, DataFrame | None]:
    """Return the findings of stores, counts of all other messages, and unreadable ranges.

    An action, several times as fast as `audit_stores` if there are few findings. On Spark, few
    findings are persisted: otherwise, each use of them plans and scans again.
    """
    survey, tallies = survey_stores(spark, paths, config)
    current_phases().begin(RULES)
    brief = aggregate_verdicts(survey, tallies)
    if brief.rest is not None and brief.kept and not isinstance(spark, LocalSession):
        brief = replace(brief, rest=brief.rest.persist())
    return brief, survey.unread if survey.met & UNREAD_ROLES else None
