"""Timer store: timers of one message store, delivered at any millisecond.

    enqueue      timer queue ---> timer log + wheel
    dequeue      wheel slot ---> near stage ---> real topic
    decide       cancel, move, fire: one decision, one record
    compact      old records ---> copies, so that log files can be removed
    checkpoint   the state of one instant, written in order

`running` sleeps until the next due time and works in bounded turns:

    turn:  enqueue from the timer queue -> non-timers -> load slots -> deliver one due batch

The event loop runs other work between two turns, so that sends and pulls are not delayed while a
second with a million timers is delivered.

All its files can be rebuilt from the commit log (`checkpoint.recovery`). Only the thread that
opened the store (the event loop's) may call it; another thread may write a checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from delayed_delivery.service_tasks import preload, report_failure
from duemq_common.clock import Clock, Signal
from duemq_common.memory.allocator import return_free_memory
from message_store.kernels.preparation import Preparation
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from timer_store.checkpoint import recovery
from timer_store.compaction.compactor import Compaction
from timer_store.config import TimerConfig
from timer_store.dequeue.dequeue_service import RETRY_MS
from timer_store.enqueue.non_timers import NonTimers
from timer_store.log.log_cleaning import LogCleaning
from timer_store.pending.decisions import Decisions
from timer_store.state import TimerState, lowest

log = logging.getLogger(__name__)
KERNELS = "timers", "pending_timers"  # groups of kernels: delivery; moves and copies
CATCH_UP_UNITS = 8_192  # maximum units enqueued per turn


class TimerStore:
    """Pending timers in `<root>/timerlog` and `<root>/timerwheel` of a message store.

    Args:
        store: An open `MessageStore`; its topic table has the timer topic.
        clock: Source of all times.
    Attributes:
        state: Shared state; its fields that do not change at a rebuild are also attributes.
        writing: Whether another thread is writing a checkpoint.
    """

    def __init__(self, store: MessageStore, clock: Clock, config: TimerConfig) -> None:
        state = self.state = TimerState.create(store, clock, config)
        self.store, self.clock, self.files, self.units = store, clock, state.files, state.units
        self.position, self.counts, self.settled_timers = (
            state.position,
            state.counts,
            state.settled_timers,
        )
        self.stage, self.fetch, self.records = state.stage, state.fetch, state.records
        self.enqueue, self.dequeue, self.transfers = state.enqueue, state.dequeue, state.transfers
        self.deliverer, self.stats = state.deliverer, state.dequeue.stats
        self.decisions = Decisions(state)
        self.non_timers = NonTimers(state, self.decisions)
        self.compaction = Compaction(state, self.decisions)
        self.log_cleaning = LogCleaning(state)
        self._seen_ms = 0  # time of the last turn
        self.writing = False
        self._wake, self._stop = Signal(), asyncio.Event()
        self._has_timers = asyncio.Event()  # set by the first timer, and by the stop
        self._sleeping_until = -1

    @property
    def config(self) -> TimerConfig:
        """Configuration with the current limits."""
        return self.state.config

    # -- open and close -------------------------------------------------------------------------

    def open(self, *, notice: Callable[[str], None] = log.warning) -> None:
        """Load the files and recover; no timer is delivered before that.

        Raises:
            CorruptStore: The files cannot be part of this store.
            OSError: The disk refused a write of the recovery.
        """
        for finding in self.state.findings:
            notice(finding)
        recovery.recover(self.state, notice)
        self.state.pinned_from = self.state.first_needed
        self.non_timers.settled(self.clock.now_ms())
        self.dequeue.start(self.clock.now_ms())
        if self.counts.total:
            self._has_timers.set()

    def close(self) -> None:
        """Close the files; changes since the last checkpoint are recovered from the log."""
        self.units.close()

    def reconfigure(self, config: TimerConfig) -> None:
        """Apply new limits; keys that are not live apply from the next start on."""
        self.state.config = self.dequeue.config = config

    # -- stages ---------------------------------------------------------------------------------

    def on_put(self, batch: PutBatch) -> None:
        """Enqueue the timers of a batch that was just appended. The dispatcher of this plugin."""
        now_ms = self.clock.now_ms()
        self.enqueue.stopped = self.config.stop_enqueue
        if not self.enqueue.on_put(batch, now_ms):
            return
        self._has_timers.set()
        due_ms = self.enqueue.earliest_ms - self.config.stage_lead_ms
        if (now_ms if self.enqueue.needs_turn else due_ms) < self._sleeping_until:
            self._wake.set()

    def turn(self, now_ms: int) -> bool:
        """Do one bounded piece of each kind of work; return whether there was any."""
        moved, loaded = 0, self.dequeue.parts + self.dequeue.rolled
        if now_ms < self._seen_ms:  # the clock was set back: pauses would last too long
            self.dequeue.end_pauses()
            self.compaction.end_pauses()
        self._seen_ms = now_ms
        self.enqueue.stopped = self.config.stop_enqueue
        if self.enqueue.lag_units and self.enqueue.has_room(now_ms):
            moved += self.enqueue.catch_up(CATCH_UP_UNITS, now_ms)
        if self.transfers.incomplete and not self.enqueue.stopped:
            moved += self.transfers.catch_up(CATCH_UP_UNITS, now_ms)
        if self.enqueue.broken or self.enqueue.markers:
            moved += self.non_timers.settle(now_ms)
        if self.enqueue.early_ms >= 0 and self.dequeue.load_early(self.enqueue.early_ms, now_ms):
            self.enqueue.early_ms = -1
        self.dequeue.load(now_ms)
        if self.dequeue.broken is not None and not self.writing:
            self._rebuild(now_ms)
        if self.enqueue.are_cancels_refused:  # a marker may name a timer that is due
            return moved > 0
        if self.enqueue.markers and self.non_timers.come_first(now_ms):
            return True
        moved += self.dequeue.deliver(now_ms)
        if self.compaction.work is not None and not self.dequeue.is_due(now_ms):
            self.compaction.turn(now_ms)
        return moved > 0 or self.dequeue.parts + self.dequeue.rolled > loaded

    def next_work_ms(self, now_ms: int) -> int:
        """Return the time of the next turn with work, unless a message is put before."""
        times = [self.dequeue.next_work_ms(now_ms)]
        if self.enqueue.are_cancels_refused:
            return now_ms + RETRY_MS
        if self.enqueue.blocked_by:
            times.append(now_ms + RETRY_MS)
        if self.compaction.work is not None:
            times.append(self.compaction.next_piece_ms)
        return min(times)

    def _rebuild(self, now_ms: int) -> None:
        """Rebuild timer log and wheel from the queue, because the chain of a slot is broken."""
        log.error("%s The timer store is rebuilt from the commit log.", self.dequeue.broken)
        self.state.rebuilds += 1
        self.dequeue.loader.drop()
        self.stage.clear()
        self.settled_timers.clear()
        self.enqueue.forget()
        self.position.part = None
        recovery.rebuild(self.state)
        self.non_timers.settled(now_ms)
        self.dequeue.restart(now_ms)

    # -- running --------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, *, on_failure: Callable[[str], None], kernels: Preparation | None = None
    ) -> AsyncIterator[Self]:
        """Deliver while the block is open; leaving it finishes the current turn.

        Args:
            on_failure: Called when the timer store cannot continue.
            kernels: Preparation of kernels; those of decisions are loaded when they are ready.
        """
        kernels = kernels or Preparation()
        loop = asyncio.get_running_loop()
        wake = partial(_call_soon, loop, self._wake.set)
        with self.dequeue.loader.threaded(wake), self.deliverer.threaded():
            delivering = asyncio.create_task(self.run(on_failure), name="timer delivery")
            loading = asyncio.create_task(self._preload(kernels), name="timer preload")
            try:
                yield self
            finally:
                self._stop.set()
                self._has_timers.set()
                self._wake.set()
                await delivering
                await loading

    async def _preload(self, kernels: Preparation) -> None:
        """Load the kernels of deliveries now, the others when there is a timer."""
        deliveries, decisions = KERNELS
        await preload(deliveries, self.clock, self._stop)
        await asyncio.to_thread(return_free_memory)  # loading took more memory than loaded code
        await self._has_timers.wait()
        await kernels.wait(decisions, stop=self._stop)
        await preload(decisions, self.clock, self._stop)

    async def run(self, on_failure: Callable[[str], None]) -> None:
        """Run turns until stopped."""
        try:
            while not self._stop.is_set():
                if self.turn(self.clock.now_ms()):
                    await asyncio.sleep(0)
                else:
                    await self._sleep()
        except Exception as error:
            report_failure("timer", error, on_failure)

    async def _sleep(self) -> None:
        self._wake.clear()  # there was no await since the turn
        if self._stop.is_set():
            return
        now_ms = self.clock.now_ms()
        until_ms = self.next_work_ms(now_ms)
        if until_ms <= now_ms:  # such a wait would not yield, and would block other tasks
            await asyncio.sleep(0)
            return
        self._sleeping_until = until_ms
        await self.clock.wait(self._wake, until_ms=until_ms)
        self._sleeping_until = -1

    @property
    def is_idle(self) -> bool:
        """Whether all work that is possible now is done."""
        is_asleep = self._sleeping_until >= 0 and not self._wake.is_set()
        return is_asleep and not self.dequeue.is_reading

    def wake(self) -> None:
        """Wake the loop after a setting or a timer has changed."""
        self._wake.set()

    # -- for other components -------------------------------------------------------------------

    @property
    def first_pending_offset(self) -> int | None:
        """First log offset that a timer or the last checkpoint needs.

        After a power cut, deliveries since the last checkpoint may be lost and repeated.
        """
        return lowest(self.state.first_needed, self.state.pinned_from)

    def delivered_ms(self, now_ms: int) -> int:
        """Return a time, at most `now_ms`, up to which every due timer has been delivered."""
        if self.enqueue.lag_units or self.transfers.incomplete:
            return 0  # timers that are not enqueued may be due at any time
        bounds = [now_ms]
        if (due_ms := self.stage.next_due_ms) is not None:
            bounds.append(due_ms - 1)
        slot_ms = self.units.wheel.next_live(self.position.staged_ms, now_ms)
        if slot_ms is not None:  # a slot that is not loaded has timers due after its start
            bounds.append(slot_ms)
        return min(bounds)


def _call_soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Schedule work on the loop from a thread, unless the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)
