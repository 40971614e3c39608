"""Deliverer, stages 4 and 5: due timers to their topics in order, undeliverable ones to quarantine.

    STAGED rows, in the order of delivery
      |  records read in the order of the log, file by file      kernel: `Load`, `Gatherer`
      |  skipped records decoded in Python -> message, or quarantine record
      v
    PutBatch; row i is the message of timer i  --put--> topics
                                                 |
                                                 +-- refused (full disk): these and later rows
                                                     return to the stage

A timer is delivered when its record is appended: the record names its origin, so no recovery
delivers the timer again. A record that may be too long for the store is put in a batch of its own,
so that a permanent refusal affects one timer only. A timer whose record retention has removed is
lost: its row is skipped, and counted as lost.

Timers are taken out of the near stage and delivered in one turn of the event loop, so a cancel
never finds a timer that is neither pending nor delivered. If many are due, a thread reads the
records of the timers that follow while the event loop appends. They stay in the near stage. The
next turn uses what the thread has read only if it takes exactly these timers, if the thread has
ended, and if neither the routing of topics nor unreadable parts of the log have changed; otherwise
it reads again.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from delayed_delivery.deliverer import SINGLE_STAGING_BYTES, Convert, SingleDeliverer, build
from delayed_delivery.kernels.outcome import SKIPPED
from delayed_delivery.outcome import NO_TOPIC, Outcome
from delayed_delivery.quarantine import Reason, Undeliverable, quarantine, report
from delayed_delivery.records import add_message, clear_client_columns, read_damaged, read_record
from delayed_delivery.redirected import NoTarget, real_target
from duemq_common.errors import CorruptStore, RecordUnreadable
from duemq_common.text import java_hash
from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from message_store import layout as store_layout
from message_store.kernels.bytes import Bytes
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.log.unreadable import READS_MAX
from message_store.queues.topic_table import TopicArrays, TopicTable
from message_store.store import MessageStore
from timer_store import layout
from timer_store.dequeue.near_stage import NOTHING
from timer_store.dequeue.original_properties import delivered_text, kind_of
from timer_store.dequeue.unit_check import UnitCheck, is_due_with_record
from timer_store.enqueue.due_time import due_ms_of
from timer_store.kernels import gather as kernels
from timer_store.kernels.enqueue import Scratch
from timer_store.layout import FROM_LEVEL, FROM_TIMER, Mask, Offsets, Row, Rows
from timer_store.names import TIMER_QUEUE

GROWTH_BYTES_MAX = 1 << 15  # maximum growth of a record when it is delivered or quarantined
BATCH_ROWS = 4_096
AHEAD_ROWS = 1_024  # minimum timers that are read in the thread; a hand-over takes some 0.1 ms


class TimerDeliverer:
    """Deliverer of one store's timers. Belongs to the event loop's thread.

    Args:
        precision_ms: Width of a slot.
        check: Determines whether a unit or its record is damaged; None: it is the record.
    Attributes:
        broken: Error of the damaged unit that ended the last batch.
        pool: Thread that reads records; None: no loop runs.
    """

    def __init__(
        self, store: MessageStore, precision_ms: int, check: UnitCheck | None = None
    ) -> None:
        self._store, self._check = store, check
        self.broken: CorruptStore | None = None
        self._gatherer = Gatherer(store, precision_ms)
        self._batch, self._other = PutBatch(BATCH_ROWS), PutBatch(1, 1)
        self.pool: ThreadPoolExecutor | None = None
        self._ahead: Ahead | None = None
        self._single = SingleDeliverer(store, self._gatherer)

    @contextmanager
    def threaded(self) -> Iterator[None]:
        """Read records of timers that follow in a thread while the block is open."""
        with ThreadPoolExecutor(1, "timer records") as self.pool:
            try:
                yield
            finally:
                self.pool = self._ahead = None

    def deliver_batch(self, rows: Rows, now_ms: int, following: Rows = NOTHING) -> Outcome:
        """Append due timers, in order, until all are settled, one is refused, or one is damaged.

        Args:
            rows: (n,) `layout.STAGED`, as taken from the near stage.
            following: (m,) `layout.STAGED` that are probably taken next.
        """
        outcome, self.broken = Outcome(rows.size), None
        while outcome.done < rows.size and not outcome.refusal:
            unreadable = self._store.unreadable
            load = self._read(rows[outcome.done :], now_ms)
            if self._ahead is None and self.pool is not None and following.size >= AHEAD_ROWS:
                self._begin(self.pool, following, now_ms)
            if unreadable.ranges:  # zeros were read in place of some records
                hit = unreadable.mask(load.rows["phys_offset"], load.rows["record_size"])
                load.is_malformed[hit] = 1
            if self._check is not None and load.is_malformed.any():
                self.broken = self._check.wrong_unit(load.rows[load.is_malformed != 0])
                if self.broken is not None:
                    outcome.refusal = str(self.broken)
                    break
            self._put(load, outcome)
        return outcome

    def _read(self, rows: Rows, now_ms: int) -> Load:
        """Return the load of timers, read in this thread unless the other one has read it."""
        ahead = self._ahead
        # On busy cores, the thread may not have begun, or not have ended: it is not waited for.
        if ahead is not None and (ahead.future.cancel() or ahead.future.done()):
            self._ahead = None
            if not ahead.future.cancelled():
                ahead.future.result()
                self._batch, self._other = self._other, self._batch
                if ahead.is_valid(rows, self._store):
                    return ahead.load
        unreadable = self._store.unreadable
        for _ in range(READS_MAX):
            seen = unreadable.seen
            load = self._gatherer.plan(rows, self._batch, now_ms)
            load.read()
            if unreadable.replaced[0] == seen or not unreadable.changed(seen):
                break
        else:
            load.is_malformed[:] = 1  # Python reads each record alone
        return load

    def _begin(self, pool: ThreadPoolExecutor, rows: Rows, now_ms: int) -> None:
        """Begin to read timers in the thread, into the batch that the event loop does not use."""
        seen, routings = self._store.unreadable.seen, self._store.topics.routings
        load = self._gatherer.plan(rows, self._other, now_ms)
        self._ahead = Ahead(load, pool.submit(load.read), seen, routings)

    def _put(self, load: Load, outcome: Outcome) -> None:
        """Append the gathered rows before the first that needs its own batch, then that row."""
        count = int(np.argmax(load.alone)) if load.alone.any() else int(load.rows.size)
        if count:
            load.batch.count = count
            self._gatherer.finish(load)
            self._store.put(load.batch)
            self._settle(load, outcome)
        if count < load.rows.size and not outcome.refusal:
            convert = self._gatherer.delivery(load.now_ms)
            self._single.deliver(load.rows[count], convert, outcome, load.now_ms)

    def _settle(self, load: Load, outcome: Outcome) -> None:
        """Settle the leading rows that were appended or are lost, up to the first refused one."""
        topics = {
            position: self._gatherer.topic_of(
                load.rows[position], load.quarantine_items.get(position)
            )
            for position in (*load.quarantine_items, *load.lost)
        }
        count = outcome.record_batch(load.batch, topics)
        outcome.quarantined += [
            item for position, item in load.quarantine_items.items() if position < count
        ]
        outcome.lost += sum(position < count for position in load.lost)

    # -- not due --------------------------------------------------------------------------------

    def quarantine_broken(self, rows: Rows, now_ms: int) -> int:
        """Move records of the timer queue that are not timers to quarantine; return their number.

        It stops when the store refuses a record. Records that retention removed are skipped.

        Args:
            rows: (n,) `layout.STAGED` of the records; `due_ms` is 0.
        """
        outcome = Outcome(rows.size)
        convert = self._gatherer.fault
        while outcome.done < rows.size and not outcome.refusal:
            self._single.deliver(rows[outcome.done], convert, outcome, now_ms)
        report(outcome.quarantined)
        return outcome.done


class Ahead(Struct, frozen=True):
    """A load that the thread reads.

    Attributes:
        seen: `UnreadableRanges.seen` before it began.
        routings: `TopicTable.routings` before it began.
    """

    load: Load
    future: Future[None]
    seen: int
    routings: int

    def is_valid(self, rows: Rows, store: MessageStore) -> bool:
        """Return whether it is the load of `rows`, and nothing that it depends on has changed."""
        planned, unreadable = self.load.rows, store.unreadable
        if planned.size != rows.size or self.routings != store.topics.routings:
            return False
        if unreadable.replaced[0] != self.seen and unreadable.changed(self.seen):
            return False
        return bool((planned.view(np.int64) == rows.view(np.int64)).all())


class Load(Struct):
    """Due timers, and the batch of their messages.

    Attributes:
        rows: (n,) `layout.STAGED`.
        is_malformed: (n,) u1: The kernel skipped the row.
        alone: (n,) b1: The store may refuse the row as too long; it gets a batch of its own.
        files: Bytes of each log file with some of the records, its first log offset and written
            bytes, and the rows of these records, in the order of the log.
        quarantine_items: Items for quarantine, by row.
        lost: Rows whose record retention has removed.
    """

    rows: Rows
    now_ms: int
    batch: PutBatch
    is_malformed: npt.NDArray[np.uint8]
    alone: Mask
    arrays: TopicArrays
    context: kernels.Context
    scratch: Scratch
    files: list[tuple[Bytes, tuple[int, int], npt.NDArray[np.int32]]]
    quarantine_items: dict[int, Undeliverable] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)

    def read(self) -> None:
        """Run the kernel over the log files. Changes only this load; may run in any thread."""
        rows, batch = self.rows, self.batch
        end = np.zeros(1, np.int64)
        output = kernels.Output(batch.rows, batch.staging, end, self.is_malformed)
        for data, span, order in self.files:
            kernels.gather(data, span, rows, order, self.arrays, self.context, self.scratch, output)
        batch.staging_len = int(output.end[0])
        batch.count = int(rows.size)
        batch.trusted = True


class Gatherer:
    """Builder of batches from due timers of one store."""

    def __init__(self, store: MessageStore, precision_ms: int) -> None:
        self._store, self._precision_ms = store, precision_ms
        topics: TopicTable = store.topics
        self._timer, self._half = topics.add(TIMER_TOPIC), topics.add(HALF_TOPIC)
        self._schedule = topics.add(SCHEDULE_TOPIC)
        self._plain = PutBatch(1, SINGLE_STAGING_BYTES)
        self._by_hash: dict[int, int] = {}
        self._hashed = 0

    def plan(self, rows: Rows, batch: PutBatch, now_ms: int) -> Load:
        """Return the load of some timers: a batch with room for all, and their log files."""
        store = self._store
        sizes = rows["record_size"].astype(np.int64)
        file_bytes = int(store.config.commitlog_file_bytes)
        alone = (sizes < 0) | (sizes + GROWTH_BYTES_MAX > file_bytes)
        batch.clear()
        batch.reserve(int(rows.size), int(sizes[~alone].sum()))
        return Load(
            rows=rows,
            now_ms=now_ms,
            batch=batch,
            is_malformed=np.ones(rows.size, np.uint8),
            alone=alone,
            arrays=store.topics.arrays,
            context=kernels.Context(
                self._timer,
                self._schedule,
                self._half,
                store.topics.has_routes,
                now_ms,
                self._precision_ms,
            ),
            scratch=Scratch(np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT)),
            files=self._files_of(rows["phys_offset"], alone),
        )

    def _files_of(
        self, offsets: Offsets, alone: Mask
    ) -> list[tuple[Bytes, tuple[int, int], npt.NDArray[np.int32]]]:
        order = np.argsort(offsets, kind="stable").astype(np.int32)
        if alone.any():
            order = order[~alone[order]]
        return [
            (file.data, self._store.written_span(file), order[first:end])
            for file, first, end in self._store.files_of(offsets[order])
        ]

    def finish(self, load: Load) -> None:
        """Fill the rows that the kernel skipped, in Python."""
        count = load.batch.count
        for index in np.flatnonzero(load.is_malformed[:count]).tolist():
            self._convert(load, index)

    def _convert(self, load: Load, position: int) -> None:
        timer = load.rows[position]
        if self.is_lost(timer):
            load.lost.append(position)
            load.batch.rows[position] = np.zeros((), store_layout.PUT)
            load.batch.rows[position]["status"] = SKIPPED
            return
        plain = self._plain
        plain.clear()
        item = build(self, timer, self.delivery(load.now_ms), plain)
        if item is not None:
            load.quarantine_items[position] = item
            quarantine(plain, self._store.topics, item, now_ms=load.now_ms)
        _place(load.batch, position, plain)

    # -- one timer ------------------------------------------------------------------------------

    def is_lost(self, unit: Row) -> bool:
        """Return whether retention has removed a timer's record."""
        return bool(unit["phys_offset"] < self._store.min_offset)

    def read(self, unit: Row) -> Record:
        """Return a timer's record.

        Raises:
            RecordUnreadable: The record is damaged, or does not match the unit.
        """
        phys_offset, size = int(unit["phys_offset"]), int(unit["record_size"])
        record = read_record(self._store, phys_offset, size)
        if record.total_size != size:
            reason = f"the record there has {record.total_size} bytes, its unit names {size}"
            raise RecordUnreadable(phys_offset, reason)
        return record

    def undeliverable(self, reason: Reason, detail: str, unit: Row) -> Undeliverable:
        """Return the quarantine item for a timer that cannot be delivered."""
        phys_offset, size = int(unit["phys_offset"]), int(unit["record_size"])
        queue_offset, level = -1, 0
        data, record = read_damaged(self._store, phys_offset, size)
        topic = record.topic if record is not None and record.phys_offset == phys_offset else ""
        if record is not None and topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            queue_offset = record.queue_offset
            level = record.queue_id + 1 if topic == SCHEDULE_TOPIC else 0
        due_ms = -1 if level else int(unit["due_ms"]) or -1
        return Undeliverable(
            reason, detail, phys_offset, level, queue_offset, record, data, due_ms=due_ms
        )

    def topic_of(self, unit: Row, item: Undeliverable | None = None) -> int:
        """Return the real topic of a timer that is not delivered, NO_TOPIC if unknown."""
        if item is not None and item.record is not None:
            index = self._store.topics.find(item.record.properties.get("REAL_TOPIC", ""))
            if index >= 0:
                return int(index)
        return self._topic_of_hash(int(unit["topic_hash"]))

    def _topic_of_hash(self, topic_hash: int) -> int:
        """Return the index of the topic with this Java hash, NO_TOPIC if there is none."""
        topics: TopicTable = self._store.topics
        for index in range(self._hashed, len(topics)):
            self._by_hash.setdefault(java_hash(topics.name(index)), index)
        self._hashed = len(topics)
        return self._by_hash.get(topic_hash, NO_TOPIC)

    # -- conversion ------------------------------------------------------------------------------

    def delivery(self, now_ms: int) -> Convert[Row]:
        """Return the conversion of a timer's record to the delivered message."""

        def convert(batch: PutBatch, record: Record, timer: Row) -> NoTarget | None:
            topics = self._store.topics
            target = target_of(record, timer, topics, self._precision_ms, routed=topics.has_routes)
            if isinstance(target, NoTarget):
                return target
            add_delivery(batch, record, *target, timer, now_ms)
            return None

        return convert

    def fault(self, batch: PutBatch, record: Record, timer: Row) -> NoTarget:
        """Return the reason why a record of the timer queue is not a timer; adds no message."""
        return fault_of(record, self._store.topics)


