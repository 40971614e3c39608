"""Parts of a table scan, and the reader that plans and reads them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from reconciliation.audit.other_files import Look, look_at, plan_looks
from reconciliation.audit.plain_sums import NEEDED, Buckets, pack_past
from reconciliation.audit.pointers import GONE
from reconciliation.audit.removed_records import gone_segments, gone_units, read_gone
from reconciliation.scan import unit_tables
from reconciliation.scan.columns import MessageColumns
from reconciliation.scan.files import Root
from reconciliation.scan.options import Wanted
from reconciliation.scan.place_rows import clock_rows, gap_rows, gone_rows
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
from reconciliation.scan.roles import PLAIN, ROLE_CLOCK, ROLE_GAP, ROLE_GONE, ROLE_PAST
from reconciliation.scan.store_state import Standing
from reconciliation.scan.tables import arrow_schema, batch_of_columns, batch_of_rows
from timer_store.layout import UNIT_BYTES

NO_STATE: Final = Standing()
NEED_STANDING: Final = frozenset({"passed", "unit_ms", "other_time", "queued"})
"""Columns of `messages` for which a worker has to know how far a store has come."""
TELLING: Final = ("messages", "findings", "stores", "tallies")
"""Tables that tell how far a store has come."""


@dataclass
class Part(InputPartition):
    """What one task reads: segments of one table, or what planning found already."""

    segments: tuple[Segment, ...] = ()
    findings: tuple[Finding, ...] = ()
    looks: tuple[Look, ...] = ()
    stores: tuple[tuple[str, Root], ...] = ()
    standing: Standing = NO_STATE
    rows: tuple[Mapping[str, object], ...] = ()
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
            facts = {"store_id": number, "store": root.url, "log_min": plan.min}
            facts |= {"log_end": plan.end, "last_ms": last_ms, "log_ms": plan.last_ms}
            found.append(Part(rows=(facts,)))
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
            yield batch_of_rows(schema, partition.rows)
        for store, root in partition.stores:
            yield batch_of_rows(schema, unit_tables.read_cursors(store, root))
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
                more = {"store": segment.store, "store_id": partition.standing.number}
                lost = self._wanted.lost and table == "consume_queue"
                for values in unit_tables.read_units(table, segment, set(self._columns), lost=lost):
                    yield batch_of_columns(schema, more | values)

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
        yield batch_of_rows(schema, map(asdict, findings))
