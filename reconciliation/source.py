"""`spark.read.format("rocketmq-store")`: the tables of store directories, for Spark.

    option            meaning                                                     default
    path              a store directory or URL; several: separated by commas
    table             messages, consume_queue, schedule, timer_log, timer_wheel,  messages
                      cursors, index, findings, stores
    topics            only these, separated by commas                             all
    fromMs, untilMs   only records stored in fromMs <= time < untilMs             all
    startOffset       only records at this log offset or behind it                0
    endOffset         only records before this log offset                         the log's end
    partitionBytes    of the files that one task reads                            64 MiB
    checkBody         whether bodies are compared with their CRC (`damage`)       true
    timerPrecisionMs  of the store's timers                                       1000
    pushdown          whether filters are taken over, see below                   false
    roles             only messages of these roles (numbers, see `tables`)        all
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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from message_store.errors import UsageError
from message_store.layout import RECORD_FIXED_BYTES
from reconciliation import units
from reconciliation.beside import Look, look_at, plan_looks
from reconciliation.columns import MessageColumns, arrow_schema
from reconciliation.facts import Standing, read_standing
from reconciliation.files import Root
from reconciliation.place_rows import clock_rows, gap_rows
from reconciliation.planning import (
    OFFSET_MAX,
    PARTITION_BYTES,
    Finding,
    LogPlan,
    Segment,
    grouped,
    log_segments,
    plan_log,
)  # fmt: skip
from reconciliation.scanning import Walk
from reconciliation.stream import StoreStreamReader
from reconciliation.tables import ROLE_CLOCK, ROLE_GAP, STORES, TABLES, schema_of
from timer_store.layout import UNIT_BYTES

FORMAT: Final = "rocketmq-store"
OPTIONS: Final = (
    "path", "table", "topics", "fromms", "untilms", "startoffset", "endoffset", "partitionbytes",
    "checkbody", "timerprecisionms", "roles", "pushdown",
    "tickms",
)  # fmt: skip
Rows = npt.NDArray[Any]
NOBODY: Final = Standing()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be read: the options, and filters that were pushed down."""

    paths: tuple[str, ...]
    table: str = "messages"
    topics: frozenset[str] = frozenset()  # empty: all
    from_ms: int = 0
    until_ms: int = OFFSET_MAX
    start: int = 0
    end: int = OFFSET_MAX
    partition_bytes: int = PARTITION_BYTES
    check_body: bool = True
    precision_ms: int = 1_000
    roles: frozenset[int] = frozenset()  # empty: all
    pushdown: bool = False
    tick_ms: int = 0

    def keep(self, walk: Walk, rows: Rows) -> Rows:
        """Return those rows of a walk that are wanted; offsets are kept by the segments."""
        mask = np.ones(rows.size, np.bool_)
        if self.topics:
            wanted = [i for i in range(len(walk.topics)) if walk.topics.name(i) in self.topics]
            mask &= np.isin(rows["topic_index"], wanted)
        if self.from_ms or self.until_ms < OFFSET_MAX:
            mask &= (rows["store_ms"] >= self.from_ms) & (rows["store_ms"] < self.until_ms)
        return rows if mask.all() else rows[mask]


def wanted_of(options: Mapping[str, str]) -> Wanted:
    """Return what options ask for.

    Raises:
        UsageError: An option is missing, unknown or no number.
    """
    given = {key.lower(): value for key, value in options.items()}
    if unknown := [key for key in given if key not in OPTIONS]:
        raise UsageError(f"unknown option {unknown[0]} of {FORMAT}; there are {', '.join(OPTIONS)}")
    paths = tuple(path.strip() for path in given.get("path", "").split(",") if path.strip())
    table = given.get("table", "messages")
    if not paths:
        raise UsageError(
            f"{FORMAT} needs the option path: a store directory, or several with commas"
        )
    if table not in TABLES:
        raise UsageError(f"{FORMAT} has no table {table}; there are {', '.join(TABLES)}")
    topics = given.get("topics", "")
    return Wanted(
        paths,
        table,
        frozenset(name.strip() for name in topics.split(",") if name.strip()),
        _number(given, "fromms", 0),
        _number(given, "untilms", OFFSET_MAX),
        _number(given, "startoffset", 0),
        _number(given, "endoffset", OFFSET_MAX),
        max(_number(given, "partitionbytes", PARTITION_BYTES), RECORD_FIXED_BYTES),
        given.get("checkbody", "true").lower() != "false",
        _number(given, "timerprecisionms", 1_000),
        _roles(given.get("roles", "")),
        given.get("pushdown", "false").lower() == "true",
        _number(given, "tickms", 0),
    )