def target_of(
    record: Record, timer: Row, topics: TopicTable, precision_ms: int, *, routed: bool
) -> tuple[int, int] | NoTarget:
    """Return (topic_index, queue_id) of the queue to which a timer is delivered.

    Args:
        timer: `layout.STAGED` row of the timer; the record must have the due time of this row.
        precision_ms: Width of a slot.
        routed: Topics without queues count as missing, because they were deleted.
    """
    if kind_of(record) == FROM_LEVEL:
        return real_target(record.properties, topics, SCHEDULE_TOPIC, routed=routed)
    foreign = wrong_queue_fault(record)
    if foreign is not None:
        return foreign
    properties = record.properties
    if "TIMER_DEL_UNIQKEY" in properties:
        return NoTarget(Reason.WRONG_RECORD, "the record there cancels another timer")
    due_ms = due_ms_of(properties, record.store_ms, precision_ms)
    if due_ms is None:
        return _no_time(record)
    times = np.array([timer["due_ms"]], np.int64), np.array([due_ms], np.int64)
    if timer["state"] != layout.STAGED_FIRED and not is_due_with_record(*times, precision_ms).all():
        detail = f"the record there is due at {due_ms}, not at {int(timer['due_ms'])}"
        return NoTarget(Reason.WRONG_RECORD, detail)
    return real_target(properties, topics, TIMER_TOPIC, routed=routed)


