"""Sums of plain messages: four numbers per message, packed by workers.

    key       store number and log offset of the pending record
    tally     counts and flags, see `tally`
    content   XOR of body and target, half of the bits each: 0 if both records are equal
    rest      XOR of the properties and of the fields of the head
    time_ms   store time of the delivery minus due time: the lateness of a pair

and, for an audit that saves its state, the place of each record (`_places`), which is not summed.

A worker packs the columns that `plain_histories` would aggregate (`pack`) and assigns them to
buckets by their key (`Buckets`). One row has all records of a bucket, so that Spark moves few rows.
`add_up` sums each bucket: equal pairs that were delivered in time are counted by lateness, all
others are returned one by one. `aggregated_audit` defines the meaning of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_reconciliation.arrays import Mask, Numbers, Words
from spark_reconciliation.audit.tally import (
    KNOWN,
    LEVEL,
    NO_UNIT,
    PASSED,
    PLACE_MAX,
    REMOVED,
    REMOVED_MASK,
    SENT,
    STORE_BITS,
    TOUCHED,
    UNUSUAL,
    record_tally,
)
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.tables import TIME_MIN

NEEDED: Final = (
    "store_id",
    "phys_offset",
    "role",
    "store_ms",
    "prepared_offset",
    "body_crc",
    "body_len",
    "damage",
    "properties_hash",
    "head_hash",
    "target",
    "due_ms",
    "unit_ms",
    "passed",
    "other_time",
    "queued",
)
"""Columns of `messages`."""
PLACE_COLUMNS: Final = ("queue_id", "queue_offset", "out_ms")
"""Additional columns for places."""
TIME_BITS: Final = 47  # bits of a time in ms
TIME_MAX: Final = (1 << TIME_BITS) - 1  # the sum of a thousand of them still fits into 64 bits
HALF: Final = np.uint64(32)
LOW: Final = np.uint64((1 << 32) - 1)
LENGTHS: Final = np.uint64(0x9E3779B1)
FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
HIGH: Final = np.uint64(48)
WORDS: Final = 5  # numbers of a packed record
PLACED_WORDS: Final = WORDS + 1  # the same with its place
ROWS: Final = 1 << 18  # maximum rows of one batch
SCHEMA: Final = pa.schema([("bucket", pa.int32()), ("packed", pa.binary())])
SUMS: Final = "key bigint, tally bigint, content bigint, rest bigint, time_ms bigint, weight bigint"
"""Result of `add_up`; `weight` is the number of messages of a row, `key` the last of them."""
NAMES: Final = [word.split()[0] for word in SUMS.split(",")]
PAIR: Final = (1 << SENT) + 1
REMOVED_ONLY: Final = ~(REMOVED_MASK << REMOVED)
FLAGS: Final = (1 << LEVEL) | (1 << KNOWN) | (1 << PASSED) | (1 << NO_UNIT)
"""Bits that have no meaning once a message is delivered."""
PENDING_FLAGS: Final = (1 << LEVEL) | (1 << KNOWN)
"""Bits that a pending message may have whose owner has not passed it."""
QUEUES_MAX: Final = 1 << (63 - STORE_BITS)
NO_PLACE: Final = -1


@dataclass(frozen=True, slots=True)
class BucketRows:
    """Records of one bucket, and the messages that need no further audit while nothing changes.

    Attributes:
        records: (PLACED_WORDS, n) i8, by key.
        first: (m,) index of the first record of each message.
        sums: (m, 6) i8: SUMS of each message.
        delivered: (m,) whether it is a pair that was delivered in time.
        pending: (m,) whether it is pending, and not due.
    """

    records: Numbers
    first: Numbers
    sums: Numbers
    delivered: Mask
    pending: Mask


Note = Callable[[BucketRows], None]


def pack(column: Callable[[str], pa.Array], *, places: bool = False) -> Numbers:
    """Return (n, WORDS) sums of records of the roles `roles.PLAIN`.

    Args:
        column: Returns one of NEEDED.
        places: Whether to return (n, PLACED_WORDS), with places; these need PLACE_COLUMNS.
    """
    column = cache(column)
    sent = _numbers(column("role")) == Role.DELIVERY
    position, prepared = _numbers(column("phys_offset")), _numbers(column("prepared_offset"))
    # An origin at PLACE_MAX or after it is impossible: such a delivery is its own origin.
    origin = np.where(sent & (~prepared < PLACE_MAX), ~prepared, position)
    key = origin | (_numbers(column("store_id")) << STORE_BITS)
    due_ms, unusual = _due_ms(column, sent)
    tally = record_tally(_Arrays(column)) + (unusual.astype(np.int64) << UNUSUAL)
    # A message stored at 2 * TIME_MAX is late in any case.
    stored_ms = np.clip(_numbers(column("store_ms")), 0, 2 * TIME_MAX)
    target = _words(column("target"))
    body = _words(column("body_crc")) ^ (_words(column("body_len")) * LENGTHS)
    content = ((body & LOW) << HALF) | ((target ^ (target >> HALF)) & LOW)
    arrays = [
        key,
        tally,
        content.view(np.int64),
        _numbers(column("properties_hash")) ^ _numbers(column("head_hash")),
        np.where(sent, stored_ms, -due_ms),
    ]
    if places:
        arrays.append(np.where(sent, position, _places(column)))
    return np.stack(arrays, axis=1)


def _places(column: Callable[[str], pa.Array]) -> Numbers:
    """Return the places of pending records: the slot of a timer, in ms; of a level message queue
    id << STORE_BITS | queue offset, NO_PLACE if it has an impossible one.

    The place of a delivery is its log offset.
    """
    queue_id, number = _numbers(column("queue_id")), _numbers(column("queue_offset"))
    possible = (queue_id >= 0) & (queue_id < QUEUES_MAX) & (number >= 0) & (number < PLACE_MAX)
    unit = np.where(possible, (queue_id << STORE_BITS) | number, NO_PLACE)
    return np.where(_numbers(column("role")) == Role.LEVEL, unit, _numbers(column("out_ms")))


def pack_removed(number: int, offsets: Numbers, words: int = WORDS) -> Numbers:
    """Return the sums of units whose records were removed.

    Args:
        number: Number of the store.
        words: WORDS or PLACED_WORDS.
    """
    packed = np.zeros((offsets.size, words), np.int64)
    packed[:, 0], packed[:, 1] = offsets | (number << STORE_BITS), 1 << REMOVED
    return packed


class Buckets:
    """Assignment of sums to buckets, returned as batches of SCHEMA."""

    def __init__(self, count: int) -> None:
        self._count, self._packed, self._rows = count, list[Numbers](), 0

    def take(self, packed: Numbers) -> Iterator[pa.RecordBatch]:
        """Add sums; yield a batch once there are many."""
        self._packed.append(packed)
        self._rows += len(packed)
        if self._rows >= ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch of the rows added since the last one."""
        if self._rows:
            yield by_bucket(np.concatenate(self._packed), self._count)
        self._packed, self._rows = [], 0


