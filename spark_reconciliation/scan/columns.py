"""Arrow columns of the rows of a scan: only the requested ones, vectorized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import SYS_COMMIT, SYS_TRANSACTION_MASK
from spark_reconciliation.arrays import Mask, Numbers, Rows, Words
from spark_reconciliation.audit.delivery_units import DeliveryUnits, check_delivery_units
from spark_reconciliation.audit.plain_sums import pack
from spark_reconciliation.audit.unit_times import NONE, QueueFiles, UnitTimes
from spark_reconciliation.kernels import columns as kernels
from spark_reconciliation.scan.hashes import hash_text, mix
from spark_reconciliation.scan.property_columns import ABSENT, PropertyColumns
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.roles import PENDING_ROLES, PLAIN, Role
from spark_reconciliation.scan.store_state import UNKNOWN, Progress
from spark_reconciliation.scan.tables import TIME_MIN, arrow_schema, batch_of_rows
from timer_store.layout import DUE_MS_MAX

UNUSUAL_NAMES: Final = np.array(
    [
        hash_text(name)
        for name in (
            b"REAL_TOPIC",
            b"TIMER_OUT_MS",
            b"TIMER_ROLL_TIMES",
            b"TIMER_ROLL_LABEL",
            b"TIMER_DEL_UNIQKEY",
        )
    ],
    np.uint64,
)
LOOKED_UP: Final = np.isin(np.arange(32), (Role.DELIVERY, Role.CANDIDATE, *PENDING_ROLES))
"""By role: whether the unit of its queue must agree with a record."""
TEXTS: Final = {
    "unique_id": "UNIQ_KEY",
    "keys": "KEYS",
    "tags": "TAGS",
    "real_topic": "REAL_TOPIC",
    "cancels": "TIMER_DEL_UNIQKEY",
}
NUMBERS: Final = {
    "real_queue_id": "REAL_QID",
    "out_ms": "TIMER_OUT_MS",
}
OF_HEAD: Final = {
    "born_ms": 0,
    "flag": 1,
    "reconsume_times": 2,
    "body_crc": 3,
    "head_hash": 4,
}
OF_ROW: Final = frozenset(
    {
        "phys_offset",
        "record_size",
        "queue_id",
        "queue_offset",
        "store_ms",
        "sys_flag",
        "prepared_offset",
        "body_len",
    }
)
RECALL_TAG: Final = b"_RECALL_TAG_"  # RecallMessageProcessor.RECALL_MESSAGE_TAG


class MessageColumns:
    """Builder of record batches of the table `messages`, for one store.

    Args:
        columns: Requested names, in order.
        precision_ms: timerPrecisionMs of the store.
        roles: Requested roles; empty: all.
        progress: Positions of levels and timers.
        check: Whether bodies are compared with their CRC, if `damage` is requested.
    """

    def __init__(
        self,
        columns: Sequence[str],
        precision_ms: int = 1_000,
        roles: frozenset[int] = frozenset(),
        progress: Progress | None = None,
        *,
        check: bool = True,
    ) -> None:
        self.schema = arrow_schema("messages", columns)
        self._check = check and "damage" in columns
        self.progress = progress or Progress()
        self.precision_ms, self._roles = precision_ms, roles
        self.seen = np.zeros(2 * kernels.SEEN_MAX, np.uint64)
        self.spans = np.zeros(0, np.int32)
        self.units: UnitTimes | None = None
        self.delivery_units: DeliveryUnits | None = None
        self._names: dict[int, str] = {}

    def batch(self, scan: RecordScan, rows: Rows) -> pa.RecordBatch | None:
        """Return the columns of (n,) SCANNED rows of a scan; None if all roles are excluded."""
        chunk = self._chunk(scan, rows)
        if chunk is None:
            return None
        arrays = [chunk.column(field.name, field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def packed(self, scan: RecordScan, rows: Rows, *, places: bool = False) -> Numbers | None:
        """Return the rows packed by `plain_sums.pack`."""
        chunk = self._chunk(scan, rows)
        if chunk is None:
            return None
        return pack(lambda name: chunk.column(name, self.schema.field(name).type), places=places)

    def _chunk(self, scan: RecordScan, rows: Rows) -> _Chunk | None:
        if self.units is None:
            files = QueueFiles(scan.segment.root)
            self.units = UnitTimes(files, SCHEDULE_TOPIC)
            self.delivery_units = DeliveryUnits(files, self.progress.queue_coverage)
        if self._roles and not self._roles & (PLAIN | {Role.NONE}):
            rows = self._rare_rows(scan, rows)
        elif self._roles and Role.DELIVERY not in self._roles:  # plain rows need no decoding
            chunk = _Chunk(self, scan, rows)
            rows = rows[(chunk.kinds != 0) | (rows["prepared_offset"] >= 0)]
        if not rows.size:
            return None
        chunk = _Chunk(self, scan, rows)
        if self._roles:
            if Role.TOPIC in self._roles and self._roles & PLAIN:
                pending = np.isin(chunk.roles, PENDING_ROLES)
                self._collect_topics(
                    scan, rows, np.where(pending, chunk.topic_hashes.view(np.int64), 0)
                )
            kept = np.isin(chunk.roles, list(self._roles))
            if not kept.any():
                return None
            chunk = chunk if kept.all() else _Chunk(self, scan, rows[kept])
        if self._check:
            kernels.check(scan.data, scan.base, chunk.rows)
        return chunk

    def _rare_rows(self, scan: RecordScan, rows: Rows) -> Rows:
        """Return the rows that may not be plain ones; note topics."""
        unusual, real = np.empty(rows.size, np.uint8), np.empty(rows.size, np.uint64)
        kinds = kinds_of(scan, rows)
        kernels.select_unusual(scan.data, scan.base, rows, kinds, UNUSUAL_NAMES, unusual, real)
        if Role.TOPIC in self._roles:
            self._collect_topics(scan, rows, real.view(np.int64))
        return np.asarray(rows[unusual != 0])

    def _collect_topics(self, scan: RecordScan, rows: Rows, hashes: Numbers) -> None:
        """Note the names of the real topics of pending messages; a hash of 0: none."""
        known_hashes = np.fromiter(self._names, np.int64, len(self._names))
        new = np.flatnonzero((hashes != 0) & ~np.isin(hashes, known_hashes))
        if new.size:
            values, firsts = np.unique(hashes[new], return_index=True)
            texts = _Chunk(self, scan, rows[new[firsts]]).column("real_topic", pa.string())
            self._names |= dict(zip(values.tolist(), texts.to_pylist(), strict=True))

    def topic_rows(self, scan: RecordScan) -> pa.RecordBatch | None:
        """Return a row of the role Role.TOPIC for each topic in the scan, if requested."""
        if Role.TOPIC not in self._roles:
            return None
        met = zip(scan.topics.hashes.tolist(), scan.topics.texts.to_pylist(), strict=True)
        hashes = {_signed(value): name for value, name in met} | self._names
        facts = {"store": scan.segment.store, "store_id": self.progress.number, "role": Role.TOPIC}
        rows = (facts | {"topic": name, "topic_hash": value} for value, name in hashes.items())
        return batch_of_rows(self.schema, rows)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def kinds_of(scan: RecordScan, rows: Rows) -> npt.NDArray[np.int8]:
    """Return the kind of the topic of each row, see `ScannedTopics.kinds`."""
    return np.asarray(scan.topics.kinds[rows["topic_index"]])


class _Chunk:
    """Columns of one chunk; shared intermediate results are computed once."""

    def __init__(self, made: MessageColumns, scan: RecordScan, rows: Rows) -> None:
        self._made, self._scan, self.rows = made, scan, rows
        self._precision_ms = made.precision_ms
        self._starts = rows["phys_offset"] - scan.base
        self._properties = PropertyColumns(scan, rows, made.seen)

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        if name in OF_ROW:
            return pa.array(np.ascontiguousarray(self.rows[name]), kind)
        if name in OF_HEAD:
            return pa.array(self.heads[:, OF_HEAD[name]].astype(kind.to_pandas_dtype()), kind)
        if name in TEXTS:
            return self._text(self._properties.spans(TEXTS[name]), kind)
        if name in NUMBERS:
            return _nullable(self._properties.numbers(NUMBERS[name]))
        make: Callable[[], pa.Array] = getattr(self, f"_{name}")
        return make()

    @cached_property
    def heads(self) -> Numbers:
        values = np.zeros((self.rows.size, 5), np.int64)
        kernels.heads(self._scan.data, self._scan.base, self.rows, values)
        return values

    @cached_property
    def kinds(self) -> npt.NDArray[np.int8]:
        """See `kinds_of`."""
        return kinds_of(self._scan, self.rows)

    @cached_property
    def rolls(self) -> Numbers:
        """Number of rolls, or ABSENT; 0 for a roll by Apache's timeline, which does not count."""
        counted = self._properties.numbers("TIMER_ROLL_TIMES")
        labelled = self._properties.has("TIMER_ROLL_LABEL") & (counted == ABSENT)
        return np.where(labelled, 0, counted)

    @cached_property
    def roles(self) -> npt.NDArray[np.int32]:
        rows, kinds = self.rows, self.kinds
        named = rows["prepared_offset"] < 0
        copied = named & (~rows["prepared_offset"] < rows["phys_offset"])
        rolled = ~named & (self.rolls != ABSENT)
        marker, copied = self._properties.has("TIMER_DEL_UNIQKEY"), copied | rolled
        is_timed = self.out_ms != ABSENT
        waited = (self._properties.levels > 0) & self._properties.has("REAL_TOPIC")
        level, timer = kinds == kernels.KIND_LEVEL, kinds == kernels.KIND_TIMER
        cases = (  # the first condition that holds applies
            (timer & marker & named, Role.MARK),
            (timer & marker, Role.MARKER),
            (timer & copied, Role.TIMER_COPY),
            (timer, Role.TIMER),
            (level & copied, Role.LEVEL_COPY),
            (level, Role.LEVEL),
            ((kinds == kernels.KIND_DECISION) & named, Role.DECISION),
            ((kinds == kernels.KIND_QUARANTINE) & named, Role.QUARANTINE),
            (named, Role.DELIVERY),
            # the timeline in RocksDB of Apache 5.4 removes REAL_TOPIC from what it delivers
            ((waited | is_timed) & ~self.are_copies, Role.CANDIDATE),
        )
        roles = np.select([holds for holds, _ in cases], [role for _, role in cases], Role.NONE)
        kind = rows["sys_flag"] & SYS_TRANSACTION_MASK
        plain = (kind == 0) | (kind == SYS_COMMIT)
        return np.where(plain, roles, Role.NONE).astype(np.int32)

    @cached_property
    def out_ms(self) -> Numbers:
        return self._properties.numbers("TIMER_OUT_MS")

    @cached_property
    def redirected(self) -> Mask:
        """Whether each record is in the queue of a level or of the timers."""
        return np.asarray((self.kinds == kernels.KIND_LEVEL) | (self.kinds == kernels.KIND_TIMER))

    @cached_property
    def real_hashes(self) -> Words:
        """Hash of REAL_TOPIC of each record; 0 without it."""
        real = np.empty(self.rows.size, np.uint64)
        kernels.hashes(self._scan.data, self._starts, self._properties.spans("REAL_TOPIC"), real)
        return real

    @cached_property
    def own_hashes(self) -> Words:
        """Hash of the topic of each record."""
        return np.asarray(self._scan.topics.hashes[self.rows["topic_index"]])

    @cached_property
    def are_copies(self) -> Mask:
        """Which records are half messages, retries or dead letters of messages of other topics."""
        are_copies = self._scan.topics.have_copies[self.rows["topic_index"]]
        if are_copies.any():
            are_copies &= (self.real_hashes != 0) & (self.real_hashes != self.own_hashes)
        return np.asarray(are_copies)

    @cached_property
    def topic_hashes(self) -> Words:
        if not self.redirected.any():
            return self.own_hashes
        return np.where(self.redirected, self.real_hashes, self.own_hashes)

    @cached_property
    def unit_times(self) -> Numbers:
        """Tags codes of the units of level messages; NONE for other records."""
        codes = np.full(self.rows.size, NONE, np.int64)
        indexes = np.flatnonzero(self.kinds == kernels.KIND_LEVEL)
        if indexes.size:
            assert self._made.units is not None
            codes[indexes] = self._made.units.find(self.rows[indexes])
            for queue_id, times in self._made.progress.promised.items():
                for position in indexes[self.rows["queue_id"][indexes] == queue_id]:
                    codes[position] = times.get(
                        int(self.rows[position]["queue_offset"]), codes[position]
                    )
        return codes

    def _store_id(self) -> pa.Array:
        return pa.array(np.full(self.rows.size, self._made.progress.number, np.int32))

    def _role(self) -> pa.Array:
        return pa.array(self.roles)

    def _topic_hash(self) -> pa.Array:
        values = self.topic_hashes
        return pa.array(values.view(np.int64), mask=values == 0)

    def _target(self) -> pa.Array:
        queues = self.rows["queue_id"].astype(np.int64)
        queues = np.where(self.redirected, self._properties.numbers("REAL_QID"), queues)
        nowhere = (self.topic_hashes == 0) | (queues == ABSENT)
        return pa.array(mix(self.topic_hashes, queues).view(np.int64), mask=nowhere)

    def _identity(self) -> pa.Array:
        data, starts = self._scan.data, self._starts
        own, topics = np.empty(self.rows.size, np.uint64), self.real_hashes
        kernels.hashes(data, starts, self._properties.spans("UNIQ_KEY"), own)
        body = (self.heads[:, OF_HEAD["body_crc"]] << 32) + self.rows["body_len"]
        value = np.where(own == 0, mix(own, body), own)
        delivered = topics == 0  # by the timeline in RocksDB: without REAL_TOPIC and REAL_QID
        queues = self._properties.numbers("REAL_QID")
        numbers = (
            np.where(delivered, self.topic_hashes, topics).view(np.int64),
            np.where(delivered, self.rows["queue_id"], queues),
            self.heads[:, 0],
            self._properties.levels,
        )
        for number in (*numbers, self.out_ms):
            value = mix(value, number)
        return pa.array(value.view(np.int64))

    def _rolls(self) -> pa.Array:
        return _nullable(self.rolls)

    def _name_hash(self) -> pa.Array:
        size = self.rows.size
        names, own = np.empty(size, np.uint64), np.empty(size, np.uint64)
        unique = self._properties.spans("UNIQ_KEY")
        real, marker = (self._properties.spans(n) for n in ("REAL_TOPIC", "TIMER_DEL_UNIQKEY"))
        scratch = np.empty(int(self.rows["prop_len"].max(initial=0)) + 16, np.uint8)
        data, starts = self._scan.data, self._starts
        kernels.hash_pairs(data, starts, real, unique, scratch, names)
        kernels.hashes(data, starts, marker, own)
        recalls, keys = self._recalls(), np.empty(size, np.uint64)
        kernels.hashes(data, starts, unique, keys)
        names[~self._properties.has("UNIQ_KEY")] = 0
        # a recall of Apache 5.5 has the key alone: timer_store.kernels.adoption.recalls_by_key
        has_name = self._properties.has("TIMER_DEL_UNIQKEY") & ~(recalls & (own == keys))
        value = np.where(has_name, own, names)
        return pa.array(value.view(np.int64), mask=value == 0)

    def _recalls(self) -> npt.NDArray[np.bool_]:
        """Return which records have the tag of a recall."""
        tags = np.empty(self.rows.size, np.uint64)
        kernels.hashes(self._scan.data, self._starts, self._properties.spans("TAGS"), tags)
        return np.asarray(tags == np.uint64(hash_text(RECALL_TAG)))

    def _unit_ms(self) -> pa.Array:
        return pa.array(self.unit_times, mask=self.unit_times == NONE)

    def _passed(self) -> pa.Array:
        progress, rows = self._made.progress, self.rows
        flags = np.full(rows.size, UNKNOWN, np.int8)
        timers = (self.kinds == kernels.KIND_TIMER) & (self.out_ms != ABSENT)
        flags[timers] = progress.of_timers(
            self.out_ms[timers], rows["queue_offset"][timers], rows["phys_offset"][timers]
        )
        levels = self.kinds == kernels.KIND_LEVEL
        has_time = (self.unit_times >= TIME_MIN) & (self.unit_times <= DUE_MS_MAX)
        times = np.where(has_time, self.unit_times, DUE_MS_MAX)  # an unknown time is never passed
        for queue_id in np.unique(rows["queue_id"][levels]).tolist():
            mask = levels & (rows["queue_id"] == queue_id)
            flags[mask] = progress.of_level(
                queue_id, rows["queue_offset"][mask], times[mask], rows["phys_offset"][mask]
            )
        return pa.array(flags.astype(np.int32), mask=flags == UNKNOWN)

    def _other_time(self) -> pa.Array:
        """Return which level messages have a unit with a time that their level does not have."""
        progress, rows, times = self._made.progress, self.rows, self.unit_times
        is_other = np.zeros(rows.size, np.bool_)
        has_time = (self.kinds == kernels.KIND_LEVEL) & (times >= TIME_MIN)
        own = self._properties.numbers("DUEMQ_DUE_MS")  # of a message that the timers returned
        for queue_id in np.unique(rows["queue_id"][has_time]).tolist():
            delays = progress.delays.get(queue_id + 1, ())
            indexes = np.flatnonzero(has_time & (rows["queue_id"] == queue_id) & (times != own))
            delay = times[indexes] - rows["store_ms"][indexes]
            wrong = indexes[~np.isin(delay, delays)] if delays else indexes[:0]
            promised = progress.promised.get(queue_id, {})
            is_other[wrong] = [
                promised.get(int(rows[index]["queue_offset"])) != times[index]
                for index in wrong.tolist()
            ]
        return pa.array(is_other)

    def _queued(self) -> pa.Array:
        made = self._made
        assert made.delivery_units is not None
        checked = LOOKED_UP[self.roles]
        is_checked, reachable = check_delivery_units(
            made.delivery_units,
            self._scan.topics.name,
            self.rows,
            checked & (self.kinds != kernels.KIND_LEVEL),
            self._properties.tag_codes,
        )
        levels = checked & (self.kinds == kernels.KIND_LEVEL)
        if levels.any():
            reachable[levels] = self.unit_times[levels] != NONE
            is_checked |= levels & made.delivery_units.is_required(
                self.rows["phys_offset"], self.rows["store_ms"]
            )
        return pa.array(reachable, mask=~is_checked)

    def _text(self, spans: npt.NDArray[np.int32], kind: pa.DataType) -> pa.Array:
        sizes = spans[:, 1] - spans[:, 0]
        ends = np.zeros(self.rows.size + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        out = np.empty(int(ends[-1]), np.uint8)
        kernels.gather(self._scan.data, self._starts, spans, ends, out)
        there = pa.py_buffer(np.packbits(sizes > 0, bitorder="little").tobytes())
        values = [there, pa.py_buffer(ends), pa.py_buffer(out)]
        return pa.Array.from_buffers(kind, self.rows.size, values)

    def _part(self, name: str) -> pa.Array:
        """Return a part of each record as bytes; an empty part is not null."""
        start = self.rows[f"{name}_pos"]
        spans = np.stack([start, start + self.rows[f"{name}_len"]], axis=1)
        return self._text(spans, pa.binary()).fill_null(b"")

    def _store(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._scan.segment.store), self.rows.size)

    def _file(self) -> pa.Array:
        return self._scan.paths_of(self.rows)

    def _file_offset(self) -> pa.Array:
        return self._scan.positions_of(self.rows)

    def _note(self) -> pa.Array:
        return pa.nulls(self.rows.size, pa.string())

    def _topic(self) -> pa.Array:
        return self._scan.topics.texts.take(
            pa.array(np.ascontiguousarray(self.rows["topic_index"]))
        )

    def _damage(self) -> pa.Array:
        kinds = pa.array([None, "body-crc"], pa.string())
        return kinds.take(pa.array((self.rows["damage"] != 0).astype(np.int32)))

    def _body(self) -> pa.Array:
        return self._part("body")

    def _property_text(self) -> pa.Array:
        return self._part("prop")

    def _properties_hash(self) -> pa.Array:
        return pa.array(self._properties.own_hashes.view(np.int64))

    def _level(self) -> pa.Array:
        return pa.array(self._properties.levels, pa.int64(), mask=self._properties.levels <= 0)

    def _due_ms(self) -> pa.Array:
        """Due times of timers: timer_store.enqueue.due_time in columns."""
        out_ms, exact_ms = self.out_ms, self._properties.numbers("DUEMQ_DUE_MS")
        stored_ms = np.clip(self.rows["store_ms"], 0, DUE_MS_MAX)
        rolled = self._properties.has("TIMER_ROLL_TIMES") | self._properties.has("TIMER_ROLL_LABEL")
        by_slot = out_ms + self._precision_ms
        due_ms = self._or_absent(self._properties.numbers("TIMER_DELIVER_MS"), by_slot)
        for name, factor in (("TIMER_DELAY_MS", 1), ("TIMER_DELAY_SEC", 1_000)):
            if not self._properties.spans(name)[:, 1].any():
                continue
            delay = self._properties.numbers(name)
            own = np.where((delay == ABSENT) | rolled, by_slot, stored_ms + delay * factor)
            due_ms = np.where(self._properties.has(name), own, due_ms)
        due_ms = np.maximum(self._or_absent(exact_ms, due_ms), out_ms + 1)
        none = (out_ms < 0) | (due_ms > DUE_MS_MAX)
        return pa.array(due_ms, pa.int64(), mask=none & (exact_ms == ABSENT))

    @staticmethod
    def _or_absent(values: Numbers, other: Numbers) -> Numbers:
        return np.asarray(np.where(values == ABSENT, other, values))


def _nullable(values: Numbers) -> pa.Array:
    return pa.array(values, pa.int64(), mask=values == ABSENT)
