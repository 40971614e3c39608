"""Rows of a walk become Arrow columns: only those that are asked for, without a loop in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reconciliation.kernels import columns as kernels
from reconciliation.planning import Finding
from reconciliation.scanning import Walk
from reconciliation.tables import TABLES

Rows = npt.NDArray[Any]
ARROW: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
}
# What brokers write and rewrite comes first: those are no part of a message's own properties.
BROKERS: Final = (
    *("DELAY", "DELAy", "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_DELIVER_MS"),
    *("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DUEMQ_DUE_MS", "TIMER_ROLL_TIMES"),
    *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "WAIT", "__CRC32#"),
)
NAMES: Final = (*BROKERS, "UNIQ_KEY", "KEYS", "TAGS", "TIMER_DEL_UNIQKEY")
FACTOR: Final = 0x9E3779B97F4A7C15
WORD: Final = (1 << 64) - 1


def hash_text(data: bytes) -> int:
    """Return the hash of a name or value. `kernels.columns.hash_bytes` is its compiled twin."""
    value = len(data) * FACTOR & WORD
    for at in range(0, len(data), 8):
        value = (value ^ int.from_bytes(data[at : at + 8], "little")) * FACTOR & WORD
        value ^= value >> 32
    return value


HASHES: Final = np.array([hash_text(name.encode()) for name in NAMES], np.uint64)
ABSENT: Final = -(1 << 62)
TEXTS: Final = {
    "unique_id": "UNIQ_KEY", "keys": "KEYS", "tags": "TAGS", "real_topic": "REAL_TOPIC",
    "cancels": "TIMER_DEL_UNIQKEY",
}  # fmt: skip
NUMBERS: Final = {
    "real_queue_id": "REAL_QID", "out_ms": "TIMER_OUT_MS", "rolls": "TIMER_ROLL_TIMES",
}  # fmt: skip
OF_HEAD: Final = {"born_ms": 0, "flag": 1, "reconsume_times": 2, "body_crc": 3}
OF_ROW: Final = {
    "phys_offset": "phys_offset", "record_size": "record_size", "queue_id": "queue_id",
    "queue_offset": "queue_offset", "store_ms": "store_ms", "sys_flag": "sys_flag",
    "prepared_offset": "prepared_offset", "body_len": "body_len",
}  # fmt: skip
DUE_MS_MAX: Final = 10**18 - 1


def arrow_schema(table: str, columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some columns of a table."""
    kinds = dict(TABLES[table])
    return pa.schema([(name, ARROW[kinds[name]]) for name in columns])


