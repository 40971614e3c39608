"""Reader of a table: plans its parts, and reads them, in this process or on workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from duemq_common.topics import SCHEDULE_TOPIC
from spark_reconciliation.arrays import Numbers
from spark_reconciliation.audit.file_checks import FilePiece, check_piece, plan_pieces
from spark_reconciliation.audit.plain_sums import (
    NEEDED,
    PLACE_COLUMNS,
    PLACED_WORDS,
    WORDS,
    Buckets,
    pack_removed,
)
from spark_reconciliation.audit.pointers import MARKER_REMOVED, RECORD_REMOVED
from spark_reconciliation.audit.removed_records import read_removed, removed_segments, removed_units
from spark_reconciliation.scan import unit_tables
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.file_runs import scans_of
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.non_record_rows import clock_rows, gap_rows, removed_rows
from spark_reconciliation.scan.options import ScanOptions
from spark_reconciliation.scan.planned_store import RECORD_BYTES, Planned, plan_store
from spark_reconciliation.scan.planning import (
    Finding,
    LogPlan,
    ScanSegment,
    grouped,
    log_segments,
)
from spark_reconciliation.scan.pointed_scan import Segments, pointed_scan
from spark_reconciliation.scan.queue_places import (
    RecordPlaces,
    queue_sum,
    segments_of_queues,
    unit_places,
)
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.roles import PLAIN, Role
from spark_reconciliation.scan.scanned_topics import ScannedTopics
from spark_reconciliation.scan.store_part import StorePart
from spark_reconciliation.scan.store_state import Progress
from spark_reconciliation.scan.tables import arrow_schema, batch_of_columns, batch_of_rows
from timer_store.layout import UNIT_BYTES

NO_PROGRESS: Final = Progress()
NEED_PROGRESS: Final = frozenset({"passed", "unit_ms", "other_time", "queued"})
"""Columns of `messages` that depend on the progress of a store."""
NON_RECORDS: Final = frozenset({Role.GAP, Role.CLOCK})
"""Roles of rows about damage and clock steps."""
READ_ONCE: Final = frozenset({Role.QUEUE, Role.CLOCK})
"""Roles of rows that records have no second time."""
OF_QUEUES: Final = ("consume_queue", "schedule")
"""Tables of the units of queues."""
OF_PROGRESS: Final = ("messages", "findings", "stores", "tallies")
"""Tables that depend on the progress of a store."""


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Work of one task: segments of one table, or findings of the planning.

    Attributes:
        pointed: Log files, and log offsets of the records in them that are read.
        inspected: Pieces of the log of which only damage and clock steps are read.
        part: Part of the store that is read; None: all of it.
        log: Log with which units of queues are compared; None: they are not.
    """

    segments: tuple[ScanSegment, ...] = ()
    findings: tuple[Finding, ...] = ()
    file_pieces: tuple[FilePiece, ...] = ()
    cursors: tuple[Root, ...] = ()
    progress: Progress = NO_PROGRESS
    rows: tuple[Mapping[str, object], ...] = ()
    removed: tuple[ScanSegment, ...] = ()
    queues: tuple[ScanSegment, ...] = ()
    pointed: tuple[tuple[Segments, Numbers], ...] = ()
    inspected: tuple[ScanSegment, ...] = ()
    part: StorePart | None = None
    log: LogPlan | None = None

    def length(self) -> int:
        """Return the bytes that the task reads."""
        pieces = (file_piece.segment for file_piece in self.file_pieces)
        files = (*self.segments, *self.removed, *self.queues, *self.inspected, *pieces)
        pointed = sum(offsets.size for _, offsets in self.pointed) * RECORD_BYTES
        return sum(map(ScanSegment.length, files)) + pointed


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
        progress, number, part = store.progress, store.progress.number, store.part
        segments, findings = list[ScanSegment](), list[Finding]()
        with suppress(OSError):  # a directory: a row of `findings`
            segments, findings = self._segments(store)
        with_findings = options.table == "findings" or Role.GAP in options.roles
        if not NEED_PROGRESS & set(self._columns) and options.table != "tallies":
            progress = Progress(number)  # only what workers need is sent to them
        if with_findings:
            findings = [*findings, *store.unread]
        log = plan if options.table in OF_QUEUES else None
        parts = [
            ScanPart(group, progress=progress, part=part, log=log)
            for group in self._groups(segments)
        ]
        if with_findings:
            file_pieces, unread = plan_pieces(
                root, plan, options.partition_bytes, store.progress, options.precision_ms, part
            )
            findings = [*findings, *unread]
            parts += [
                ScanPart(file_pieces=(file_piece,), progress=progress, part=part)
                for file_piece in file_pieces
            ]
        if (
            options.table == "tallies"
            or {Role.REMOVED_PENDING, Role.REMOVED_SETTLED} & options.roles
        ):
            parts += [
                ScanPart(removed=group, progress=store.progress, part=part)
                for group in self._groups(removed_segments(root, plan))
            ]
        if Role.QUEUE in options.roles:
            groups = self._groups(self._queues(store))
            parts += [ScanPart(queues=group, progress=store.progress) for group in groups]
        if part is not None and options.table in ("messages", "tallies"):
            parts += self._earlier(store, part, progress)
        if options.table == "cursors":
            parts.append(ScanPart(cursors=(root,)))
        if options.table == "stores":
            facts = {"store_id": number, "store": root.url, "log_min": plan.min}
            facts |= {"log_end": plan.end, "last_ms": store.last_ms, "log_ms": plan.last_ms}
            parts.append(ScanPart(rows=(facts,)))
        if findings and options.table in ("findings", "messages"):
            parts.append(ScanPart(findings=tuple(findings), progress=progress))
        return parts

    def _groups(self, segments: Sequence[ScanSegment]) -> list[tuple[ScanSegment, ...]]:
        return grouped(segments, self._options.partition_bytes, ScanSegment.length)

    def _earlier(self, store: Planned, part: StorePart, progress: Progress) -> list[ScanPart]:
        """Return the parts about records and units that an earlier audit has read."""
        options, root, plan = self._options, store.root, store.plan
        own = {"store_id": store.progress.number}
        parts = [
            ScanPart(pointed=(pointed,), progress=progress) for pointed in part.pointed(root, plan)
        ]
        if Role.QUEUE in options.roles:
            sums = [
                queue_sum(queue.topic, queue.queue_id, np.int64(queue.sum)) | own
                for queue in part.queues.values()
                if queue.sum
            ]
            parts.append(ScanPart(rows=tuple(sums)))
        if NON_RECORDS & options.roles:
            segments = log_segments(root, plan, bytes_max=options.partition_bytes)
            inspected = [segment for segment in segments if part.is_inspected(segment)]
            parts += [
                ScanPart(inspected=group, progress=progress) for group in self._groups(inspected)
            ]
        return parts

    def _queues(self, store: Planned) -> list[ScanSegment]:
        try:
            segments = segments_of_queues(store.root, store.plan.end)
        except OSError:  # a directory: a row of `findings`
            return []
        return segments if store.part is None else store.part.new_units(store.root, segments)

    def _segments(self, store: Planned) -> tuple[list[ScanSegment], list[Finding]]:
        options, root, plan, limit = self._options, store.root, store.plan, store.plan.end
        size = options.partition_bytes
        if options.table in ("messages", "findings", "tallies"):
            first = options.start if store.part is None else store.part.start
            segments = log_segments(root, plan, bytes_max=size, first=first, end=options.end)
            return segments, list(plan.findings)
        if options.table in OF_QUEUES:
            is_schedule = options.table == "schedule"
            topics = frozenset({SCHEDULE_TOPIC}) if is_schedule else options.topics
            segments, findings = unit_tables.queue_segments(root, limit, topics=topics)
            if store.part is not None and options.lost:
                segments = store.part.units_to_compare(root, segments)
            return segments, findings
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
                yield from _removed(schema, findings, partition)
            yield from _finding_rows(schema, findings, table, partition.progress.number)
        if partition.removed and table == "messages":
            for segment in partition.removed:
                yield from read_removed(
                    schema, segment, partition.progress, self._options.roles, partition.part
                )
        elif partition.removed:
            yield from self._settled_batches(partition)
        if partition.queues:
            own = {"store_id": partition.progress.number}
            first = partition.progress.log_min
            sums = (unit_places(segment, first) | own for segment in partition.queues)
            yield batch_of_rows(schema, sums)
        if partition.rows:
            yield batch_of_rows(schema, partition.rows)
        for root in partition.cursors:
            yield batch_of_rows(schema, unit_tables.read_cursors(root))
        yield from self._non_records(schema, partition.inspected, partition.progress.number)
        yield from self._read_log(schema, partition)

    def _read_log(self, schema: pa.Schema, partition: ScanPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of segments, and of records at their log offsets."""
        table, roles, topics = self._options.table, self._options.roles, ScannedTopics()
        if table in ("messages", "tallies"):
            rows = roles if partition.part is None else roles - NON_RECORDS
            scans = scans_of(partition.segments, clock=Role.CLOCK in rows, topics=topics)
            # a queue's sum has these records; a file that cannot be read is a finding
            pointed = (pointed_scan(*one, topics) for one in partition.pointed)
            for some, kept in ((scans, rows), (pointed, roles - READ_ONCE)):
                if table == "messages":
                    yield from self._messages(some, partition.progress, kept)
                else:
                    yield from self._tallies(some, partition.progress)
            return
        if table == "findings":
            yield from self._non_records(schema, partition.segments, partition.progress.number)
            return
        for segment in partition.segments:
            more = {"store": segment.store, "store_id": partition.progress.number}
            lost = self._options.lost and table == "consume_queue"
            for values in unit_tables.read_units(
                table, segment, set(self._columns), lost=lost, log=partition.log
            ):
                yield batch_of_columns(schema, more | values)

    def _non_records(
        self, schema: pa.Schema, segments: Sequence[ScanSegment], number: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows about damage and clock steps of segments."""
        for scan in scans_of(segments, clock=True, topics=ScannedTopics()):
            for _ in scan.chunks() if scan.open() else ():
                pass
            if self._options.table == "findings":
                steps = [step.finding for step in scan.steps]
                yield from _finding_rows(schema, [*scan.findings, *steps], self._options.table)
            else:
                yield from _rows_about(schema, scan, number, self._options.roles)

    def _tallies(self, scans: Iterable[RecordScan], progress: Progress) -> Iterator[pa.RecordBatch]:
        places, buckets = self._options.places, Buckets(self._options.buckets)
        names = (*NEEDED, *PLACE_COLUMNS) if places else NEEDED
        columns = MessageColumns(names, self._options.precision_ms, PLAIN, progress)
        for scan in scans:
            for rows in scan.chunks() if scan.open() else ():
                packed = columns.packed(scan, self._options.keep(scan, rows), places=places)
                if packed is not None:
                    yield from buckets.take(packed)
        yield from buckets.rest()

    def _settled_batches(self, partition: ScanPart) -> Iterator[pa.RecordBatch]:
        buckets, progress = Buckets(self._options.buckets), partition.progress
        words = PLACED_WORDS if self._options.places else WORDS
        for segment in partition.removed:
            for _, settled in removed_units(segment, progress, partition.part):
                yield from buckets.take(pack_removed(progress.number, settled, words))
        yield from buckets.rest()

    @property
    def _takes_gaps(self) -> bool:
        return not self._options.roles or Role.GAP in self._options.roles

    def _messages(
        self, scans: Iterable[RecordScan], progress: Progress, roles: frozenset[int]
    ) -> Iterator[pa.RecordBatch]:
        options, scan = self._options, None
        columns = MessageColumns(
            self._columns, options.precision_ms, roles, progress, check=options.check_body
        )
        places, sums = RecordPlaces(), list[dict[str, object]]()
        for scan in scans:
            for rows in scan.chunks() if scan.open() else ():
                if Role.QUEUE in roles:
                    sums += places.take(scan, rows)
                rows = options.keep(scan, rows)
                made = columns.batch(scan, rows) if rows.size else None
                if made is not None:
                    yield made
            yield from _rows_about(columns.schema, scan, progress.number, roles)
        if scan is None:
            return
        sums += places.rest(scan)
        if sums:
            own = {"store_id": progress.number}
            yield batch_of_rows(columns.schema, (one | own for one in sums))
        topics = columns.topic_rows(scan)
        if topics is not None:
            yield topics


def _rows_about(
    schema: pa.Schema, scan: RecordScan, number: int, roles: frozenset[int]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of `messages` about damage and clock steps that a scan has found."""
    gaps = gap_rows(schema, scan.findings, number)
    if gaps is not None and (not roles or Role.GAP in roles):
        yield gaps
    steps = clock_rows(schema, scan.steps, number)
    if steps is not None:
        yield steps


def _removed(
    schema: pa.Schema, findings: Sequence[Finding], partition: ScanPart
) -> Iterator[pa.RecordBatch]:
    """Yield findings about removed records as rows of `messages`."""
    number, part = partition.progress.number, partition.part
    for kind, role in ((RECORD_REMOVED, Role.REMOVED_PENDING), (MARKER_REMOVED, Role.MARKER)):
        selected = [one for one in findings if one.kind == kind]
        offsets = np.array([one.offset for one in selected], np.int64)
        slots_ms = np.array([one.base for one in selected], np.int64)
        if part is not None and kind == RECORD_REMOVED:
            kept = ~part.is_counted(offsets)
            offsets, slots_ms = offsets[kept], slots_ms[kept]
        if offsets.size:
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