def by_bucket(packed: Numbers, count: int) -> pa.RecordBatch:
    """Return (n, words) sums as a batch with a row for each bucket."""
    mixed = (packed[:, 0].view(np.uint64) * FACTOR) >> HIGH
    bucket = (mixed % np.uint64(count)).astype(np.uint16)
    sorted_ = packed[np.argsort(bucket, kind="stable")]
    sizes = np.bincount(bucket, minlength=count)
    ends = np.concatenate([[0], np.cumsum(sizes) * packed.itemsize * packed.shape[1]]).astype(
        np.int32
    )
    blobs = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(sorted_)]
    )
    return pa.RecordBatch.from_arrays(
        [pa.array(np.arange(count, dtype=np.int32)), blobs], SCHEMA.names
    )


def touch(
    batches: Iterable[pa.RecordBatch], *, count: int, words: int = WORDS
) -> Iterator[pa.RecordBatch]:
    """Yield buckets of the keys that remove all sums of these keys."""
    for batch in batches:
        packed = np.zeros((batch.num_rows, words), np.int64)
        packed[:, 0], packed[:, 1] = batch.column(0).to_numpy(), 1 << TOUCHED
        yield by_bucket(packed, count)


def add_up(
    batches: Iterable[pa.RecordBatch],
    *,
    late_ms: int,
    as_of_ms: Sequence[int] = (),
    words: int = WORDS,
    note: Note | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield SUMS of whole buckets.

    Args:
        late_ms: Maximum lateness of a pair that is only counted.
        as_of_ms: Present time of each store; empty: no pending message is only counted.
        words: WORDS or PLACED_WORDS, the numbers of each record.
        note: Called with the rows of each bucket; needs places.
    """
    pieces = [
        np.frombuffer(value.as_buffer(), np.int64).reshape(-1, words)
        for batch in batches
        for value in batch.column("packed")
        if value.as_buffer().size
    ]
    if not pieces:
        return
    whole = np.concatenate(pieces)
    columns = np.ascontiguousarray(whole[np.argsort(whole[:, 0])].T)
    keys = columns[0]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    adds = (np.add, np.bitwise_xor, np.bitwise_xor, np.add)
    sums = [add.reduceat(column, first) for add, column in zip(adds, columns[1:], strict=False)]
    rows = np.stack([keys[first], *sums, np.ones_like(first)], axis=1)
    untouched = rows[:, 1] >> TOUCHED & 1 == 0
    fine = (rows[:, 1] & ~FLAGS == PAIR) & (rows[:, 2] == 0) & (rows[:, 3] == 0)
    fine &= (rows[:, 4] >= 0) & (rows[:, 4] <= late_ms)
    removed = (rows[:, 1] & REMOVED_ONLY == 0) & (rows[:, 1] != 0)
    pending = np.zeros(first.size, np.bool_)
    if as_of_ms:  # the rules find any of these pending, and need one to do so
        present_ms = np.array(as_of_ms)[rows[:, 0] >> STORE_BITS]
        pending = (rows[:, 1] & ~PENDING_FLAGS == 1) & (late_ms - rows[:, 4] >= present_ms)
    if note is not None:
        note(BucketRows(columns, first, rows, fine, pending))
    others = rows[untouched & ~(fine | removed | pending)]
    counted = (
        _counted(rows[fine]),
        _counted_by_store(rows[removed], 1 << REMOVED),
        _counted_by_store(rows[pending]),
    )
    rows = np.concatenate([others, *counted])
    yield pa.RecordBatch.from_arrays([pa.array(rows[:, n]) for n in range(WORDS + 1)], NAMES)


def _counted(rows: Numbers) -> Numbers:
    """Return one row for each store and lateness among (n, 6) sums."""
    which = ((rows[:, 0] >> STORE_BITS) << TIME_BITS) + rows[:, 4]
    _, position, count = np.unique(which[::-1], return_index=True, return_counts=True)
    newest = rows[::-1][position]  # the newest key, because retention may remove the others
    newest[:, 5] = count
    return newest


def _counted_by_store(rows: Numbers, tally: int | None = None) -> Numbers:
    """Return one row for each store among (n, 6) sums, with a tally."""
    _, position, count = np.unique(rows[:, 0] >> STORE_BITS, return_index=True, return_counts=True)
    sums = rows[position]
    sums[:, 5] = count
    if tally is not None:
        sums[:, 1] = tally
    return sums


def _due_ms(column: Callable[[str], pa.Array], sent: Mask) -> tuple[Numbers, Mask]:
    """Return due times, 0 where unknown, and which pending records have none."""
    level = _numbers(column("role")) == Role.LEVEL
    in_queue, own = column("unit_ms"), column("due_ms")
    due_ms = np.where(level, _numbers(in_queue), _numbers(own))
    has_time = np.where(level, _is_valid(in_queue) & (due_ms >= TIME_MIN), _is_valid(own))
    has_time &= (due_ms >= 0) & (due_ms < TIME_MAX)
    return np.where(has_time, due_ms, 0), ~has_time & ~sent


Values = npt.NDArray[Any]  # flags or amounts


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Columns of `messages` as arrays, for `record_tally`."""

    column: Callable[[str], pa.Array]

    def equals(self, name: str, value: int) -> Values:
        return np.asarray(_numbers(self.column(name)) == value) & _is_valid(self.column(name))

    def is_null(self, name: str) -> Values:
        return ~_is_valid(self.column(name))

    def invert(self, flags: Values) -> Values:
        return ~flags

    def bits(self, base: int, *flags: tuple[Values, int]) -> Values:
        total = np.array(base, np.int64)
        for holds, bit in flags:
            total = total + (holds.astype(np.int64) << bit)
        return total

    def choose(self, flags: Values, chosen: Values, other: Values) -> Values:
        return np.where(flags, chosen, other)


def _numbers(values: pa.Array) -> Numbers:
    """Return numbers, 0 for null."""
    filled = values.fill_null(pa.scalar(0).cast(values.type)) if values.null_count else values
    return np.asarray(filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))


def _words(values: pa.Array) -> Words:
    return _numbers(values).view(np.uint64)


def _is_valid(values: pa.Array) -> Mask:
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
