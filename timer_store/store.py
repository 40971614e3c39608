"""`TimerStore`: timers of one message store, on any millisecond.

    take in      timer queue ---> timer log + wheel            (intake)
    deliver      wheel slot ---> near stage ---> real topic     (delivery)
    settle       cancel, move, fire: one decision, one record   (decisions)
    compact      old records ---> copies, so that files may go  (compaction)
    checkpoint   what is known at one instant, written in order (persist)

Everything but the commit log can be rebuilt from it (recovery). Only the thread that opened the
store (the event loop's) may call it; writing a checkpoint may happen in another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from message_store.clock import Clock
from message_store.log.batch import PutBatch
from timer_store.checkpoint import recovery
from timer_store.checkpoint.position import Position
from timer_store.checkpoint.snapshot import SnapshotFiles
from timer_store.compaction.compactor import Compaction
from timer_store.compaction.copies import TimerCopies
from timer_store.config import TimerConfig
from timer_store.dequeue.deliverer import TimerDeliverer
from timer_store.dequeue.dequeue_service import RETRY_MS, DequeueService
from timer_store.dequeue.near_stage import NearStage
from timer_store.enqueue.adoption import sound_wheel
from timer_store.enqueue.enqueue_service import EnqueueService
from timer_store.enqueue.fetch import Fetcher
from timer_store.enqueue.non_timers import NonTimers
from timer_store.enqueue.transfers import TransferredUnits
from timer_store.log.log_cleaning import LogCleaning
from timer_store.log.timer_log import TimerLog
from timer_store.log.units import TimerUnits
from timer_store.names import TIMER_QUEUE, TIMER_TOPIC
from timer_store.pending.claims import Claims
from timer_store.pending.decision_records import DecidingRecords
from timer_store.pending.decisions import Decisions
from timer_store.pending.pending_counts import PendingCounts
from timer_store.pending.records import RecordReader
from timer_store.stats import TimerStats

log = logging.getLogger(__name__)
CATCH_UP_UNITS = 8_192  # a turn


def _no_progress(what: str, done: int, whole: int) -> None:
    """Show nothing."""


class TimerStore:
    """Holds timers in `<root>/timerlog` and `<root>/timerwheel` beside a message store.

    Args:
        store: an open `MessageStore`; its topic table has the timer topic.
        clock: handed in; nothing here reads the time.
    """

    def __init__(self, store: Any, clock: Clock, config: TimerConfig) -> None:
        self.store, self.clock, self.config = store, clock, config
        root = Path(store.root)
        self.files = SnapshotFiles(root / "config")
        self.findings: list[str] = []  # what `open` tells
        self.units = TimerUnits(
            TimerLog(root / "timerlog", config.log_file_bytes),
            sound_wheel(root / "timerwheel", config.precision_ms, self.findings),
        )
        now_ms = clock.now_ms()
        start_ms = now_ms - now_ms % config.precision_ms
        self.position = Position(start_ms, start_ms)
        self.books = PendingCounts(store.topics, store.config.commitlog_file_bytes)
        self.claims = Claims()
        self.stage = NearStage(config.stage_records_max)
        self.records = RecordReader(store, config.precision_ms)
        self.deliverer = TimerDeliverer(store)
        self.fetch = Fetcher(store, config)
        self.intake = EnqueueService(
            self.fetch, self.units, self.stage, self.books, self.position,
            precision_ms=config.precision_ms, window_ms=config.window_ms,
        )  # fmt: skip
        self.deciding = DecidingRecords(store, config.precision_ms)
        self.copies = TimerCopies(self.records, self.deciding)
        self.delivery = DequeueService(
            self.units, self.stage, self.deliverer, self.books, self.claims, self.position, config,
            self.copies,
        )  # fmt: skip
        self.stats = self.delivery.stats = TimerStats(store.topics)
        self.handovers = TransferredUnits(self)
        self.records.others = self._read_handed
        self.decisions = Decisions(self)
        self.non_timers = NonTimers(self)
        self.compaction = Compaction(self)
        self.log_cleaning = LogCleaning(self)
        self.moment_ms = 0  # when the newest timers taken in need a look
        self._seen_ms = 0  # by the clock, at the last turn
        self.writing = False  # a checkpoint is written in another thread
        self.remade = 0  # how often everything was made anew
        self.held_from: int | None = None  # what the last checkpoint needs of the commit log

    # -- life -----------------------------------------------------------------------------------

    def open(
        self,
        *,
        notice: Callable[[str], None] = log.warning,
        progress: recovery.Progress = _no_progress,
    ) -> None:
        """Load the files and recover; nothing is delivered before that is done.

        Raises:
            CorruptStore: Files that cannot be part of this store.
            OSError: The disk refused what recovery writes.
        """
        for finding in self.findings:
            notice(finding)
        recovery.recover(self, notice, progress)
        self.held_from = self.first_needed
        self.non_timers.settled(self.clock.now_ms())
        self.delivery.begin(self.clock.now_ms())

    def close(self) -> None:
        """Close the files; what no checkpoint wrote is found again in the log."""
        self.units.close()

    def reconfigure(self, config: TimerConfig) -> None:
        """Take new limits; what is not live keeps its value until the next start."""
        self.config = self.delivery.config = config

    # -- stages ---------------------------------------------------------------------------------

    def note_put(self, batch: PutBatch, now_ms: int) -> bool:
        """Take in the timers of a batch that was just appended; return whether there were any."""
        self.intake.stopped = self.config.stop_enqueue
        if not self.intake.note_put(batch, now_ms):
            return False
        due_ms = self.intake.earliest_ms - self.config.stage_lead_ms
        self.moment_ms = now_ms if self.intake.needs_look else due_ms
        return True

    def turn(self, now_ms: int) -> bool:
        """Do one bounded piece of everything that can be done now; False: there is nothing."""
        moved, loaded = 0, self.delivery.parts + self.delivery.rolled
        if now_ms < self._seen_ms:  # the clock was set back: a pause would take as long
            self.delivery.pause_no_more()
            self.compaction.pause_no_more()
        self._seen_ms = now_ms
        self.intake.stopped = self.config.stop_enqueue
        if self.intake.behind and self.intake.has_room(now_ms):
            moved += self.intake.catch_up(CATCH_UP_UNITS, now_ms)
        if self.handovers.behind and not self.config.stop_enqueue:
            moved += self.handovers.catch_up(CATCH_UP_UNITS, now_ms)
        moved += self.non_timers.settle(now_ms)
        if self.intake.early:
            self.intake.early = False
            self.delivery.load_next(now_ms)
        self.delivery.load(now_ms)
        if self.delivery.broken is not None and not self.writing:
            self._rebuild(now_ms)
        moved += self.delivery.deliver(now_ms)
        if not self.delivery.is_due(now_ms):
            self.compaction.turn(now_ms)
        return moved > 0 or self.delivery.parts + self.delivery.rolled > loaded

    def next_moment_ms(self, now_ms: int) -> int:
        """Return when a turn will have something to do, if nothing is put before."""
        moments = [self.delivery.next_moment_ms(now_ms)]
        if self.intake.holding:
            moments.append(now_ms + RETRY_MS)
        if self.compaction.running:
            moments.append(self.compaction.moment_ms)
        return min(moments)

    def _rebuild(self, now_ms: int) -> None:
        """Make everything anew from the queue: the chain of a slot is broken."""
        log.error("%s The timer store is made anew from the commit log.", self.delivery.broken)
        self.remade += 1
        self.delivery.loader.drop()
        self.stage.clear()
        self.claims.clear()
        self.intake.forget()
        self.position.part = None
        recovery.rebuild(self, _no_progress)
        self.non_timers.settled(now_ms)
        self.delivery.begin_again(now_ms)

    # -- books ----------------------------------------------------------------------------------

    @property
    def first_pending_offset(self) -> int | None:
        """The first log offset that is needed: by a timer, or by the last checkpoint.

        Deliveries are on the disk for sure only when a checkpoint followed them.
        """
        return lowest(self.first_needed, self.held_from)

    def hold(self) -> None:
        """Keep what is needed now until the next checkpoint, whatever becomes of it before."""
        self.held_from = lowest(self.held_from, self.first_needed)

    @property
    def first_needed(self) -> int | None:
        """The same without the checkpoint."""
        return lowest(self.books.first_file, self._first_behind(), self.handovers.first_behind())

    def _read_handed(self, offsets: Any) -> Any:
        return self.handovers.records.at_offsets(offsets, self.handovers.owned)

    def _first_behind(self) -> int | None:
        """Return the log offset of the first record of the queue that is not taken in."""
        offset = max(self.position.queue_offset, self.fetch.bounds()[0])
        units = self.store.units(TIMER_TOPIC, TIMER_QUEUE, offset, 1)
        return int(units[0]["phys_offset"]) if units.size else None

    def slot_count(self, time_ms: int) -> int:
        """Return how many timers wait in the slot of a time."""
        return self.units.wheel.num(time_ms)


def lowest(*offsets: int | None) -> int | None:
    """Return the lowest of those that there are."""
    return min((offset for offset in offsets if offset is not None), default=None)
