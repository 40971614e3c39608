"""`spark.read.format("duemq")`: the exported tables, directly from stores.

    option            meaning                                                     default
    path              store directory or URL; several are separated by commas
    table             scheduled, delivered, decisions, pops                       scheduled
    brokers           names of the brokers of the stores, separated by commas     directories
    partitionBytes    bytes of the files that one task reads                      64 MiB
    acceptGap         whether to continue without records that retention removed  false
                      before a stream has read them, or that are unreadable

The schemas are those of `tables.schemas`. A stream (`spark.readStream`) returns the rows of new
records, each once with a checkpoint; its offset is

    {store: log offset of the next record, first@store: log offset at which the stream began,
     last@store: log offset of the last record, mark@store: checksum of its fields}

A log that was truncated lacks that record, or has another one: the stream ends with an error.

`lateness` is an aggregation of `delivered`; `duemq reconcile export` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from duemq_common.errors import UsageError
from spark_reconciliation.scan.planning import (
    PARTITION_BYTES,
    LogEnds,
    LogPlan,
    ScanSegment,
    grouped,
    log_segments,
    plan_until,
)
from spark_reconciliation.scan.record_mark import read_mark
from spark_reconciliation.tables.exported_log import (
    ExportedLog,
    check_complete,
    named_stores,
    plan_of_store,
)
from spark_reconciliation.tables.rows import TableRows
from spark_reconciliation.tables.schemas import OF_LOG, TABLES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_reconciliation.scan.files import Root

FORMAT: Final = "duemq"
OPTIONS: Final = ("path", "table", "brokers", "partitionbytes", "acceptgap")
FIRST, LAST, MARK = "first@", "last@", "mark@"
NO_MARK: Final = -1
LogOffsets = dict[str, int]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of the source; see the module."""

    brokers: Mapping[str, str]
    table: str
    partition_bytes: int
    accept_gap: bool

    @property
    def remedy(self) -> str:
        """What continues without unreadable records; empty: they are accepted."""
        return "" if self.accept_gap else "the option acceptGap=true"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TableOptions:
        """Return the parsed options.

        Raises:
            UsageError: An option is missing, unknown or invalid.
        """
        given = {key.lower(): value for key, value in options.items()}
        if unknown := [key for key in given if key not in OPTIONS]:
            raise UsageError(
                f"unknown option {unknown[0]} of {FORMAT}; there are {', '.join(OPTIONS)}"
            )
        paths, names = _words(given.get("path", "")), _words(given.get("brokers", ""))
        if not paths:
            raise UsageError(f"{FORMAT} needs the option path: a store directory")
        table = given.get("table", "scheduled")
        if table not in OF_LOG:
            raise UsageError(f"{FORMAT} has no table {table}; there are {', '.join(OF_LOG)}")
        size = given.get("partitionbytes", str(PARTITION_BYTES))
        if not (size.isascii() and size.isdigit() and int(size)):
            raise UsageError(f"{FORMAT}: partitionBytes={size} is not a number of bytes")
        accept_gap = given.get("acceptgap", "false").lower() == "true"
        return cls(named_stores(paths, names), table, int(size), accept_gap)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@dataclass
class TablePart(InputPartition):
    """Work of one task: segments of one log; none without a log."""

    log: ExportedLog | None = None
    segments: tuple[ScanSegment, ...] = ()