def wrong_queue_fault(record: Record) -> NoTarget | None:
    """Return the fault of a record that is not in the timer queue, None if it is."""
    if record.topic == TIMER_TOPIC and record.queue_id == TIMER_QUEUE:
        return None
    where = f"{record.topic} queue {record.queue_id}"
    return NoTarget(Reason.WRONG_RECORD, f"the record there belongs to {where}")


def fault_of(record: Record, topics: TopicTable) -> NoTarget:
    """Return the reason why a record of the timer queue is not a timer."""
    foreign = wrong_queue_fault(record)
    if foreign is not None:
        return foreign
    if due_ms_of(record.properties, record.store_ms, 1) is None:
        return _no_time(record)
    target = real_target(record.properties, topics, TIMER_TOPIC, routed=False)
    return (
        target if isinstance(target, NoTarget) else NoTarget(Reason.NO_TARGET, "it is not a timer")
    )


def _no_time(record: Record) -> NoTarget:
    out = record.properties.get("TIMER_OUT_MS")
    return NoTarget(Reason.NO_TIME, f"the record has no due time: TIMER_OUT_MS={out!r}")


def add_delivery(
    batch: PutBatch, record: Record, topic_index: int, queue_id: int, timer: Row, now_ms: int
) -> None:
    """Add the delivered message of a due timer. The kernel's readable twin.

    Source: TimerMessageStore.convert, convertMessage
    """
    kind = kind_of(record)
    text = delivered_text(record, kind)
    row = _add(batch, record, topic_index, queue_id, text, timer, now_ms)
    if kind != FROM_TIMER:
        row["enqueue_ms"] = row["dequeue_ms"] = -1
    clear_client_columns(row)


def _add(
    batch: PutBatch,
    record: Record,
    topic_index: int,
    queue_id: int,
    text: bytes,
    timer: Row,
    now_ms: int,
) -> Row:
    row: Row = batch.rows[add_message(batch, record, topic_index, queue_id, text)]
    row["enqueue_ms"], row["dequeue_ms"] = timer["write_ms"], now_ms
    return row


def _place(batch: PutBatch, position: int, plain: PutBatch) -> None:
    """Copy the only message of `plain` to row `position`."""
    start = batch.stage(plain.staging[: plain.staging_len].data)
    row = batch.rows[position]
    batch.rows[position] = plain.rows[0]
    for column in ("body_pos", "prop_pos"):
        row[column] += start
