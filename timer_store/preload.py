"""Preload of the kernels that deliver and copy timers, in a thread after the start.

Machine code that was compiled before is loaded at its first use, which takes some tenths of a
second for all of it. Without this the first timers that are due would wait for it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from message_store import layout as store_layout
from message_store.kernels.kept import load_kept
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from timer_store import layout
from timer_store.dequeue.gather import Load
from timer_store.dequeue.near_stage import SMALL, NearStage
from timer_store.kernels import chain, fetch, put, units, wheel
from timer_store.kernels import gather as kernels
from timer_store.kernels.fetch import Scratch
from timer_store.layout import NO_OFFSETS, Offsets, Rows
from timer_store.pending.decision_records import DecidingRecords, TimerCopies
from timer_store.pending.records import RecordReader

ROWS = 2 * SMALL  # so many are sorted by their digits
NOW_MS = 1_700_000_000_000


def preload_kernels() -> None:
    """Use every kernel between a slot and a batch, with the types of the real thing."""
    load_kept(put.hold, fetch.from_put, units.link, units.bury)  # of a send, and a checkpoint
    data = np.zeros(layout.UNIT_BYTES, np.uint8)
    data.flags.writeable = False  # as a mapped file
    walk = np.full(chain.WALK_SIZE, -1, np.int64)
    chain.collect(data, 0, 0, 1_000, NO_OFFSETS, walk, np.empty(1, layout.STAGED))
    _gather(_stage(), data)


def _stage() -> Any:
    """Load, settle and take rows: of several topics, in several runs."""
    rows = np.zeros(ROWS, layout.STAGED)
    rows["due_ms"] = NOW_MS + np.arange(ROWS) // 4 % 7
    rows["phys_offset"] = np.arange(ROWS)[::-1]
    rows["topic_hash"] = np.arange(ROWS) % 3
    stage = NearStage()
    stage.add(rows)
    stage.add(rows[:1])
    for _ in range(2):  # not at the front yet, and there
        stage.settle(rows["phys_offset"][2:4].copy(), rows["due_ms"][2:4].copy())
        taken = stage.take(NOW_MS + 5, 8, 1 << 20)
    return taken


def _gather(rows: Any, data: Any) -> None:
    """Read records that are not there."""
    topics, batch = TopicTable(), PutBatch(int(rows.size), 1)
    load = Load(
        rows=rows,
        now_ms=NOW_MS,
        batch=batch,
        is_malformed=np.ones(rows.size, np.uint8),
        alone=np.zeros(rows.size, np.bool_),
        arrays=topics.arrays,
        context=kernels.Context(0, 0, 0, False, NOW_MS),
        scratch=Scratch(np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT)),
        files=[(0, 0, data)],
    )
    load.read()
    kernels.outcome(batch.rows, 0, np.empty(1, np.int64), np.empty(1, np.int32))


def preload_copies() -> None:
    """Use every kernel between a unit and the copy of its record: for moves and compaction."""
    data = np.zeros(layout.UNIT_BYTES, np.uint8)
    data.flags.writeable = False
    file = SimpleNamespace(base=0, size=data.size, data=data)
    log = SimpleNamespace(files=[file], end=0)
    store: Any = SimpleNamespace(topics=TopicTable(), log=log, put=_put_nothing)
    deciding = DecidingRecords(store, 1_000)
    records = RecordReader(store, 1_000, _none_transferred)
    TimerCopies(records, deciding).put(np.zeros(1, layout.STAGED), NOW_MS)
    deciding.put_again(np.zeros(1, layout.TIMED), np.zeros(1, np.int64), NOW_MS)
    pos, due = np.zeros((2, 1), np.int64)
    chain.read_units(data, 0, 0, 0, np.empty(1, layout.LOGGED))
    chain.stage_at(data, 0, pos, 1_000, np.empty(1, layout.STAGED))
    chain.settle(data, 0, pos, 1_000, False, due, due)
    wheel.add_num(np.zeros(0, np.uint8), np.zeros(0, np.uint8), due[:0], -1)


def _none_transferred(offsets: Offsets) -> tuple[Rows, Offsets]:
    """Return no transferred message."""
    return np.empty(0, layout.TIMED), NO_OFFSETS


def _put_nothing(batch: PutBatch) -> None:
    """Append nothing: what is copied is not there."""
