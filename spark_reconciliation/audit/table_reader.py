"""Reader of a table: plans its parts, and reads them, in this process or on workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_reconciliation.audit.file_checks import FilePiece, check_piece, plan_pieces
from spark_reconciliation.audit.plain_sums import NEEDED, Buckets, pack_removed
from spark_reconciliation.audit.pointers import MARKER_REMOVED, RECORD_REMOVED
from spark_reconciliation.audit.removed_records import read_removed, removed_segments, removed_units
from spark_reconciliation.scan import unit_tables
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.non_record_rows import clock_rows, gap_rows, removed_rows
from spark_reconciliation.scan.options import ScanOptions
from spark_reconciliation.scan.planned_store import Planned, plan_store
from spark_reconciliation.scan.planning import (
    Finding,
    LogPlan,
    ScanSegment,
    grouped,
    log_segments,
)
from spark_reconciliation.scan.queue_places import RecordPlaces, segments_of_queues, unit_places
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.roles import PLAIN, SCHEDULE_TOPIC, Role
from spark_reconciliation.scan.store_state import Progress
from spark_reconciliation.scan.tables import arrow_schema, batch_of_columns, batch_of_rows
from timer_store.layout import UNIT_BYTES

NO_PROGRESS: Final = Progress()
NEED_PROGRESS: Final = frozenset({"passed", "unit_ms", "other_time", "queued"})
"""Columns of `messages` that depend on the progress of a store."""
OF_PROGRESS: Final = ("messages", "findings", "stores", "tallies")
"""Tables that depend on the progress of a store."""


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Work of one task: segments of one table, or findings of the planning."""

    segments: tuple[ScanSegment, ...] = ()
    findings: tuple[Finding, ...] = ()
    file_pieces: tuple[FilePiece, ...] = ()
    cursors: tuple[Root, ...] = ()
    progress: Progress = NO_PROGRESS
    rows: tuple[Mapping[str, object], ...] = ()
    removed: tuple[ScanSegment, ...] = ()
    queues: tuple[ScanSegment, ...] = ()

    def length(self) -> int:
        """Return the bytes that the task reads."""
        pieces = (file_piece.segment for file_piece in self.file_pieces)
        return sum(map(ScanSegment.length, (*self.segments, *self.removed, *self.queues, *pieces)))


