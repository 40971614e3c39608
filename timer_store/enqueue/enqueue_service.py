"""Enqueue service, stages 1 and 2: links a unit of each timer into timer log and wheel.

    an appended batch ---- its columns -------------+
                                                    +--> place -> units.add -> counts, near stage
    the timer queue, to catch up --------- records -+

Timers are enqueued strictly in queue order: `position.queue_offset` is the next offset. A batch
that begins there is enqueued at once; others are enqueued when the queue is read. Enqueueing is
blocked while a slot has undelivered timers of an earlier lap, and while the timer log cannot be
written.
"""

from __future__ import annotations

import logging

import numpy as np

from message_store.log.batch import PutBatch
from message_store.ranges import is_among
from timer_store import layout
from timer_store.dequeue.near_stage import NearStage
from timer_store.enqueue.fetch import Fetcher
from timer_store.kernels.survey import Cursors, survey
from timer_store.layout import NO_OFFSETS, Rows
from timer_store.log.units import TimerUnits
from timer_store.progress import PendingCounts, Position
from timer_store.stats import Rate

log = logging.getLogger(__name__)


class EnqueueService:
    """Enqueue stages of one timer store.

    Attributes:
        broken: Rows that are not timers, for quarantine.
        markers: Rows that cancel another timer, not applied yet.
        blocked_by: Reason why nothing is enqueued now, or empty.
        skip: (n,) i8, ascending: Timers of the queue that are settled already (recovery).
        earliest_ms: Earliest due time of the newest timers, or the start of its slot.
        early: Whether a timer in the slot that is loaded next is due before that slot begins.
    """

    def __init__(
        self,
        fetch: Fetcher,
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
        self.markers: list[Rows] = []
        self.blocked_by = self._reported = ""
        self.skip = NO_OFFSETS
        self.stopped = False
        self.enqueued = 0
        self.rate = Rate()
        self.earliest_ms = 0
        self.early = False

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
        self.blocked_by, self.early = "", False

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
            self._keep_non_timers(rows)
        self._position.queue_offset = following

    def link_rows(self, fit: Rows, now_ms: int) -> int:
        """Link (n,) `layout.TIMED` rows, none of them broken; return the number of linked ones."""
        if not fit.size:
            return 0
        found = self._survey(fit)
        linked = self._link(fit, now_ms)
        if linked < fit.size:
            fit = fit[:linked]
            if not linked:
                return 0
            found = self._survey(fit)
        plain_count, earliest_ms, near = found
        plain = fit if plain_count == fit.size else fit[fit["kind"] == layout.TIMED_PLAIN]
        self._counts.add_rows(plain)
        self.enqueued += plain_count
        self.rate.add(plain_count, now_ms)
        self.earliest_ms = earliest_ms
        if near:
            self.stage_loaded(plain, now_ms)
        return linked

    def _survey(self, fit: Rows) -> tuple[int, int, bool]:
        """Set the slots of rows; return what `kernels.survey` returns."""
        position = self._position
        cursors = Cursors(position.read_ms, position.staged_ms, self._window_ms, self._precision_ms)
        return survey(fit, cursors)

    def _link(self, fit: Rows, now_ms: int) -> int:
        write_ms = now_ms - now_ms % self._precision_ms
        try:
            linked = int(self._units.add(fit, write_ms=write_ms, read_ms=self._position.read_ms))
        except OSError as error:
            self.blocked_by = f"the timer log cannot be written: {error}"
            if self._reported != self.blocked_by:  # the next turn tries again
                log.error("timers are not enqueued: %s", self.blocked_by)
            self._reported = self.blocked_by
            return 0
        self._reported = ""
        if linked < fit.size:
            self.blocked_by = "a slot still has undelivered timers of an earlier lap"
        return linked

    def _keep_non_timers(self, rows: Rows) -> None:
        for kind, kept in ((layout.TIMED_BROKEN, self.broken), (layout.TIMED_MARKER, self.markers)):
            mine = rows[rows["kind"] == kind]
            if mine.size:
                kept.append(mine.copy())

    def stage_loaded(self, plain: Rows, now_ms: int) -> None:
        """Add the timers of loaded slots to the near stage."""
        near = self._position.is_loaded(plain, plain["slot_ms"], self._precision_ms)
        early = plain["due_ms"] <= plain["slot_ms"]
        self.early = self.early or bool((early & ~near).any())
        if near.any():
            self._stage.add(staged_rows(plain[near], now_ms - now_ms % self._precision_ms))


def staged_rows(timed: Rows, write_ms: int) -> Rows:
    """Return (n,) `layout.STAGED` of TIMED rows that were linked at `write_ms`."""
    rows = np.zeros(timed.size, layout.STAGED)
    for column in ("due_ms", "phys_offset", "record_size", "topic_hash"):
        rows[column] = timed[column]
    rows["pos"], rows["write_ms"], rows["magic"] = -1, write_ms, layout.MAGIC_DEFAULT
    return rows
