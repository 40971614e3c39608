"""Dequeue service, stages 3 to 5: loads slots shortly before they begin, delivers due timers.

    wheel slot --load--> near stage --take due timers--> deliverer --put--> real topic
        |                                                    |
        +-- roll units: rolled into a later slot             +-- refused: back into the stage

`position.read_ms` advances with the deliveries: the slot of the earliest undelivered timer.
"""

from __future__ import annotations

import logging
from collections import deque

import numpy as np

from delayed_delivery.outcome import DeliveryHistory, DeliveryStats
from duemq_common.errors import CorruptStore
from message_store.store import MessageStore
from timer_store import layout
from timer_store.config import TimerConfig
from timer_store.dequeue.deliverer import AHEAD_ROWS, TimerDeliverer
from timer_store.dequeue.near_stage import NOTHING, LoadedRows, NearStage, load_slot
from timer_store.dequeue.slot_loading import SlotLoader
from timer_store.dequeue.unit_check import UnitCheck
from timer_store.layout import Offsets, Rows
from timer_store.log.slot_choice import place
from timer_store.log.timer_log import REMEDY
from timer_store.log.units import TimerUnits
from timer_store.progress import PendingCounts, Position, SettledTimers

log = logging.getLogger(__name__)
LOOK_AHEAD_SLOTS = 3_600  # maximum slots searched for the next pending one before the loop sleeps
EXPECT_BYTES = 16 << 20  # minimum bytes of a slot for which the log prepares pages in advance
LARGE = 16_384  # timers of a slot; reading more inline would block the loop for some ms
RECENT_BYTES = 64 << 20  # end of the timer log; older units may not be in the page cache
RETRY_MS = 100  # pause after a refusal by the disk
REPORT_AGAIN_MS = 60_000  # before the same reason is logged again
ROLLED_UNITS_MAX = 16_384  # per turn, approximately
NO_UNITS: Offsets = np.empty((2, 0), np.int64)


