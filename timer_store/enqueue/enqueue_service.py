"""Enqueue service, stages 1 and 2: links a unit of each timer into timer log and wheel.

    an appended batch ---- its rows ---------------------+   stage 1: `TimerFetcher`, TIMED rows
                                                         +--> slots -> units.add -> counts, stage
    the timer queue, to catch up --- units, records -----+   stage 2: `EnqueueService`

Timers are enqueued strictly in queue order: `position.queue_offset` is the next offset. A batch
that begins there is enqueued at once; others are enqueued when the queue is read. Enqueueing is
blocked while a slot has undelivered timers of an earlier lap, and while the timer log cannot be
written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from delayed_delivery.outcome import Rate
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import TIMER_TOPIC
from message_store import layout as store_layout
from message_store.kernels.kernel import entry
from message_store.log.batch import PutBatch
from message_store.queues.consume_queues import is_topic_name
from message_store.ranges import is_among
from message_store.store import MessageStore
from timer_store import layout
from timer_store.config import TimerConfig
from timer_store.dequeue.near_stage import NearStage
from timer_store.kernels import enqueue as kernels
from timer_store.layout import NO_OFFSETS, Offsets, Rows
from timer_store.log.units import TimerUnits
from timer_store.names import TIMER_QUEUE
from timer_store.progress import PendingCounts, Position

log = logging.getLogger(__name__)
NO_BYTES = np.frombuffer(b"", np.uint8)


class TimerFetcher:
    """Reader of the timer queue's messages as (n,) `layout.TIMED` rows, in queue order.

    An appended batch and the queue give the same rows for the same messages. Rows are in a shared
    buffer and valid until the next call.
    """

    def __init__(self, store: MessageStore, config: TimerConfig) -> None:
        self._store = store
        self._from_put: dict[bool, Callable[..., int]] = {}
        self._timed = np.zeros(1_024, layout.TIMED)
        self._scratch = kernels.Scratch(
            np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT)
        )
        self._context = kernels.Context(store.topics.add(TIMER_TOPIC), config.precision_ms)

    def bounds(self) -> tuple[int, int]:
        """Return the first offset of the timer queue and its end."""
        first, end = self._store.queue_bounds(TIMER_TOPIC, TIMER_QUEUE)
        return int(first), int(end)

    def fetch_batch(self, batch: PutBatch) -> Rows:
        """Return the timers of a batch that was just appended."""
        self._room(batch.count)
        staging = batch.staging
        take = self._from_put.get(staging.flags.writeable) or self._find(batch)
        count = take(
            batch.rows,
            batch.count,
            staging,
            self._store.topics.arrays,
            self._context,
            self._scratch.text,
            self._timed,
        )
        if count:
            name_topics(self._store, self._timed[:count])
        return self._timed[:count]

    def _find(self, batch: PutBatch) -> Callable[..., int]:
        """Return the kernel for a batch, whose staging buffer is writable or read-only."""
        from_put: Callable[..., int] = entry(
            kernels.from_put,
            batch.rows,
            0,
            batch.staging,
            self._store.topics.arrays,
            self._context,
            self._scratch.text,
            self._timed,
        )
        self._from_put[batch.staging.flags.writeable] = from_put
        return from_put

    def fetch_queue(self, offset: int, count_max: int) -> tuple[Rows, int]:
        """Return the timers from a queue offset on, and the offset after them.

        Units whose record retention has removed are TIMED_BROKEN, like all records that are not
        timers.
        """
        first, end = self.bounds()
        offset = max(offset, first)
        if offset >= end:
            return self._timed[:0], offset
        units = self._store.units(TIMER_TOPIC, TIMER_QUEUE, offset, min(count_max, end - offset))
        if not units.size:
            log.error("%s: the queue has a hole at offset %d; it is skipped", TIMER_TOPIC, offset)
            return self._timed[:0], offset + 1
        self._room(units.size)
        position = 0
        while position < units.size:
            position += self.read(units[position:], offset + position, self._timed[position:])
        timed = self._timed[: units.size]
        blank = units["size"] == store_layout.PRE_BLANK_SIZE
        broken = np.flatnonzero((timed["kind"] == layout.TIMED_BROKEN) & ~blank)
        if broken.size and self._repaired(offset + broken):
            return self.fetch_queue(offset, count_max)
        name_topics(self._store, timed)
        return (timed[~blank] if blank.any() else timed), offset + units.size

    def _repaired(self, offsets: Offsets) -> bool:
        """Repair units of the queue that differ from their records; return whether any did."""
        repair = self._store.repair
        is_repaired = [
            repair.repaired(TIMER_TOPIC, TIMER_QUEUE, index) for index in offsets.tolist()
        ]
        return any(is_repaired)

    def read(self, units: Rows, offset: int, timed: Rows) -> int:
        """Read the leading units with records in one log file; return their number."""
        try:
            file = self._store.log_file(int(units[0]["phys_offset"]))
            data, span = file.data, self._store.written_span(file)
            outside = (units["phys_offset"] < file.base) | (
                units["phys_offset"] >= file.base + file.size
            )
            count = int(np.argmax(outside)) if outside.any() else units.size
        except RecordUnreadable:
            data, span, count = NO_BYTES, (0, 0), 1
        kernels.from_records(
            data,
            span,
            units[:count],
            self._store.topics.arrays,
            self._context,
            offset,
            self._scratch,
            timed,
        )
        return count

    def _room(self, count: int) -> None:
        if self._timed.size < count:
            self._timed = np.zeros(max(count, self._timed.size * 2), layout.TIMED)


def name_topics(store: MessageStore, timed: Rows) -> None:
    """Add real topics to the topic table, so that they are counted.

    Args:
        timed: (n,) `layout.TIMED`; `topic_index` is set where it was -1.
    """
    unknown = timed["topic_index"] < 0
    if not unknown.any():
        return
    unknown &= timed["kind"] != layout.TIMED_BROKEN
    by_hash: dict[int, list[tuple[int, bytes]]] = {}  # by hash: index, entry in a record
    for row_index in np.flatnonzero(unknown).tolist():
        row = timed[row_index]
        alike = by_hash.setdefault(int(row["topic_hash"]), [])
        try:
            data = bytes(store.record_bytes(int(row["phys_offset"]), int(row["record_size"])))
            topic_index = next((index for index, entry in alike if entry in data), -1)
            if topic_index < 0:
                topic_index = _add_topic(store, int(row["phys_offset"]), alike)
        except RecordUnreadable:
            continue
        row["topic_index"] = topic_index


def _add_topic(store: MessageStore, phys_offset: int, alike: list[tuple[int, bytes]]) -> int:
    """Return the index of the real topic of a record, -1 if its name is invalid."""
    name = store.read_record(phys_offset).properties.get("REAL_TOPIC", "")
    if not is_topic_name(name):
        return -1
    alike.append((store.topics.add(name), b"REAL_TOPIC\x01%s\x02" % name.encode()))
    return alike[-1][0]


class EnqueueService:
    """Enqueue stages of one timer store.

    Attributes:
        broken: Rows that are not timers, for quarantine.
        markers: Time in ms at which rows were enqueued that cancel another timer, and the rows,
            not applied yet; without those of decisions.
        are_cancels_refused: Whether the store has refused the cancels of the next markers.
        blocked_by: Reason why nothing is enqueued now, or empty.
        skip: (n,) i8, ascending: Timers of the queue that are settled already (recovery).
        earliest_ms: Earliest due time of the newest timers, or the start of its slot.
        early_ms: Slot that must be loaded now, because a timer in it is due before it begins; -1:
            none.
    """

    def __init__(
        self,
        fetch: TimerFetcher,
        units: TimerUnits,
        stage: NearStage,
        counts: PendingCounts,
        position: Position,
        *,
        precision_ms: int,
        window_ms: int,
    ) -> None:
        self._fetch, self._units, self._stage = fetch, units, stage
        self._counts, self._position = counts, position
        self._precision_ms, self._window_ms = precision_ms, window_ms
        self.broken: list[Rows] = []
        self.markers: list[tuple[int, Rows]] = []
        self.are_cancels_refused = False
        self.blocked_by = self._reported = ""
        self.skip = NO_OFFSETS
        self.stopped = False
        self.enqueued = 0
        self.rate = Rate()
        self.earliest_ms = 0
        self.early_ms = -1

    @property
    def lag_units(self) -> int:
        """Number of units of the queue that are not enqueued."""
        first, end = self._fetch.bounds()
        return end - max(self._position.queue_offset, first)

    def has_room(self, now_ms: int) -> bool:
        """Return whether more timers may be enqueued; False while a full stage has due timers."""
        if self._stage.room > 0:
            return True
        due_ms = self._stage.next_due_ms
        return due_ms is None or due_ms > now_ms

    @property
    def needs_turn(self) -> bool:
        """Whether the newest timers need a turn of the service now."""
        return bool(self.broken or self.markers or self.lag_units)

    def forget(self) -> None:
        """Reset the state before all timers are enqueued again."""
        self.broken.clear()
        self.markers.clear()
        self.are_cancels_refused = False
        self.blocked_by, self.early_ms = "", -1

    def on_put(self, batch: PutBatch, now_ms: int) -> bool:
        """Enqueue the timers of an appended batch; return whether there were any."""
        rows = self._fetch.fetch_batch(batch)
        if not rows.size:
            return False
        joins = int(rows[0]["queue_offset"]) == self._position.queue_offset
        if joins and not self.stopped and not self.blocked_by and self.has_room(now_ms):
            self.enqueue_rows(rows, now_ms)
        return True

    def catch_up(self, count_max: int, now_ms: int) -> int:
        """Enqueue from the queue; return the number of units that were enqueued."""
        self.blocked_by = ""
        before = self._position.queue_offset
        if self.stopped:
            return 0
        rows, following = self._fetch.fetch_queue(before, count_max)
        if self.skip.size:
            rows = rows[~is_among(rows["phys_offset"], self.skip)]
        if rows.size:
            self.enqueue_rows(rows, now_ms)
        if not self.blocked_by:
            self._position.queue_offset = max(following, before)
        return self._position.queue_offset - before

    def enqueue_rows(self, rows: Rows, now_ms: int) -> None:
        """Link (n,) `layout.TIMED` rows, in queue order, until blocked."""
        is_plain = not rows["kind"].any()
        fit = rows if is_plain else rows[rows["kind"] != layout.TIMED_BROKEN]
        linked = self.link_rows(fit, now_ms)
        following = int(rows[-1]["queue_offset"]) + 1
        if linked < fit.size:
            following = int(fit[linked]["queue_offset"])
            rows = rows[rows["queue_offset"] < following]
        if not is_plain:
            self._keep_non_timers(rows, now_ms)
        self._position.queue_offset = following

    def link_rows(self, fit: Rows, now_ms: int) -> int:
        """Link (n,) `layout.TIMED` rows, none of them broken; return the number of linked ones."""
        if not fit.size:
            return 0
        surveyed = self._survey(fit)
        linked = self._link(fit, now_ms)
        if linked < fit.size:
            fit = fit[:linked]
            if not linked:
                return 0
            surveyed = self._survey(fit)
        plain_count, earliest_ms, near = surveyed
        plain = fit if plain_count == fit.size else fit[fit["kind"] == layout.TIMED_PLAIN]
        self._counts.add_rows(plain)
        self.enqueued += plain_count
        self.rate.add(plain_count, now_ms)
        self.earliest_ms = earliest_ms
        if near:
            self.stage_loaded(plain, now_ms)
        return linked

    def _survey(self, fit: Rows) -> tuple[int, int, bool]:
        """Set the slots of rows; return what `kernels.enqueue.survey` returns."""
        position = self._position
        # Timers that roll are not put into a slot whose rolls have begun.
        begun_ms = self._precision_ms if position.part is not None else 0
        cursors = kernels.Cursors(
            position.read_ms, position.staged_ms + begun_ms, self._window_ms, self._precision_ms
        )
        return kernels.survey(fit, cursors)

    def _link(self, fit: Rows, now_ms: int) -> int:
        write_ms = now_ms - now_ms % self._precision_ms
        try:
            linked = int(self._units.add(fit, write_ms=write_ms, read_ms=self._position.read_ms))
        except OSError as error:
            self.blocked_by = f"the timer log cannot be written: {error}"
            self.report_block()
            return 0
        self._reported = ""
        if linked < fit.size:
            self.blocked_by = "a slot still has undelivered timers of an earlier lap"
        return linked

    def report_block(self) -> None:
        """Log `blocked_by` if it is new; the next turn tries again."""
        if self._reported != self.blocked_by:
            log.error("timers are not enqueued: %s", self.blocked_by)
        self._reported = self.blocked_by

    def _keep_non_timers(self, rows: Rows, now_ms: int) -> None:
        is_broken = rows["kind"] == layout.TIMED_BROKEN
        # a marker with an origin was applied at its put: bulk decisions put thousands
        is_marker = (rows["kind"] == layout.TIMED_MARKER) & (rows["origin"] < 0)
        if is_broken.any():
            self.broken.append(rows[is_broken])
        if is_marker.any():
            self.markers.append((now_ms, rows[is_marker]))

    def stage_loaded(self, plain: Rows, now_ms: int) -> None:
        """Add the timers of loaded slots to the near stage."""
        near = self._position.is_loaded(plain, plain["slot_ms"], self._precision_ms)
        early = (plain["due_ms"] <= plain["slot_ms"]) & ~near
        if early.any():
            self.early_ms = int(plain["slot_ms"][early].max())
        if near.any():
            self._stage.add(staged_rows(plain[near], now_ms - now_ms % self._precision_ms))


def staged_rows(timed: Rows, write_ms: int) -> Rows:
    """Return (n,) `layout.STAGED` of TIMED rows that were linked at `write_ms`."""
    rows = np.zeros(timed.size, layout.STAGED)
    for column in ("due_ms", "phys_offset", "record_size", "topic_hash"):
        rows[column] = timed[column]
    rows["pos"], rows["write_ms"], rows["magic"] = -1, write_ms, layout.MAGIC_DEFAULT
    return rows