def _roles(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if any(not (word.isascii() and word.isdigit()) for word in words):
        raise UsageError(f"{FORMAT}: roles={text} are no numbers")
    return frozenset(int(word) for word in words)


def _number(given: Mapping[str, str], key: str, default: int) -> int:
    text = given.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{FORMAT}: {key}={text} is no number")
    return int(text)


class StoreSource(DataSource):
    """The data source. Spark makes it anew wherever it needs it."""

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
    standing: Standing = NOBODY
    rows: tuple[tuple[Any, ...], ...] = ()


class StoreReader(DataSourceReader):
    """Plans the parts of a table, and reads one of them."""

    def __init__(self, wanted: Wanted, columns: Sequence[str]) -> None:
        self._wanted, self._columns = wanted, list(columns)

    def partitions(self) -> Sequence[Part]:
        """Return the parts.

        Raises:
            UsageError: A path has no store.
        """
        wanted = self._wanted
        found: list[Part] = []
        for number, path in enumerate(wanted.paths):
            root = Root(path.rstrip("/"))
            plan = plan_log(root.url, root)
            if not plan.files and not root.folders("consumequeue"):
                raise UsageError(f"{path} is no store: it has neither commitlog nor consumequeue")
            found += self._parts(number, root, plan)
        return found or [Part()]

    def _parts(self, number: int, root: Root, plan: LogPlan) -> list[Part]:
        wanted = self._wanted
        segments, findings = self._segments(root, plan)
        standing = Standing(number)
        telling = wanted.table == "findings" or ROLE_GAP in wanted.roles
        if (
            telling
            or wanted.table == "stores"
            or (wanted.table == "messages" and {"passed", "unit_ms"} & set(self._columns))
        ):
            standing, unread = read_standing(number, root, plan)
            findings = [*findings, *unread]
        groups = grouped(segments, wanted.partition_bytes)
        found = [Part(group, standing=standing) for group in groups]
        if telling:
            looks, unread = plan_looks(root, plan, wanted.partition_bytes)
            findings = [*findings, *unread]
            found += [Part(looks=(look,), standing=standing) for look in looks]
        if wanted.table == "cursors":
            found.append(Part(stores=((root.url, root),)))
        if wanted.table == "stores":
            last_ms = max(plan.last_ms, standing.read_ms or 0)
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
        if wanted.table in ("messages", "findings"):
            found = log_segments(
                store, root, plan, bytes_max=size, first=wanted.start, end=wanted.end
            )
            return found, list(plan.findings)
        if wanted.table in ("consume_queue", "schedule"):
            is_schedule = wanted.table == "schedule"
            topics = frozenset({units.SCHEDULE_TOPIC}) if is_schedule else wanted.topics
            return units.queue_segments(store, root, limit, topics=topics)
        if wanted.table == "timer_log":
            return units.file_segments(
                store, root, "timerlog", limit, unit_bytes=UNIT_BYTES, bytes_max=size
            )
        if wanted.table == "timer_wheel":
            return units.named_file(store, root, "timerwheel", limit), []
        if wanted.table == "index":
            return units.named_files(store, root, "index", limit), []
        return [], []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a part."""
        assert isinstance(partition, Part)
        table = self._wanted.table
        schema = arrow_schema(table, self._columns)
        if partition.findings and self._takes_gaps:
            yield from _told(schema, partition.findings, table, partition.standing.number)
        for look in partition.looks:
            yield from _told(schema, list(look_at(look)), table, partition.standing.number)
        if partition.rows:
            names = [name for name, _ in STORES]
            rows = [dict(zip(names, row, strict=True)) for row in partition.rows]
            made = [{name: row[name] for name in schema.names} for row in rows]
            yield pa.RecordBatch.from_pylist(made, schema)
        for store, root in partition.stores:
            cursors = units.read_cursors(store, root)
            rows = [{n: row[n] for n in schema.names} for row in cursors]
            yield pa.RecordBatch.from_pylist(rows, schema)
        for segment in partition.segments:
            if table == "messages":
                yield from self._messages(segment, partition.standing)
            elif table == "findings":
                walk = Walk(segment, clock=True)
                for _ in walk.chunks() if walk.open() else ():
                    pass
                steps = [step.finding for step in walk.steps]
                yield from _told(schema, [*walk.findings, *steps], table)
            else:
                more = {"store_id": partition.standing.number}
                for values in units.read_units(table, segment, set(self._columns)):
                    yield units.to_batch(schema, segment.store, more | values)

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


class PushingReader(StoreReader):
    """A reader that takes filters over."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take filters on topics, times and offsets over; return all that Spark must do itself."""
        for one in filters:
            taken = _narrowed(self._wanted, one)
            if taken is None:
                yield one
            else:
                self._wanted = taken


def _told(
    schema: pa.Schema, findings: Sequence[Finding], table: str, number: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield findings as rows of their own table, or of `messages`."""
    if table == "messages":
        found = gap_rows(schema, findings, number)
        if found is not None:
            yield found
    elif findings:
        rows = [{name: getattr(f, name) for name in schema.names} for f in findings]
        yield pa.RecordBatch.from_pylist(rows, schema)


def _narrowed(wanted: Wanted, one: Any) -> Wanted | None:
    """Return what is to be read with a filter taken over, None if it cannot be."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    if wanted.table != "messages" or len(attribute) != 1:
        return None
    if attribute[0] == "topic" and isinstance(one, datasource.EqualTo):
        return _with_topics(wanted, {value})
    if attribute[0] == "topic" and isinstance(one, datasource.In):
        return _with_topics(wanted, set(value))
    return _within(wanted, attribute[0], one, value) if isinstance(value, int) else None


def _with_topics(wanted: Wanted, names: set[Any]) -> Wanted | None:
    if not all(isinstance(name, str) for name in names):
        return None
    left = frozenset(names & wanted.topics if wanted.topics else names)
    return replace(wanted, topics=left) if left else None


def _within(wanted: Wanted, name: str, one: Any, value: int) -> Wanted | None:
    if isinstance(one, datasource.GreaterThan | datasource.GreaterThanOrEqual):
        first = value + isinstance(one, datasource.GreaterThan)
        if name == "store_ms":
            return replace(wanted, from_ms=max(wanted.from_ms, first))
        if name == "phys_offset":
            return replace(wanted, start=max(wanted.start, first))
    if isinstance(one, datasource.LessThan | datasource.LessThanOrEqual):
        end = value + isinstance(one, datasource.LessThanOrEqual)
        if name == "store_ms":
            return replace(wanted, until_ms=min(wanted.until_ms, end))
        if name == "phys_offset":
            return replace(wanted, end=min(wanted.end, end))
    return None