class DequeueService:
    """Dequeue stages of one timer store. Belongs to the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        units: TimerUnits,
        stage: NearStage,
        deliverer: TimerDeliverer,
        counts: PendingCounts,
        settled_timers: SettledTimers,
        position: Position,
        config: TimerConfig,
        stats: DeliveryStats,
        check: UnitCheck,
        history: DeliveryHistory,
    ) -> None:
        self._store, self._check = store, check
        self._units, self._stage, self._deliverer = units, stage, deliverer
        self._counts, self._position = counts, position
        self._settled_timers = settled_timers
        self.config, self.stats, self.history = config, stats, history
        self.loader = SlotLoader(units, settled_timers, store.prefetch)
        self.broken: Exception | None = None  # error of a slot whose chain ends too early
        self.refusal = ""  # reason why the store refused the last delivery
        self.retry_ms = 0
        self.rolled = self.parts = 0
        self._rolled_ms = -1  # slots up to this one may have been rolled in part
        self._blocked_by = ""  # reason why a slot cannot be rolled now
        self._roll_retry_ms = self._report_again_ms = 0
        self._reported = ""  # reason that was logged last
        self._rolled_units: list[Offsets] = []  # see `take_rolled_units`
        self._log_ends: deque[tuple[int, int]] = deque()  # (slot, log end before its deliveries)

    # -- near stage -----------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Load the slot at the read position, even if it is not due.

        That slot also has overdue timers, and timers that were sent after the clock was set back.
        The turns load the other due slots: after an outage these may have many old timers.
        """
        self._load(self._position.read_ms + 1, now_ms)

    def restart(self, now_ms: int) -> None:
        """Start after the timer log was rebuilt: positions in it have changed."""
        self.broken, self._blocked_by, self.retry_ms = None, "", 0
        self.refusal = ""
        self._rolled_units.clear()
        self.start(now_ms)

    def load(self, now_ms: int) -> None:
        """Load every slot that begins within the lead time, while there is room.

        Loading of a partly loaded slot continues in any case.
        """
        limit_ms = now_ms + self.config.stage_lead_ms
        if self._position.part is not None:
            limit_ms = max(limit_ms, self._position.staged_ms + 1)
        self._load(limit_ms, now_ms)

    def load_early(self, slot_ms: int, now_ms: int) -> bool:
        """Load the next slot, because timers in it are due before it begins.

        New timers that are due before the slot that is read next are put into that slot, for
        example after the clock was set back. Return whether they are loaded; otherwise a thread
        reads the slot, or its timers cannot be rolled now, and the next turn tries again.
        """
        position = self._position
        if position.staged_ms <= slot_ms:
            self._load(position.staged_ms + 1, now_ms)
        return position.staged_ms > slot_ms or position.part is not None

    def _load(self, limit_ms: int, now_ms: int) -> None:
        position, precision_ms = self._position, self.config.precision_ms
        if self.broken is not None or (self._blocked_by and now_ms < self._roll_retry_ms):
            return
        rolled_max = self.rolled + ROLLED_UNITS_MAX
        while self._has_room and self.rolled < rolled_max:
            slot_ms = self._units.wheel.next_live(position.staged_ms, limit_ms)
            if slot_ms is None:
                position.staged_ms = max(position.staged_ms, limit_ms - limit_ms % precision_ms)
                break
            position.staged_ms = slot_ms
            if not self._fits(slot_ms):
                break  # deliver the staged timers first
            self._advance_read_time()  # frees the slots of the delivered lap
            if not self._load_slot(slot_ms, now_ms):
                return
            position.staged_ms, position.part = slot_ms + precision_ms, None
        self._advance_read_time()

    @property
    def _has_room(self) -> bool:
        """Whether to load more now; each part of a large slot needs a walk over the slot."""
        least = self.config.stage_records_max // 2 if self._position.part is not None else 1
        return bool(self._stage.room >= least)

    def _fits(self, slot_ms: int) -> bool:
        """Return whether there is room for a slot, or for a part large enough to justify a walk."""
        enough = self.config.stage_records_max // 2
        return bool(self._stage.room >= min(self._units.wheel.num(slot_ms), enough))

    def _load_slot(self, slot_ms: int, now_ms: int) -> bool:
        """Stage a slot, or the next part of it; return whether it is complete."""
        position = self._position
        loaded = self._read_slot(slot_ms)
        if loaded is None:
            return False
        self.broken = loaded.broken or self._count_error(loaded, slot_ms)
        if self.broken is None and loaded.rolls.size:
            self.broken = self._check.wrong_marker(loaded.rolls)
        if self.broken is not None:
            return False
        if loaded.rolls.size and not self._roll(loaded.rolls, slot_ms, now_ms):
            return False
        self._stage.add_run(loaded.run)
        self._stage.add(loaded.joined)
        if loaded.record_bytes > EXPECT_BYTES:
            self._store.read_ahead.expect(loaded.record_bytes)
        if not loaded.complete:
            position.part = loaded.last
            self.parts += 1
        return loaded.complete

    def _read_slot(self, slot_ms: int) -> LoadedRows | None:
        """Return a slot, or the next part of it; None while the thread reads it."""
        loader, after = self.loader, self._position.part
        if loader.begun is not None:
            if self.is_reading:
                return None
            loaded = loader.finish(slot_ms, after)
            if loaded is not None:
                return loaded
        num, count_max = self._units.wheel.num(slot_ms), max(self._stage.room, 1)
        has_old = self._has_old(slot_ms)
        if loader.pool is None or (num < LARGE and not has_old):
            skip = self._settled_timers.offsets
            loaded = load_slot(self._units, slot_ms, num, count_max, after, skip)
            if has_old:  # during the start: there is no thread yet
                rows = loaded.run.rows
                self._store.prefetch(rows["phys_offset"], rows["record_size"])
            return loaded
        loader.begin(slot_ms, num, count_max, after)
        return None

    def _has_old(self, slot_ms: int) -> bool:
        first_pos = self._units.wheel.slot(slot_ms).first_pos
        return 0 <= first_pos < self._units.log.end - RECENT_BYTES

    @property
    def is_reading(self) -> bool:
        """Whether a slot is being read in the thread, which wakes the service at the end."""
        begun = self.loader.begun
        return begun is not None and not begun.future.done()

    def _count_error(self, loaded: LoadedRows, slot_ms: int) -> Exception | None:
        """Return the error of a slot with fewer timers than its count."""
        if (
            self._position.part is not None
            or not loaded.complete
            or loaded.unit_count >= loaded.num
        ):
            return None
        reason = f"slot {slot_ms} counts {loaded.num} timers, {loaded.unit_count} are found"
        return CorruptStore(self._units.wheel.path, 0, reason, REMEDY)

    def _roll(self, rows: Rows, slot_ms: int, now_ms: int) -> bool:
        """Roll timers into a later slot (new units, same records); return whether all rolled."""
        precision_ms = self.config.precision_ms
        timed = timed_rows(rows)
        place(timed, self._position.read_ms, slot_ms + precision_ms, self.config.window_ms)
        positions = rows["pos"].copy()
        if slot_ms <= self._rolled_ms:  # the last roll of this slot was incomplete
            unlinked = self._units.find(timed["phys_offset"], timed["slot_ms"]) < 0
            timed, positions = timed[unlinked], positions[unlinked]
        linked = self._link(timed, now_ms)
        self._units.discount(positions[:linked])
        self._rolled_units.append(np.stack([timed["phys_offset"][:linked], positions[:linked]]))
        self.rolled += linked
        if linked < timed.size:
            self._rolled_ms = max(self._rolled_ms, slot_ms)
            self._roll_retry_ms = now_ms + RETRY_MS
            return False
        self._blocked_by = ""
        return True

    def _link(self, timed: Rows, now_ms: int) -> int:
        """Link units of rolled timers; return the number of linked ones."""
        if not timed.size:
            return 0
        write_ms, read_ms = now_ms - now_ms % self.config.precision_ms, self._position.read_ms
        reason = "a slot still has undelivered timers of an earlier lap"
        try:
            linked = int(self._units.add(timed, write_ms=write_ms, read_ms=read_ms))
        except OSError as error:
            linked, reason = 0, f"the timer log cannot be written: {error}"
        if linked < timed.size:
            self._report_blocked_roll(reason, now_ms)
        return linked

    def _report_blocked_roll(self, reason: str, now_ms: int) -> None:
        """Log why timers are not rolled now; after an outage this happens for many slots."""
        if not self._blocked_by and (reason != self._reported or now_ms >= self._report_again_ms):
            log.warning("timers beyond the roll window are rolled later: %s", reason)
            self._reported, self._report_again_ms = reason, now_ms + REPORT_AGAIN_MS
        self._blocked_by = reason

    # -- due ------------------------------------------------------------------------------------

    def end_pauses(self) -> None:
        """Allow the next attempt of refused deliveries at once."""
        self.retry_ms = self._roll_retry_ms = 0

    def deliver(self, now_ms: int) -> int:
        """Deliver one batch of due timers; return the number of settled ones."""
        config = self.config
        if config.stop_dequeue or now_ms < self.retry_ms:
            return 0
        rows = self._stage.take(now_ms, config.batch_records_max, config.batch_bytes_max)
        if not rows.size:
            return 0
        self._record_slot_start(int(rows[-1]["due_ms"]))
        following = NOTHING
        if rows.size >= AHEAD_ROWS and self._deliverer.pool is not None:
            following = self._stage.following(
                now_ms, config.batch_records_max, config.batch_bytes_max
            )
        outcome = self._deliverer.deliver_batch(rows, now_ms, following)
        self.broken = self.broken or self._deliverer.broken
        if outcome.done < rows.size:
            self._stage.put_back(rows[outcome.done :])
            self.retry_ms = now_ms + RETRY_MS
            if not self.refusal and self.broken is None:
                log.warning("due timers are not delivered: %s", outcome.refusal)
        self.refusal = outcome.refusal
        settled = rows[: outcome.done]
        self._counts.change(outcome.topic_index, settled["phys_offset"], -1)
        self.stats.record(rows["due_ms"], outcome, now_ms)
        self.history.record(*outcome.delivered_columns(rows["due_ms"])[:2], now_ms)
        self._advance_read_time()
        return int(outcome.done)

    def is_due(self, now_ms: int) -> bool:
        """Return whether due timers remain."""
        due_ms = self._stage.next_due_ms
        return due_ms is not None and due_ms <= now_ms and not self.config.stop_dequeue

    def can_deliver(self, now_ms: int) -> bool:
        """Return whether a turn would deliver due timers: there is no pause after a refusal."""
        return now_ms >= self.retry_ms and self.is_due(now_ms)

    def _advance_read_time(self) -> None:
        """Advance the read time to the slot of the earliest pending timer in the stage."""
        position, precision_ms = self._position, self.config.precision_ms
        first_ms = position.staged_ms
        due_ms = self._stage.next_due_ms
        if due_ms is not None:
            first_ms = min(first_ms, (due_ms - 1) - (due_ms - 1) % precision_ms)
        position.read_ms = max(position.read_ms, first_ms)

    @property
    def is_rolling(self) -> bool:
        """Whether a timer may have two units: a rolled one, and one in a slot to load again."""
        return self.broken is not None or self._position.staged_ms <= self._rolled_ms

    # -- for a checkpoint -----------------------------------------------------------------------

    def _record_slot_start(self, due_ms: int) -> None:
        """Record the log end before the first delivery of each slot."""
        slot_ms = max((due_ms - 1) // self.config.precision_ms * self.config.precision_ms, 0)
        slot_ms = max(slot_ms, self._position.read_ms)
        if not self._log_ends or slot_ms > self._log_ends[-1][0]:
            self._log_ends.append((slot_ms, self._store.max_offset))

    def scan_from(self) -> int:
        """Return a log offset before all deliveries from slots at or after the read time.

        These slots are read again after a crash, and recovery must find their deliveries.
        """
        while self._log_ends and self._log_ends[0][0] < self._position.read_ms:
            self._log_ends.popleft()
        return self._log_ends[0][1] if self._log_ends else self._store.max_offset

    def take_rolled_units(self) -> Offsets:
        """Return the units that were rolled into later slots since the last call.

        Their tombstones may be written only after a checkpoint includes the new units.

        Returns:
            (2, n) i8: log offsets of the records, and positions in the timer log.
        """
        rolled, self._rolled_units = self._rolled_units, []
        return np.concatenate([NO_UNITS, *rolled], axis=1)

    def next_work_ms(self, now_ms: int) -> int:
        """Return the time at which the next slot is loaded or the next timer delivered."""
        config = self.config
        times = [now_ms + LOOK_AHEAD_SLOTS * config.precision_ms]
        due_ms = self._stage.next_due_ms
        if due_ms is not None and not config.stop_dequeue:
            times.append(max(due_ms, self.retry_ms))
        if self._blocked_by:
            times.append(self._roll_retry_ms)
        elif self._has_room and not self.is_reading:
            start_ms = self._position.staged_ms
            end_ms = now_ms + LOOK_AHEAD_SLOTS * config.precision_ms
            slot_ms = self._units.wheel.next_live(start_ms, end_ms)
            if slot_ms is not None and self._fits(slot_ms):
                times.append(slot_ms - config.stage_lead_ms + 1)
        return min(times)


def timed_rows(rows: Rows) -> Rows:
    """Return (n,) `layout.TIMED` for timers, (n,) `layout.STAGED`, that are rolled."""
    timed = np.zeros(rows.size, layout.TIMED)
    for column in ("due_ms", "phys_offset", "record_size", "topic_hash"):
        timed[column] = rows[column]
    timed["queue_offset"] = timed["origin"] = timed["topic_index"] = -1
    timed["kind"] = layout.TIMED_PLAIN
    timed["kind"][(rows["magic"] & layout.MAGIC_DELETE) != 0] = layout.TIMED_MARKER
    return timed
