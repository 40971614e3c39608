"""Rows of the exported tables, made of the records of log segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delayed_delivery.names import FIRED_BODY, MOVED_BODY
from duemq_common.topics import REVIVE_PREFIX
from spark_reconciliation.arrays import Mask, Numbers, Rows
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.file_runs import scans_of
from spark_reconciliation.scan.planning import Finding, ScanSegment
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.tables import batch_of_rows
from spark_reconciliation.tables.decided import DecidedOrigins, MarkerMeaning
from spark_reconciliation.tables.due_times import LEVEL_ROLES, NEEDED, NONE, due_times, numbers
from spark_reconciliation.tables.exported_log import ExportedLog
from spark_reconciliation.tables.pops import pop_rows
from spark_reconciliation.tables.promises import (
    COPY_ROLES,
    Earlier,
    Promised,
    Promises,
    origins_of,
)
from spark_reconciliation.tables.schemas import TABLES

READ: Final = (
    *NEEDED,
    "phys_offset",
    "prepared_offset",
    "born_ms",
    "topic",
    "queue_id",
    "queue_offset",
    "real_topic",
    "real_queue_id",
    "unique_id",
    "keys",
    "tags",
    "rolls",
    "cancels",
    "body_len",
)
ROLES: Final = frozenset(
    {
        Role.LEVEL,
        Role.TIMER,
        Role.DELIVERY,
        *COPY_ROLES,
        Role.QUARANTINE,
        Role.MARK,
        Role.DECISION,
        Role.MARKER,
        Role.CANDIDATE,
    }
)
PRECISION_MS: Final = 1_000  # timerPrecisionMs of a store
SENT: Final = (Role.DELIVERY, Role.CANDIDATE)
DECIDING: Final = (*COPY_ROLES, Role.QUARANTINE, Role.MARK, Role.DECISION, Role.MARKER)
TOPIC_PREFIX: Final = r"^[%|A-Za-z0-9_-]+\+"
"""Topic in the name of a message that a marker cancels."""
INT_RANGE: Final = (-(1 << 31), (1 << 31) - 1)
TableBatch = tuple[str, pa.RecordBatch]
Texts = Mapping[str, pa.Array]


class TableRows:
    """Reader of the rows of a log's segments, in the order of the log.

    Args:
        earlier: Lookup of records that the log no longer has.
    Attributes:
        findings: Unreadable ranges in the segments that were read.
        first_offset, last_offset: First and last record of these segments; None without records.
    """

    def __init__(self, log: ExportedLog, earlier: Earlier | None = None) -> None:
        self._log = log
        self._columns = MessageColumns(READ, PRECISION_MS, ROLES, log.progress)
        self._bodies = MessageColumns(("body",), check=False)
        self._pop_columns = MessageColumns(("phys_offset", "store_ms", "tags", "body", "out_ms"))
        self._promises = Promises(log, earlier)
        self._decided = DecidedOrigins(log)
        self.findings: list[Finding] = []
        self.first_offset: int | None = None
        self.last_offset: int | None = None

    def read(self, segments: Iterable[ScanSegment]) -> Iterator[TableBatch]:
        """Yield the rows of each chunk of segments, by table."""
        for scan in scans_of(segments):
            for rows in scan.chunks() if scan.open() else ():
                self.last_offset = int(rows[-1]["phys_offset"])
                if self.first_offset is None:
                    self.first_offset = int(rows[0]["phys_offset"])
                batch = self._columns.batch(scan, rows)
                if batch is not None:
                    yield from self._tables(scan, rows, batch)
                yield from self._pops_put_directly(scan, rows)
            self.findings += scan.findings

    def _tables(self, scan: RecordScan, rows: Rows, batch: pa.RecordBatch) -> Iterator[TableBatch]:
        role = numbers(batch, "role")
        is_timer = pc.starts_with(batch.column("real_topic"), REVIVE_PREFIX).fill_null(False)
        is_revived = pc.starts_with(batch.column("topic"), REVIVE_PREFIX)
        of_pops = pc.or_(is_timer, is_revived)
        if pc.any(of_pops).as_py():
            stored = batch.filter(pc.and_(is_timer, pa.array(role == Role.TIMER)))
            yield from self._pops(scan, _rows_at(rows, numbers(stored, "phys_offset")))
            batch = batch.filter(pc.invert(of_pops))
            role = numbers(batch, "role")
        if not batch.num_rows:
            return
        self._decided.add(batch)
        due_ms, origins = due_times(batch, self._log.levels_ms), origins_of(batch)
        is_copy = np.isin(role, COPY_ROLES)
        first = np.isin(role, (Role.LEVEL, Role.TIMER))
        first |= is_copy & (origins != NONE) & (origins < self._log.first)
        for table, mask in (
            ("scheduled", first),
            ("delivered", np.isin(role, SENT)),
            ("decisions", np.isin(role, DECIDING) & ~first),
        ):
            if mask.any():
                part = batch.filter(pa.array(mask))
                make = getattr(self, f"_{table}")
                yield table, make(part, due_ms[mask], origins[mask], scan, rows)

    def _scheduled(
        self, batch: pa.RecordBatch, due_ms: Numbers, origins: Numbers, *_: object
    ) -> pa.RecordBatch:
        is_level = np.isin(numbers(batch, "role"), LEVEL_ROLES)
        columns = {
            "message_id": batch.column("unique_id"),
            "topic": batch.column("real_topic"),
            "queue_id": batch.column("real_queue_id"),
            "kind": _kinds(is_level, np.ones(batch.num_rows, np.bool_)),
            "due_ms": _nullable(due_ms),
            "accepted_ms": batch.column("store_ms"),
            "body_bytes": batch.column("body_len"),
        }
        return self._batch("scheduled", batch, columns)

    def _delivered(
        self, batch: pa.RecordBatch, due_ms: Numbers, origins: Numbers, *_: object
    ) -> pa.RecordBatch:
        promised = self._promises.find(origins)
        out_ms, stored_ms = numbers(batch, "out_ms"), numbers(batch, "store_ms")
        is_level = numbers(batch, "level") > 0
        is_timer = (out_ms != NONE) & ~is_level  # a timer that was sent back has a level
        # a delay in the properties counts from the first record, so the slot bounds the time
        slot_end_ms = out_ms + PRECISION_MS
        own_ms = np.where((due_ms > out_ms) & (due_ms <= slot_end_ms), due_ms, slot_end_ms)
        own_ms = np.where(is_timer, own_ms, NONE)
        due_ms = np.where(promised.due_ms != NONE, promised.due_ms, own_ms)
        late_ms = np.where(due_ms != NONE, stored_ms - due_ms, NONE)
        columns = {
            "message_id": batch.column("unique_id"),
            "kind": _kinds(is_level, is_level | is_timer),
            "due_ms": _nullable(due_ms),
            "delivered_ms": batch.column("store_ms"),
            "late_ms": _nullable(late_ms),
        }
        return self._batch("delivered", batch, columns | _origin_columns(origins, promised))

    def _decisions(
        self,
        batch: pa.RecordBatch,
        due_ms: Numbers,
        origins: Numbers,
        scan: RecordScan,
        rows: Rows,
    ) -> pa.RecordBatch:
        role, positions = numbers(batch, "role"), numbers(batch, "phys_offset")
        promised = self._promises.find(origins)
        is_copy, is_mark = np.isin(role, COPY_ROLES), role == Role.MARK
        moved = (promised.due_ms != NONE) & (promised.due_ms != due_ms)
        decided = np.zeros(role.size, np.int8)
        if is_mark.any():
            decided[is_mark] = self._decided.find(positions[is_mark])
        fired, announced = np.zeros((2, role.size), np.bool_)
        notes = np.flatnonzero(is_mark | (role == Role.DECISION))
        if notes.size:
            bodies = self._bodies.batch(scan, _rows_at(rows, positions[notes]))
            assert bodies is not None
            texts = bodies.column(0).to_pylist()
            fired[notes] = [body == FIRED_BODY for body in texts]
            announced[notes] = [body == MOVED_BODY for body in texts]
        cases = (
            (is_copy & (numbers(batch, "rolls") != NONE), "rolled"),
            ((is_copy & moved) | announced, "moved"),
            (is_copy, "copied"),
            (role == Role.QUARANTINE, "quarantined"),
            (role == Role.MARKER, "cancel_requested"),
            (fired | (decided == MarkerMeaning.DELIVERED), "fired"),
        )
        names = np.select([mask for mask, _ in cases], [name for _, name in cases], "cancelled")
        cancelled = pc.replace_substring_regex(batch.column("cancels"), TOPIC_PREFIX, "")
        columns = {
            "message_id": pc.coalesce(cancelled, batch.column("unique_id")),
            "topic": batch.column("real_topic"),
            "decision": pa.array(names.tolist(), pa.string()),
            "decided_ms": batch.column("store_ms"),
            "due_ms": _nullable(np.where(is_copy, due_ms, NONE)),
        } | _origin_columns(origins, promised)
        made = self._batch("decisions", batch, columns)
        # a cancellation appends two markers; a move and a fire append one after their record
        return made.filter(pa.array(decided != MarkerMeaning.COPIED))

    def _pops_put_directly(self, scan: RecordScan, rows: Rows) -> Iterator[TableBatch]:
        """Yield the rows of records that were put into the revive topic, not delivered to it."""
        revive = [
            index
            for index in range(len(scan.topics))
            if scan.topics.name(index).startswith(REVIVE_PREFIX)
        ]
        if revive:
            mask = np.isin(rows["topic_index"], revive) & (rows["prepared_offset"] >= 0)
            yield from self._pops(scan, rows[mask], direct=True)

    def _pops(self, scan: RecordScan, rows: Rows, *, direct: bool = False) -> Iterator[TableBatch]:
        batch = self._pop_columns.batch(scan, rows) if rows.size else None
        if batch is None:
            return
        if direct:  # an Apache broker's timer has delivered a record with a slot
            batch = batch.filter(pc.is_null(batch.column("out_ms")))
        columns = (batch.column(name).to_pylist() for name in ("phys_offset", "store_ms"))
        tags = batch.column("tags").cast(pa.binary()).to_pylist()
        texts = [None if tag is None else tag.decode("utf-8", "replace") for tag in tags]
        records = zip(*columns, texts, batch.column("body").to_pylist(), strict=True)
        made = batch_of_rows(TABLES["pops"].arrow, pop_rows(self._log.broker, records))
        if made.num_rows:
            yield "pops", made

    def _batch(self, table: str, batch: pa.RecordBatch, columns: Texts) -> pa.RecordBatch:
        """Return rows of a table: the given columns, the others from `batch` by name."""
        schema, size = TABLES[table].arrow, batch.num_rows
        shared = {
            "broker": pa.repeat(pa.scalar(self._log.broker), size),
            "log_offset": batch.column("phys_offset"),
        }
        given = shared | dict(columns)
        filled = [
            _valid(given[f.name] if f.name in given else batch.column(f.name), f.type)
            for f in schema
        ]
        return pa.RecordBatch.from_arrays(filled, schema=schema)


def _rows_at(rows: Rows, offsets: Numbers) -> Rows:
    """Return the rows at log offsets."""
    return np.asarray(rows[np.searchsorted(rows["phys_offset"], offsets)])


def _nullable(values: Numbers) -> pa.Array:
    return pa.array(values, pa.int64(), mask=values == NONE)


def _kinds(is_level: Mask, is_known: Mask) -> pa.Array:
    names = pa.array(["timer", "level"])
    return names.take(pa.array(is_level.astype(np.int32), mask=~is_known))


def _origin_columns(origins: Numbers, promised: Promised) -> dict[str, pa.Array]:
    return {"origin_offset": _nullable(origins), "scheduled_offset": _nullable(promised.roots)}


def _valid(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of a type; numbers that it cannot hold are null, texts are valid UTF-8."""
    if pa.types.is_string(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            texts = array.cast(pa.binary()).to_pylist()
            return pa.array([None if t is None else t.decode("utf-8", "replace") for t in texts])
        return array
    if array.type == kind:
        return array
    low, high = (pa.scalar(value, array.type) for value in INT_RANGE)
    inside = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
    return pc.if_else(inside, array, None).cast(kind)
