"""`spark.read.format("rocketmq-store")`: the tables of store directories.

    option            meaning                                                     default
    path              a store directory or URL; several: separated by commas
    table             messages, consume_queue, schedule, timer_log, timer_wheel,  messages
                      cursors, index, findings, stores, tallies
    topics            only these, separated by commas                             all
    fromMs, untilMs   only records stored in fromMs <= time < untilMs             all
    startOffset       only records at this log offset or behind it                0
    endOffset         only records before this log offset                         the log's end
    partitionBytes    of the files that one task reads                            64 MiB
    checkBody         whether bodies are compared with their CRC (`damage`);      true
                      those of tallies always are
    timerPrecisionMs  of the store's timers                                       1000
    pushdown          whether filters are taken over, see below                   false
    roles             only messages of these roles (numbers, see `tables`)        all
    lost              of consume_queue only units without a record, and files     false
                      that cannot be read
    buckets           of tallies: how many                                        64
    tickMs            of a stream: see `stream`                                   0

The schema is that of `tables`; a schema of your own with fewer columns decodes fewer columns. The
log is read up to where it ended when the job was planned. What cannot be read does not end a job:
it is a row of `messages` with a `damage` other than body-crc, and a row of `findings`.

As a stream (`spark.readStream`): see `stream`.

With `pushdown` filters on topics, times and offsets are taken over, where Spark has it
(spark.sql.python.filterPushdown.enabled). Only for a table that is used once in a query: Spark 4
reads both sides of a join of one table with the filters of one of them. The options do the same,
and can be relied on.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from message_store.errors import UsageError
from reconciliation.audit.other_files import Look, look_at, plan_looks
from reconciliation.audit.plain_sums import NEEDED, Buckets, pack_past
from reconciliation.audit.pointers import GONE
from reconciliation.audit.removed_records import gone_rows, gone_segments, gone_units, read_gone
from reconciliation.scan import unit_tables
from reconciliation.scan.columns import MessageColumns, arrow_schema
from reconciliation.scan.files import Root
from reconciliation.scan.options import FORMAT, Wanted, wanted_of
from reconciliation.scan.place_rows import clock_rows, gap_rows
from reconciliation.scan.planned_store import Planned, plan_store
from reconciliation.scan.planning import (  # fmt: skip
    Finding,
    LogPlan,
    Segment,
    grouped,
    log_segments,
)
from reconciliation.scan.pushdown import narrowed
from reconciliation.scan.record_scan import Walk
from reconciliation.scan.store_state import Standing
from reconciliation.scan.tables import (
    PLAIN,
    ROLE_CLOCK,
    ROLE_GAP,
    ROLE_GONE,
    ROLE_PAST,
    STORES,
    TABLES,
    schema_of,
)
from reconciliation.spark.stream import StoreStreamReader
from timer_store.layout import UNIT_BYTES

Rows = npt.NDArray[Any]
NO_STATE: Final = Standing()
NEED_STANDING: Final = frozenset({"passed", "unit_ms", "other_time", "queued"})
"""Columns of `messages` for which a worker has to know how far a store has come."""
TELLING: Final = ("messages", "findings", "stores", "tallies")
"""Tables that tell how far a store has come."""


class StoreSource(DataSource):
    """The data source. Spark creates a new one for each use."""

    @classmethod
    def name(cls) -> str:
        """Return what `format` is called."""
        return FORMAT

    def schema(self) -> str:
        """Return all columns of the table."""
        return schema_of(wanted_of(self.options).table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of `schema`.

        Raises:
            UsageError: A column does not exist, or has another type.
        """
        return self._reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of the log as it grows.

        Raises:
            UsageError: It is another table than `messages`, or as for `reader`.
        """
        wanted = wanted_of(self.options)
        if wanted.table != "messages":
            raise UsageError(f"only the table messages can be streamed, not {wanted.table}")
        return StoreStreamReader(wanted, self._reader(schema), Part)

    def _reader(self, schema: StructType) -> StoreReader:
        wanted = wanted_of(self.options)
        kinds = dict(TABLES[wanted.table])
        for field in schema.fields:
            if kinds.get(field.name) != field.dataType.simpleString():
                found = f"{field.name} {field.dataType.simpleString()}"
                raise UsageError(
                    f"the table {wanted.table} has no column {found}: {schema_of(wanted.table)}"
                )
        made = PushingReader if wanted.pushdown else StoreReader
        return made(wanted, [field.name for field in schema.fields])


@dataclass
class Part(InputPartition):
    """What one task reads: segments of one table, or what planning found already."""

    segments: tuple[Segment, ...] = ()
    findings: tuple[Finding, ...] = ()
    looks: tuple[Look, ...] = ()
    stores: tuple[tuple[str, Root], ...] = ()
    standing: Standing = NO_STATE
    rows: tuple[tuple[Any, ...], ...] = ()
    gone: tuple[Segment, ...] = ()


class StoreReader(DataSourceReader):
    """Plans the parts of a table, and reads one of them.

    Args:
        stores: the moment to read, of each path; None: that of planning.
    """

    def __init__(
        self, wanted: Wanted, columns: Sequence[str], stores: Sequence[Planned] | None = None
    ) -> None:
        self._wanted, self._columns, self._stores = wanted, list(columns), stores

    def partitions(self) -> Sequence[Part]:
        """Return the parts.

        Raises:
            UsageError: A path has no store.
        """
        stores = self._stores
        if stores is None:
            asks = self._wanted.table in TELLING
            stores = [
                plan_store(number, path, standing=asks)
                for number, path in enumerate(self._wanted.paths)
            ]
        found = [part for store in stores for part in self._parts(store)]
        return found or [Part()]

    def _parts(self, store: Planned) -> list[Part]:
        wanted, root, plan = self._wanted, store.root, store.plan
        standing, number = store.standing, store.standing.number
        segments, findings = self._segments(root, plan)
        telling = wanted.table == "findings" or ROLE_GAP in wanted.roles
        if not NEED_STANDING & set(self._columns) and wanted.table != "tallies":
            standing = Standing(number)  # what workers do not need is not sent to them
        if telling:
            findings = [*findings, *store.unread]
        groups = grouped(segments, wanted.partition_bytes)
        found = [Part(group, standing=standing) for group in groups]
        if telling:
            looks, unread = plan_looks(
                root, plan, wanted.partition_bytes, store.standing, wanted.precision_ms
            )
            findings = [*findings, *unread]
            found += [Part(looks=(look,), standing=standing) for look in looks]
        if wanted.table == "tallies" or {ROLE_GONE, ROLE_PAST} & wanted.roles:
            gone = gone_segments(root.url, root, plan)
            groups = grouped(gone, wanted.partition_bytes)
            found += [Part(gone=group, standing=store.standing) for group in groups]
        if wanted.table == "cursors":
            found.append(Part(stores=((root.url, root),)))
        if wanted.table == "stores":
            last_ms = max(plan.last_ms, store.standing.read_ms or 0)
            row = (number, root.url, plan.min, plan.end, last_ms, plan.last_ms)
            found.append(Part(rows=(row,)))
        if findings and wanted.table in ("findings", "messages"):
            found.append(Part(findings=tuple(findings), standing=standing))
        return found

    def _segments(self, root: Root, plan: LogPlan) -> tuple[list[Segment], list[Finding]]:
        try:
            return self._segments_of(root, plan)
        except OSError:  # a directory: `findings` tells it
            return [], []

    def _segments_of(self, root: Root, plan: LogPlan) -> tuple[list[Segment], list[Finding]]:
        wanted, store, limit = self._wanted, root.url, plan.end
        size = wanted.partition_bytes
        if wanted.table in ("messages", "findings", "tallies"):
            found = log_segments(
                store, root, plan, bytes_max=size, first=wanted.start, end=wanted.end
            )
            return found, list(plan.findings)
        if wanted.table in ("consume_queue", "schedule"):
            is_schedule = wanted.table == "schedule"
            topics = frozenset({unit_tables.SCHEDULE_TOPIC}) if is_schedule else wanted.topics
            return unit_tables.queue_segments(store, root, limit, topics=topics)
        if wanted.table == "timer_log":
            return unit_tables.file_segments(
                store, root, "timerlog", limit, unit_bytes=UNIT_BYTES, bytes_max=size
            )
        if wanted.table == "timer_wheel":
            return unit_tables.named_file(store, root, "timerwheel", limit), []
        if wanted.table == "index":
            return unit_tables.named_files(store, root, "index", limit), []
        return [], []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a part."""
        assert isinstance(partition, Part)
        _settle_worker()
        table = self._wanted.table
        schema = arrow_schema(table, self._columns)
        if partition.findings and self._takes_gaps:
            yield from _told(schema, partition.findings, table, partition.standing.number)
        for look in partition.looks:
            findings = list(look_at(look))
            if ROLE_GONE in self._wanted.roles and table == "messages":
                yield _removed(schema, findings, partition.standing.number)
            yield from _told(schema, findings, table, partition.standing.number)
        if partition.gone and table == "messages":
            yield from read_gone(schema, partition.gone, partition.standing, self._wanted.roles)
        elif partition.gone:
            yield from self._past(partition.gone, partition.standing)
        if partition.rows:
            names = [name for name, _ in STORES]
            rows = [dict(zip(names, row, strict=True)) for row in partition.rows]
            made = [{name: row[name] for name in schema.names} for row in rows]
            yield pa.RecordBatch.from_pylist(made, schema)
        for store, root in partition.stores:
            cursors = unit_tables.read_cursors(store, root)
            rows = [{n: row[n] for n in schema.names} for row in cursors]
            yield pa.RecordBatch.from_pylist(rows, schema)
        for segment in partition.segments:
            if table == "messages":
                yield from self._messages(segment, partition.standing)
            elif table == "tallies":
                yield from self._tallies(segment, partition.standing)
            elif table == "findings":
                walk = Walk(segment, clock=True)
                for _ in walk.chunks() if walk.open() else ():
                    pass
                steps = [step.finding for step in walk.steps]
                yield from _told(schema, [*walk.findings, *steps], table)
            else:
                more = {"store_id": partition.standing.number}
                lost = self._wanted.lost and table == "consume_queue"
                for values in unit_tables.read_units(table, segment, set(self._columns), lost=lost):
                    yield unit_tables.to_batch(schema, segment.store, more | values)

    def _tallies(self, segment: Segment, standing: Standing) -> Iterator[pa.RecordBatch]:
        columns = MessageColumns(NEEDED, self._wanted.precision_ms, PLAIN, standing)
        walk, buckets = Walk(segment), Buckets(self._wanted.buckets)
        for rows in walk.chunks() if walk.open() else ():
            packed = columns.packed(walk, self._wanted.keep(walk, rows))
            if packed is not None:
                yield from buckets.take(packed)
        yield from buckets.rest()

    def _past(self, segments: Sequence[Segment], standing: Standing) -> Iterator[pa.RecordBatch]:
        buckets = Buckets(self._wanted.buckets)
        for segment in segments:
            for _, settled in gone_units(segment, standing):
                yield from buckets.take(pack_past(standing.number, settled))
        yield from buckets.rest()

    @property
    def _takes_gaps(self) -> bool:
        return not self._wanted.roles or ROLE_GAP in self._wanted.roles

    def _messages(self, segment: Segment, standing: Standing) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        columns = MessageColumns(
            self._columns, wanted.precision_ms, wanted.roles, standing, check=wanted.check_body
        )
        walk = Walk(segment, clock=ROLE_CLOCK in wanted.roles)
        for rows in walk.chunks() if walk.open() else ():
            rows = wanted.keep(walk, rows)
            made = columns.batch(walk, rows) if rows.size else None
            if made is not None:
                yield made
        topics = columns.topic_rows(walk)
        if topics is not None:
            yield topics
        gaps = gap_rows(columns.schema, walk.findings, standing.number)
        if gaps is not None and self._takes_gaps:
            yield gaps
        steps = clock_rows(columns.schema, walk.steps, standing.number)
        if steps is not None:
            yield steps


@cache
def _settle_worker() -> None:
    """Spare a worker the garbage of what it imported: Spark collects it after each task."""
    if "pyspark.worker" in sys.modules:
        gc.collect()
        gc.freeze()


class PushingReader(StoreReader):
    """A reader that takes filters over."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take filters on topics, times and offsets over; return all that Spark must do itself."""
        for one in filters:
            taken = narrowed(self._wanted, one)
            if taken is None:
                yield one
            else:
                self._wanted = taken


def _removed(schema: pa.Schema, findings: Sequence[Finding], number: int) -> pa.RecordBatch:
    """Return the records that findings call removed as rows of `messages`."""
    gone = [one.offset for one in findings if one.kind == GONE]
    return gone_rows(schema, number, np.array(gone, np.int64), ROLE_GONE)


def _told(
    schema: pa.Schema, findings: Sequence[Finding], table: str, number: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield findings as rows of their own table, or of `messages`."""
    if table == "messages":
        found = gap_rows(schema, [one for one in findings if one.kind != GONE], number)
        if found is not None:
            yield found
    elif findings:
        rows = [{name: getattr(f, name) for name in schema.names} for f in findings]
        yield pa.RecordBatch.from_pylist(rows, schema)