class MessageColumns:
    """Makes record batches of the table `messages`.

    Args:
        columns: the names wanted, in order.
        precision_ms: timerPrecisionMs of the store.
    """

    def __init__(self, columns: Sequence[str], precision_ms: int = 1_000) -> None:
        self.schema = arrow_schema("messages", columns)
        self._precision_ms = precision_ms
        self._seen = np.zeros(2 * kernels.SEEN_MAX, np.uint64)

    def batch(self, walk: Walk, rows: Rows) -> pa.RecordBatch:
        """Return the columns of (n,) SCANNED rows of a walk."""
        chunk = _Chunk(walk, rows, self._precision_ms, self._seen)
        arrays = [chunk.column(field.name, field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Chunk:
    """The columns of one chunk; what several need is made once."""

    def __init__(self, walk: Walk, rows: Rows, precision_ms: int, seen: Any) -> None:
        self._walk, self._rows, self._precision_ms, self._seen = walk, rows, precision_ms, seen
        self._heads: npt.NDArray[np.int64] | None = None
        self._found: npt.NDArray[np.int64] | None = None
        self._sums = np.zeros(rows.size, np.uint64)

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        if name in OF_ROW:
            return pa.array(np.ascontiguousarray(self._rows[OF_ROW[name]]), kind)
        if name in OF_HEAD:
            return pa.array(self.heads[:, OF_HEAD[name]].astype(kind.to_pandas_dtype()), kind)
        if name in TEXTS:
            return self._text(self.found[:, NAMES.index(TEXTS[name])], kind)
        if name in NUMBERS:
            return _nullable(self._number(NUMBERS[name]))
        make: Callable[[], pa.Array] = {
            "store": self._store, "topic": self._topic, "damage": self._damage,
            "level": self._level, "due_ms": self._due_ms, "body": self._body,
            "property_text": self._property_text, "properties_hash": self._hash,
        }[name]  # fmt: skip
        return make()

    @property
    def heads(self) -> npt.NDArray[np.int64]:
        if self._heads is None:
            self._heads = np.zeros((self._rows.size, 4), np.int64)
            kernels.heads(self._walk.data, self._walk.base, self._rows, self._heads)
        return self._heads

    @property
    def found(self) -> npt.NDArray[np.int64]:
        if self._found is None:
            self._found = np.zeros((self._rows.size, len(NAMES), 2), np.int64)
            walk = self._walk
            kernels.spans(
                walk.data, walk.base, self._rows, HASHES, len(BROKERS), self._seen, self._found,
                self._sums,
            )  # fmt: skip
        return self._found

    def _number(self, name: str) -> npt.NDArray[np.int64]:
        out = np.empty(self._rows.size, np.int64)
        kernels.numbers(self._walk.data, self.found[:, NAMES.index(name)], ABSENT, out)
        return out

    def _text(self, found: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
        sizes = found[:, 1] - found[:, 0]
        ends = np.zeros(self._rows.size + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        out = np.empty(int(ends[-1]), np.uint8)
        kernels.gather(self._walk.data, found, ends, out)
        there = pa.py_buffer(np.packbits(sizes > 0, bitorder="little").tobytes())
        values = [there, pa.py_buffer(ends), pa.py_buffer(out)]
        return pa.Array.from_buffers(kind, self._rows.size, values)

    def _part(self, name: str) -> pa.Array:
        """Return a part of each record as bytes; one without bytes is empty, not null."""
        start = self._rows["phys_offset"] - self._walk.base + self._rows[f"{name}_pos"]
        found = np.stack([start, start + self._rows[f"{name}_len"]], axis=1)
        return self._text(found, pa.binary()).fill_null(b"")

    def _store(self) -> pa.Array:
        return pa.array([self._walk.segment.store], pa.string()).take(
            pa.array(np.zeros(self._rows.size, np.int32))
        )

    def _topic(self) -> pa.Array:
        topics = self._walk.topics
        names = pa.array([topics.name(at) for at in range(len(topics))], pa.string())
        return names.take(pa.array(np.ascontiguousarray(self._rows["topic_index"])))

    def _damage(self) -> pa.Array:
        kinds = pa.array([None, "body-crc"], pa.string())
        return kinds.take(pa.array((self._rows["damage"] != 0).astype(np.int32)))

    def _body(self) -> pa.Array:
        return self._part("body")

    def _property_text(self) -> pa.Array:
        return self._part("prop")

    def _hash(self) -> pa.Array:
        assert self.found is not None
        return pa.array(self._sums.view(np.int64))

    def _level(self) -> pa.Array:
        levels = self._rows["delay_level"].astype(np.int64)
        return pa.array(levels, pa.int64(), mask=levels <= 0)

    def _due_ms(self) -> pa.Array:
        """When a timer was promised to be due. Source: timer_store.due, in columns."""
        out_ms, exact_ms = self._number("TIMER_OUT_MS"), self._number("DUEMQ_DUE_MS")
        stored_ms = np.clip(self._rows["store_ms"], 0, DUE_MS_MAX)
        rolled = self._has("TIMER_ROLL_TIMES")
        by_slot = out_ms + self._precision_ms
        due_ms = self._or_absent(self._number("TIMER_DELIVER_MS"), by_slot)
        for name, factor in (("TIMER_DELAY_MS", 1), ("TIMER_DELAY_SEC", 1_000)):
            delay = self._number(name)
            own = np.where((delay == ABSENT) | rolled, by_slot, stored_ms + delay * factor)
            due_ms = np.where(self._has(name), own, due_ms)
        due_ms = np.maximum(self._or_absent(exact_ms, due_ms), out_ms + 1)
        none = (out_ms < 0) | (due_ms > DUE_MS_MAX)
        return pa.array(due_ms, pa.int64(), mask=none & (exact_ms == ABSENT))

    def _has(self, name: str) -> npt.NDArray[np.bool_]:
        found = self.found[:, NAMES.index(name)]
        return np.asarray(found[:, 0] < found[:, 1])

    @staticmethod
    def _or_absent(values: Any, other: Any) -> npt.NDArray[np.int64]:
        return np.asarray(np.where(values == ABSENT, other, values))


def _nullable(values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=values == ABSENT)


def gap_rows(schema: pa.Schema, findings: Sequence[Finding]) -> pa.RecordBatch | None:
    """Return what could not be read as rows of `messages`: a place, a size and a kind."""
    if "damage" not in schema.names or not findings:
        return None
    facts = [
        {
            "store": f.store,
            "damage": f.kind,
            "phys_offset": f.base + f.offset if f.base >= 0 else None,
            "record_size": min(f.size, 0x7FFFFFFF),
        }
        for f in findings
    ]
    rows = [{name: fact.get(name) for name in schema.names} for fact in facts]
    return pa.RecordBatch.from_pylist(rows, schema)