class TableReader:
    """Reader of one table.

    Args:
        stores: Snapshot of each path; None: taken at planning.
    """

    def __init__(
        self, options: ScanOptions, columns: Sequence[str], stores: Sequence[Planned] | None = None
    ) -> None:
        self._options, self._columns, self._stores = options, list(columns), stores

    def partitions(self) -> Sequence[ScanPart]:
        """Return the parts.

        Raises:
            UsageError: A path is not a store.
        """
        stores = self._stores
        if stores is None:
            needs_progress = self._options.table in OF_PROGRESS
            stores = [
                plan_store(number, path, progress=needs_progress)
                for number, path in enumerate(self._options.paths)
            ]
        parts = [part for store in stores for part in self._parts(store)]
        return parts or [ScanPart()]

    def _parts(self, store: Planned) -> list[ScanPart]:
        options, root, plan = self._options, store.root, store.plan
        progress, number = store.progress, store.progress.number
        segments, findings = self._segments(root, plan)
        with_findings = options.table == "findings" or Role.GAP in options.roles
        if not NEED_PROGRESS & set(self._columns) and options.table != "tallies":
            progress = Progress(number)  # only what workers need is sent to them
        if with_findings:
            findings = [*findings, *store.unread]
        groups = grouped(segments, options.partition_bytes, ScanSegment.length)
        parts = [ScanPart(group, progress=progress) for group in groups]
        if with_findings:
            file_pieces, unread = plan_pieces(
                root, plan, options.partition_bytes, store.progress, options.precision_ms
            )
            findings = [*findings, *unread]
            parts += [
                ScanPart(file_pieces=(file_piece,), progress=progress) for file_piece in file_pieces
            ]
        if (
            options.table == "tallies"
            or {Role.REMOVED_PENDING, Role.REMOVED_SETTLED} & options.roles
        ):
            groups = grouped(
                removed_segments(root, plan), options.partition_bytes, ScanSegment.length
            )
            parts += [ScanPart(removed=group, progress=store.progress) for group in groups]
        if Role.QUEUE in options.roles:
            parts += [
                ScanPart(queues=group, progress=store.progress)
                for group in grouped(
                    self._queues(root, plan), options.partition_bytes, ScanSegment.length
                )
            ]
        if options.table == "cursors":
            parts.append(ScanPart(cursors=(root,)))
        if options.table == "stores":
            facts = {"store_id": number, "store": root.url, "log_min": plan.min}
            facts |= {"log_end": plan.end, "last_ms": store.last_ms, "log_ms": plan.last_ms}
            parts.append(ScanPart(rows=(facts,)))
        if findings and options.table in ("findings", "messages"):
            parts.append(ScanPart(findings=tuple(findings), progress=progress))
        return parts

    def _segments(self, root: Root, plan: LogPlan) -> tuple[list[ScanSegment], list[Finding]]:
        try:
            return self._segments_of(root, plan)
        except OSError:  # a directory: a row of `findings`
            return [], []

    def _queues(self, root: Root, plan: LogPlan) -> list[ScanSegment]:
        try:
            return segments_of_queues(root, plan.end)
        except OSError:  # a directory: a row of `findings`
            return []

    def _segments_of(self, root: Root, plan: LogPlan) -> tuple[list[ScanSegment], list[Finding]]:
        options, limit = self._options, plan.end
        size = options.partition_bytes
        if options.table in ("messages", "findings", "tallies"):
            segments = log_segments(
                root, plan, bytes_max=size, first=options.start, end=options.end
            )
            return segments, list(plan.findings)
        if options.table in ("consume_queue", "schedule"):
            is_schedule = options.table == "schedule"
            topics = frozenset({SCHEDULE_TOPIC}) if is_schedule else options.topics
            return unit_tables.queue_segments(root, limit, topics=topics)
        if options.table == "timer_log":
            return unit_tables.file_segments(
                root, "timerlog", limit, unit_bytes=UNIT_BYTES, bytes_max=size
            )
        if options.table == "timer_wheel":
            return unit_tables.named_files(root, "", limit, "timerwheel"), []
        if options.table == "index":
            return unit_tables.named_files(root, "index", limit), []
        return [], []

    def read(self, partition: ScanPart) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a part."""
        table = self._options.table
        schema = arrow_schema(table, self._columns)
        if partition.findings and self._takes_gaps:
            yield from _finding_rows(schema, partition.findings, table, partition.progress.number)
        for file_piece in partition.file_pieces:
            findings = list(check_piece(file_piece))
            if Role.REMOVED_PENDING in self._options.roles and table == "messages":
                yield from _removed(schema, findings, partition.progress.number)
            yield from _finding_rows(schema, findings, table, partition.progress.number)
        if partition.removed and table == "messages":
            yield from read_removed(
                schema, partition.removed, partition.progress, self._options.roles
            )
        elif partition.removed:
            yield from self._settled_batches(partition.removed, partition.progress)
        if partition.queues:
            own = {"store_id": partition.progress.number}
            first = partition.progress.log_min
            sums = (unit_places(segment, first) | own for segment in partition.queues)
            yield batch_of_rows(schema, sums)
        if partition.rows:
            yield batch_of_rows(schema, partition.rows)
        for root in partition.cursors:
            yield batch_of_rows(schema, unit_tables.read_cursors(root))
        for segment in partition.segments:
            if table == "messages":
                yield from self._messages(segment, partition.progress)
            elif table == "tallies":
                yield from self._tallies(segment, partition.progress)
            elif table == "findings":
                scan = RecordScan(segment, clock=True)
                for _ in scan.chunks() if scan.open() else ():
                    pass
                steps = [step.finding for step in scan.steps]
                yield from _finding_rows(schema, [*scan.findings, *steps], table)
            else:
                more = {"store": segment.store, "store_id": partition.progress.number}
                lost = self._options.lost and table == "consume_queue"
                for values in unit_tables.read_units(table, segment, set(self._columns), lost=lost):
                    yield batch_of_columns(schema, more | values)

    def _tallies(self, segment: ScanSegment, progress: Progress) -> Iterator[pa.RecordBatch]:
        columns = MessageColumns(NEEDED, self._options.precision_ms, PLAIN, progress)
        scan, buckets = RecordScan(segment), Buckets(self._options.buckets)
        for rows in scan.chunks() if scan.open() else ():
            packed = columns.packed(scan, self._options.keep(scan, rows))
            if packed is not None:
                yield from buckets.take(packed)
        yield from buckets.rest()

    def _settled_batches(
        self, segments: Sequence[ScanSegment], progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        buckets = Buckets(self._options.buckets)
        for segment in segments:
            for _, settled in removed_units(segment, progress):
                yield from buckets.take(pack_removed(progress.number, settled))
        yield from buckets.rest()

    @property
    def _takes_gaps(self) -> bool:
        return not self._options.roles or Role.GAP in self._options.roles

    def _messages(self, segment: ScanSegment, progress: Progress) -> Iterator[pa.RecordBatch]:
        options = self._options
        columns = MessageColumns(
            self._columns, options.precision_ms, options.roles, progress, check=options.check_body
        )
        scan = RecordScan(segment, clock=Role.CLOCK in options.roles)
        places, sums = RecordPlaces(), list[dict[str, object]]()
        for rows in scan.chunks() if scan.open() else ():
            if Role.QUEUE in options.roles:
                sums += places.take(scan, rows)
            rows = options.keep(scan, rows)
            made = columns.batch(scan, rows) if rows.size else None
            if made is not None:
                yield made
        sums += places.rest(scan)
        if sums:
            own = {"store_id": progress.number}
            yield batch_of_rows(columns.schema, (one | own for one in sums))
        topics = columns.topic_rows(scan)
        if topics is not None:
            yield topics
        gaps = gap_rows(columns.schema, scan.findings, progress.number)
        if gaps is not None and self._takes_gaps:
            yield gaps
        steps = clock_rows(columns.schema, scan.steps, progress.number)
        if steps is not None:
            yield steps


def _removed(
    schema: pa.Schema, findings: Sequence[Finding], number: int
) -> Iterator[pa.RecordBatch]:
    """Yield findings about removed records as rows of `messages`."""
    for kind, role in ((RECORD_REMOVED, Role.REMOVED_PENDING), (MARKER_REMOVED, Role.MARKER)):
        selected = [one for one in findings if one.kind == kind]
        offsets = np.array([one.offset for one in selected], np.int64)
        slots_ms = np.array([one.base for one in selected], np.int64)
        if selected:
            yield removed_rows(schema, number, offsets, role, slots_ms)


def _finding_rows(
    schema: pa.Schema, findings: Sequence[Finding], table: str, number: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield findings as rows of table `findings`, or of `messages`."""
    if table == "messages":
        removed = (RECORD_REMOVED, MARKER_REMOVED)
        rows = gap_rows(schema, [one for one in findings if one.kind not in removed], number)
        if rows is not None:
            yield rows
    elif findings:
        yield batch_of_rows(schema, map(asdict, findings))