class TableSource(DataSource):
    """Data source of the exported tables."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return all columns of the table."""
        return TABLES[TableOptions.parse(self.options).table].sql

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`."""
        return ExportedRowsReader(TableOptions.parse(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of the log as it grows."""
        return ExportedRowsStream(TableOptions.parse(self.options), schema.fieldNames())


class ExportedRowsReader(DataSourceReader):
    """Reader of the logs up to their present ends."""

    def __init__(self, options: TableOptions, columns: Sequence[str]) -> None:
        self._options, self._columns = options, list(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts.

        Raises:
            UsageError: A path is not a store.
        """
        parts: list[InputPartition] = []
        for broker, store in self._options.brokers.items():
            root, plan = plan_of_store(store)
            check_complete(root, plan, plan.min, self._options.remedy)
            log = ExportedLog.of_store(root, plan, broker, plan.min)
            parts += _parts(log, plan.min, self._options.partition_bytes)
        return parts or [TablePart()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        return _read(partition, self._options, self._columns)


class ExportedRowsStream(DataSourceStreamReader):
    """Planner of micro-batches."""

    def __init__(self, options: TableOptions, columns: Sequence[str]) -> None:
        self._options, self._columns = options, list(columns)
        self._ends = LogEnds()

    def initialOffset(self) -> LogOffsets:
        """Return the first offsets of the logs."""
        offsets: LogOffsets = {}
        for root, plan in self._plans():
            offsets |= {root.url: plan.min, FIRST + root.url: plan.min}
        return offsets

    def latestOffset(self, start: LogOffsets | None = None, limit: object = None) -> LogOffsets:
        """Return the present ends of the logs, at least `start`."""
        offsets = dict(start or {})
        for root, plan in self._plans():
            offsets.setdefault(FIRST + root.url, plan.min)
            if plan.end > offsets.setdefault(root.url, plan.min):
                offsets[root.url] = plan.end
                offsets |= {
                    LAST + root.url: plan.last,
                    MARK + root.url: _mark(root, plan, plan.last),
                }
        return offsets

    def partitions(self, start: LogOffsets, end: LogOffsets) -> Sequence[InputPartition]:
        """Return the parts of one micro-batch.

        Raises:
            UsageError: Retention removed records before they were read, or the log was truncated.
        """
        parts: list[InputPartition] = []
        for broker, store in self._options.brokers.items():
            root, plan = plan_of_store(store, lambda root: plan_until(root, end.get(root.url, 0)))
            first = start.get(root.url, plan.min)
            if first < plan.min and not self._options.accept_gap:
                raise UsageError(
                    f"the log of {root.url} begins at {plan.min}, and the stream has read it up to "
                    f"{first}: the option acceptGap=true continues without the records between"
                )
            check_complete(root, plan, first, self._options.remedy)
            _check_continued(root, plan, start)
            begin = end.get(FIRST + root.url, plan.min)
            log = ExportedLog.of_store(root, plan, broker, begin)
            parts += _parts(log, first, self._options.partition_bytes)
        return parts or [TablePart()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        return _read(partition, self._options, self._columns)

    def _plans(self) -> Iterator[tuple[Root, LogPlan]]:
        for store in self._options.brokers.values():
            yield plan_of_store(store, self._ends.plan)


def _check_continued(root: Root, plan: LogPlan, start: LogOffsets) -> None:
    """Check that a log has the last record of the former batch, unless retention removed it.

    Raises:
        UsageError: It has not.
    """
    last, mark = start.get(LAST + root.url, -1), start.get(MARK + root.url, NO_MARK)
    if last >= plan.min and mark not in (NO_MARK, _mark(root, plan, last)):
        raise UsageError(
            f"the log of {root.url} was truncated: the stream has read another record at {last}. "
            f"Begin a new stream, with a new checkpoint"
        )


def _mark(root: Root, plan: LogPlan, offset: int) -> int:
    """Return the checksum of the record at a log offset; NO_MARK without one."""
    mark = read_mark(root, plan, offset)
    return NO_MARK if mark is None else crc32(mark.fingerprint.encode())


def _parts(log: ExportedLog, first: int, size: int) -> list[TablePart]:
    segments = log_segments(log.root, log.plan, bytes_max=size, first=first)
    return [TablePart(log, group) for group in grouped(segments, size, ScanSegment.length)]


def _read(
    partition: InputPartition, options: TableOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table. Runs on a worker.

    Raises:
        UsageError: A range of the log is unreadable, and gaps are not accepted.
    """
    assert isinstance(partition, TablePart)
    if partition.log is None:
        return
    rows = TableRows(partition.log)
    for name, batch in rows.read(partition.segments):
        if name == options.table:
            yield batch.select(columns)
    if rows.findings and options.remedy:
        one = rows.findings[0]
        reason = f"{one.store}/{one.file} at {one.offset}: {one.text}"
        raise UsageError(f"{reason}. {options.remedy} continues without these records")
