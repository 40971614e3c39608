"""Level service: sleeps until a message is due, then delivers it.

    dispatcher: new units of a level --> cursor; wakes the loop if they are due sooner
    loop:  one bounded batch per level and segment, levels in turn, other work of the event loop
           after large batches --> sleep until the next due time or retry, no polling

Synchronous delivery: the next batch of a level is appended when the previous one is acknowledged,
that is, synced with SYNC_FLUSH and replicated with SYNC_MASTER. Asynchronous delivery: up to
scheduleAsyncDeliverMaxPendingLimit messages of a level are in flight. In both modes, messages of a
level are appended in order, and no message is appended before one that the store refused.

Source: ScheduleMessageService.DeliverDelayedMessageTimerTask
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Self

import numpy as np
import numpy.typing as npt

from delayed_delivery.level_delays import LEVELS_MAX
from delayed_delivery.outcome import DeliveryHistory
from delayed_delivery.records import first_log_offset
from delayed_delivery.service_tasks import preload, report_failure
from duemq_common.clock import Clock, Signal
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.kernels.kernel import entry
from message_store.layout import Rows
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from schedule_service import kernels
from schedule_service.config import ScheduleConfig
from schedule_service.cursor import NEVER_MS, Cut, LevelCursor, Segment
from schedule_service.deliverer import Deliverer
from schedule_service.level import READ_UNITS_MIN, Event, InFlight, Level, State
from schedule_service.queues import ScheduleQueues
from schedule_service.transfer import LevelTransfers

log = logging.getLogger(__name__)
KERNELS = "levels"  # group of kernels
PAUSE_MS = 100  # pause before a retry, if a unit is not written yet or the disk is slow
CUTS_MAX = 256
SHARED_TURN_BYTES = 64 << 10  # other work of the event loop runs after this part of a delivery


class LevelService:
    """Delivery of due level messages. Belongs to the event loop's thread.

    Args:
        cursors: Cursors that `recovery.restore` returned.
        on_failure: Called with the reason when the service cannot continue.
    Attributes:
        has_failed: Whether the service has ended in an error: its cursors may lack deliveries of
            the batch in which it occurred.
    """

    def __init__(
        self,
        store: MessageStore,
        queues: ScheduleQueues,
        clock: Clock,
        config: ScheduleConfig,
        cursors: dict[int, LevelCursor],
        *,
        on_failure: Callable[[str], None],
    ) -> None:
        self.config = config
        self._on_failure, self.has_failed = on_failure, False
        self.levels = {n: Level(n, cursor) for n, cursor in cursors.items()}
        self.history = DeliveryHistory(clock.now_ms())
        self._store, self._queues, self._clock = store, queues, clock
        self._deliverer = Deliverer(store, queues)
        self._schedule = store.topics.add(SCHEDULE_TOPIC)
        self._wake, self._sent, self._stop = Signal(), asyncio.Event(), asyncio.Event()
        self._sleeping_until = -1
        self._turns = 0
        size = max([LEVELS_MAX, *self.levels])
        self._last_due: npt.NDArray[np.int64] = np.full(size, -NEVER_MS, np.int64)
        self._track: Callable[..., tuple[int, int]] | None = None
        self._row_of_queue: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self._added: npt.NDArray[np.int64] = np.zeros((size, kernels.ADDED_COLUMNS), np.int64)
        self._cuts: npt.NDArray[np.int64] = np.zeros((CUTS_MAX, kernels.CUT_COLUMNS), np.int64)
        self.transfers = LevelTransfers(self.levels, queues, self.wake)
        for level in self.levels.values():
            self._last_due[level.level - 1] = level.cursor.last_due_ms
            self._read_head_due_times(level)

    # -- running ------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Deliver while the block is open; leaving it finishes the current batch."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="level delivery")
            acknowledging = tasks.create_task(self._acknowledge(), name="level acknowledgement")
            loading = preload(KERNELS, self._clock, self._stop)
            tasks.create_task(loading, name="level preload")
            try:
                yield self
            finally:
                self._stop.set()
                self._wake.set()
                acknowledging.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether all messages that are due now are delivered and acknowledged."""
        sleeping = self._sleeping_until >= 0 and not self._wake.is_set()
        return sleeping and self._log_end_in_flight() is None

    def wake(self) -> None:
        """Wake the loop after a level has changed."""
        self._wake.set()

    def reconfigure(self, config: ScheduleConfig) -> None:
        """Apply new limits; a new delivery mode applies from the next batch on."""
        self.config = config
        self._wake.set()

    async def run(self) -> None:
        """Deliver until stopped."""
        now_ms = 0
        try:
            while not self._stop.is_set():
                before_ms, now_ms = now_ms, self._clock.now_ms()
                if now_ms < before_ms:  # the clock was set back: pauses would last too long
                    for level in self.levels.values():
                        level.end_pauses()
                await self._turn(now_ms)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Report that the service cannot continue; the broker stops."""
        self.has_failed = True
        report_failure("level", error, self._on_failure)

    async def _turn(self, now_ms: int) -> None:
        """Deliver one batch of each level that is due; without any, sleep until one is.

        Small batches of several levels share a turn of the event loop: a pull that waits for a
        queue gets the messages of all of them.
        """
        due, served_at = self.due_levels(now_ms), self._store.max_offset
        for level in due:
            self.deliver_or_retry(level, self._clock.now_ms())  # the clock may be set back
            if level is due[-1] or self._store.max_offset - served_at >= SHARED_TURN_BYTES:
                await asyncio.sleep(0)
                served_at = self._store.max_offset
        if not self.config.async_deliver and await self._wait_acknowledged():
            return
        if due:
            self._sent.set()
        else:
            await self._sleep()

    def due_levels(self, now_ms: int) -> list[Level]:
        """Return the levels that can deliver now; each call begins with another level."""
        due = [lv for lv in self.levels.values() if lv.next_work_ms(self.config) <= now_ms]
        self._turns += 1
        first = self._turns % len(due) if due else 0
        return due[first:] + due[:first]

    def can_deliver(self, now_ms: int) -> bool:
        """Return whether a turn would deliver messages of a level."""
        return any(level.next_work_ms(self.config) <= now_ms for level in self.levels.values())

    async def _sleep(self) -> None:
        self._wake.clear()  # there was no await since the levels were checked
        until_ms = min(
            (lv.next_work_ms(self.config) for lv in self.levels.values()), default=NEVER_MS
        )
        if self._stop.is_set():
            return
        self._sleeping_until = until_ms
        await self._clock.wait(self._wake, until_ms=None if until_ms == NEVER_MS else until_ms)
        self._sleeping_until = -1

    # -- new units ----------------------------------------------------------------------------

    def on_put(self, batch: PutBatch) -> None:
        """Add the units of an appended batch to their levels. The dispatcher of this plugin."""
        if self._track is None:
            self._track = entry(
                kernels.track,
                batch.rows,
                0,
                self._schedule,
                self._last_due,
                self._row_of_queue,
                self._added,
                self._cuts,
            )
        added, cuts = self._track(
            batch.rows,
            batch.count,
            self._schedule,
            self._last_due,
            self._row_of_queue,
            self._added,
            self._cuts,
        )
        if not added:
            return
        cut_rows = self._cuts[:cuts].tolist() if cuts else []
        for queue, first, due_ms, end in self._added[:added].tolist():
            cuts_of_queue = [Cut(o, d) for q, o, d in cut_rows if q == queue]
            level = self.levels.get(queue + 1)
            if level is None:
                level = self.levels[queue + 1] = Level.empty(queue + 1)
            level.cursor.extend(first, due_ms, end, cuts_of_queue)
            if level.cursor.next_due_ms < self._sleeping_until:
                self._wake.set()

    # -- delivery -----------------------------------------------------------------------------

    def deliver_or_retry(self, level: Level, now_ms: int) -> None:
        """Append one batch of a level; refused units are tried first."""
        failing = level.in_flight.failing
        if failing is not None and failing.retry_ms <= now_ms:
            self._retry(level, failing, now_ms)
            return
        segment = level.cursor.next_segment()
        room = level.room(self.config)
        if room and max(segment.head_due_ms, level.paused_until_ms) <= now_ms:
            self._deliver(level, segment, room, now_ms)

    def _deliver(self, level: Level, segment: Segment, room: int, now_ms: int) -> None:
        """Append the due prefix of a segment, at most one batch."""
        config = self.config
        count_max = min(room, config.batch_records_max, level.read_units)
        count_max = min(count_max, segment.end - segment.submitted)
        units = self._queues.units(level.level, segment.submitted, count_max)
        if not units.size:
            self._skip_unreadable(level, segment, now_ms)
            return
        due_ms = self._queues.due_ms(level.level, units)
        count = kernels.count_due(units, due_ms, now_ms, config.batch_bytes_max)
        if count == 0:
            segment.head_due_ms = int(due_ms[0])
            return
        level.read_units = max(READ_UNITS_MIN, min(2 * count, config.batch_records_max))
        first = segment.submitted
        next_due_ms = self._due_at(level.level, first + count, segment.end)
        level.cursor.submit(segment, count, next_due_ms)
        delivery = InFlight(segment, first, count)
        if level.in_flight.failing is not None:  # later units must not be appended before it
            delivery.move(Event.REFUSED)
            level.in_flight.add(delivery)
            return
        level.in_flight.add(delivery)
        self._append(level, delivery, units[:count], due_ms[:count], now_ms)

    def _append(
        self,
        level: Level,
        delivery: InFlight,
        units: Rows,
        due_ms: npt.NDArray[np.int64],
        now_ms: int,
    ) -> None:
        """Append the units of a delivery; units that the store refuses are tried again later."""
        units, delay_ms = self._queues.of_one_table(level.level, units)
        skip = level.cursor.settled_in(delivery.first, int(units.size))
        result = self._deliverer.deliver_batch(
            level.level, delivery.first, units, now_ms, skip, delay_ms=delay_ms
        )
        level.stats.record(due_ms, result, now_ms, timed=self.config.stats_enable)
        self.history.record(*result.delivered_columns(due_ms)[:2], now_ms)
        _report_lost(level, result.lost)
        level.cursor.advance(delivery.segment, delivery.first + result.done)
        if result.done:
            rest = None
            if result.done < delivery.count:
                rest = level.in_flight.split(delivery, result.done)
            if delivery.state is not State.RUNNING:
                delivery.move(
                    Event.RESENT if delivery.state is State.EXCEPTION else Event.QUARANTINED
                )
            delivery.log_end = self._store.max_offset
            if rest is None:
                return
            delivery = rest
        if delivery.state is State.RUNNING and result.illegal:
            delivery.move(Event.ILLEGAL)
        delivery.refused(now_ms)
        if not result.refusal:  # the rest is in another queue file, or a unit was repaired
            delivery.retry_ms = now_ms
        elif delivery.failures == 1:
            log.warning(
                "level %d: delivery is refused and tried again: %s", level.level, result.refusal
            )

    def _retry(self, level: Level, delivery: InFlight, now_ms: int) -> None:
        """Read the units of a refused delivery again and append them."""
        first, _ = self._queues.bounds(level.level)
        if delivery.first < first:
            self._forget(level, first)
            return
        units = self._queues.units(level.level, delivery.first, delivery.count)
        if not units.size:
            delivery.refused(now_ms)
            return
        due_ms = self._queues.due_ms(level.level, units)
        count = kernels.count_due(units, due_ms, now_ms, self.config.batch_bytes_max)
        if count:
            self._append(level, delivery, units[:count], due_ms[:count], now_ms)
        else:  # the unit was repaired, and is due later
            delivery.retry_ms = int(due_ms[0])

    def _skip_unreadable(self, level: Level, segment: Segment, now_ms: int) -> None:
        """Continue after units that retention removed, or pause until they are written."""
        first, _ = self._queues.bounds(level.level)
        if segment.submitted < first:
            self._forget(level, first)
        else:
            level.paused_until_ms = now_ms + PAUSE_MS

    def _forget(self, level: Level, queue_min: int) -> None:
        """Advance a level past units whose records retention removed."""
        lost = level.cursor.forget_before(queue_min)
        for delivery in list(level.in_flight):
            if delivery.state is not State.RUNNING and delivery.first < queue_min:
                gone = min(queue_min - delivery.first, delivery.count)
                delivery.first, delivery.count = delivery.first + gone, delivery.count - gone
                if not delivery.count:
                    level.in_flight.remove(delivery)
        self._read_head_due_times(level)
        level.stats.lost += lost
        _report_lost(level, lost)

    def correct_heads(self) -> None:
        """Advance past units that retention removed, so that counts are exact."""
        for level in self.levels.values():
            first, _ = self._queues.bounds(level.level)
            if level.cursor.undelivered and level.cursor.first_undelivered < first:
                self._forget(level, first)
                self._wake.set()

    def next_due_ms(self, level: Level) -> int | None:
        """Return the due time of the next pending message of a level; None without one.

        `LevelCursor.next_due_ms` may be that of a settled message.
        """
        earliest_ms = NEVER_MS
        for segment in level.cursor.segments:
            position = level.cursor.first_unsettled(segment)
            is_head = position == segment.submitted
            due_ms = (
                segment.head_due_ms if is_head else self._due_at(level.level, position, segment.end)
            )
            earliest_ms = min(earliest_ms, due_ms)
        return None if earliest_ms == NEVER_MS else earliest_ms

    def _read_head_due_times(self, level: Level) -> None:
        """Read the due times of the first units that are not submitted."""
        for segment in level.cursor.segments:
            if segment.submitted < segment.end and segment.head_due_ms == NEVER_MS:
                segment.head_due_ms = self._due_at(level.level, segment.submitted, segment.end)

    def _due_at(self, level: int, offset: int, end: int) -> int:
        """Return the due time of a unit: 0 if it cannot be read now, NEVER_MS if there is none."""
        if offset >= end:
            return NEVER_MS
        return self._queues.compared_due_ms(level, offset) or 0

    # -- acknowledgement ----------------------------------------------------------------------

    async def _wait_acknowledged(self) -> bool:
        """Wait until everything in flight is acknowledged; return whether anything was."""
        end = self._log_end_in_flight()
        if end is None:
            return False
        if await self._store.wait_confirmed(end):
            await self._pause()
        else:
            self.acknowledge_to(end)
        return True

    async def _pause(self) -> None:
        """Pause while the disk or a replica is slow; records in the log are not appended again."""
        until_ms = self._clock.now_ms() + PAUSE_MS
        await self._clock.wait(self._stop, until_ms=until_ms)

    async def _acknowledge(self) -> None:
        """Acknowledge asynchronous deliveries as the log becomes durable."""
        try:
            while True:
                await self._sent.wait()
                self._sent.clear()
                while (end := self._log_end_in_flight()) is not None:
                    if await self._store.wait_confirmed(end):
                        await self._pause()
                    else:
                        self.acknowledge_to(end)
                        self._wake.set()
        except Exception as error:
            self._fail(error)

    def _log_end_in_flight(self) -> int | None:
        ends = [lv.in_flight.log_end for lv in self.levels.values() if len(lv.in_flight)]
        return max((end for end in ends if end is not None), default=None)

    def acknowledge_to(self, durable: int) -> None:
        for level in self.levels.values():
            if len(level.in_flight):
                level.in_flight.acknowledge(durable)

    # -- retention ----------------------------------------------------------------------------

    def first_pending_offset(self, offsets: Mapping[int, int]) -> int | None:
        """Return the log offset of the oldest record at or after `offsets`, None without any.

        Args:
            offsets: Level to the queue offset before which all deliveries are synced. A power cut
                may lose later deliveries, so their source records are still needed.
        """
        self.correct_heads()
        log_offsets = []
        for number, level in self.levels.items():
            first, end = self._queues.bounds(number)
            saved = offsets.get(number, 0)  # after a return from the timers, the cursor is lower
            position = max(min(saved, level.cursor.first_undelivered), first)
            if position < end:
                log_offsets.append(
                    first_log_offset(self._store, SCHEDULE_TOPIC, number - 1, position)
                )
        return min((offset for offset in log_offsets if offset is not None), default=None)


def _report_lost(level: Level, lost: int) -> None:
    if lost:
        log.error(
            "level %d: the records of %d messages were removed before they were delivered",
            level.level,
            lost,
        )
