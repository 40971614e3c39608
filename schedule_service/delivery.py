"""The level service: sleeps until a message is due, delivers it, keeps its offsets.

    dispatcher: units joined a level ---> cursor, and wake the loop if they are due sooner
    loop:  plan what may move now -> one bounded batch a level and segment, in turn, the event
           loop between them -> sleep until the next moment (a due time or a retry), no polling

Synchronous delivery: a level's next batch leaves when the last one is acknowledged, that is, on
the disk with SYNC_FLUSH. Asynchronous: up to scheduleAsyncDeliverMaxPendingLimit messages a level
may be on their way. Either way a level's messages are appended in order, and nothing overtakes a
delivery that the store refused. Source: ScheduleMessageService.DeliverDelayedMessageTimerTask
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from message_store.clock import Clock, Signal
from message_store.kernels.kernel import entry
from message_store.log.batch import PutBatch
from schedule_service import kernels
from schedule_service.config import ScheduleConfig
from schedule_service.cursor import NEVER_MS, Cut, LevelCursor, Segment
from schedule_service.deliverer import Deliverer, DeliveryBatch
from schedule_service.level import READ_UNITS_MIN, Level
from schedule_service.levels import LEVELS_MAX
from schedule_service.names import SCHEDULE_TOPIC
from schedule_service.pending import Event, Flight, State
from schedule_service.preload import preload_kernels
from schedule_service.queues import ScheduleQueues, Units
from schedule_service.transfer import LevelTransfers

log = logging.getLogger(__name__)
REHEARSAL_MS = 100  # after the start: the broker serves by then
PAUSE_MS = 100  # before a unit that cannot be read yet, or a slow disk, is looked at again
CUTS_MAX = 256
LOGGED_MAX = 10  # messages of one batch that are named one by one in the log


class LevelService:
    """Delivers what is due. Belongs to the event loop's thread.

    Args:
        cursors: from `recovery.restore`: nothing is delivered before that is done.
        on_failure: told when the service cannot go on.
    """

    def __init__(
        self,
        store: Any,
        queues: ScheduleQueues,
        clock: Clock,
        config: ScheduleConfig,
        cursors: dict[int, LevelCursor],
        *,
        on_failure: Callable[[str], None],
    ) -> None:
        self.config = config
        self._on_failure = on_failure
        self.levels = {n: Level(n, cursor) for n, cursor in cursors.items()}
        self._store, self._queues, self._clock = store, queues, clock
        self._deliverer = Deliverer(store)
        self._schedule = store.topics.add(SCHEDULE_TOPIC)
        self._wake, self._flying, self._stop = Signal(), asyncio.Event(), asyncio.Event()
        self._sleeping_until = -1
        self._stopping = False
        self._turn = 0
        size = max([LEVELS_MAX, *self.levels])
        self._last_due: npt.NDArray[np.int64] = np.full(size, -NEVER_MS, np.int64)
        self._track: Callable[..., tuple[int, int]] | None = None
        self._place: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self._added: npt.NDArray[np.int64] = np.zeros((size, 4), np.int64)
        self._cuts: npt.NDArray[np.int64] = np.zeros((CUTS_MAX, 3), np.int64)
        self.transfers = LevelTransfers(self.levels, queues, self.wake)
        for level in self.levels.values():
            self._last_due[level.level - 1] = level.cursor.last_due_ms
            self._find_heads(level)

    # -- life ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Deliver while the block is open; leaving it finishes the batch in hand."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._guard(self.run()), name="level delivery")
            acknowledging = tasks.create_task(
                self._guard(self._acknowledge()), name="level acknowledgement"
            )
            tasks.create_task(self._preload_kernels(), name="level rehearsal")
            try:
                yield self
            finally:
                self._stopping = True
                self._stop.set()
                self._wake.set()
                acknowledging.cancel()

    async def _preload_kernels(self) -> None:
        """Have kernels loaded before the first message is due, and not while the broker starts."""
        await self._clock.wait(self._stop, until_ms=self._clock.now_ms() + REHEARSAL_MS)
        if not self._stopping:
            await asyncio.to_thread(preload_kernels)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Have the broker stop in order if a task of ours dies: the log has everything."""
        try:
            await work
        except Exception as error:
            log.exception("the level service cannot go on")
            self._on_failure(f"{type(error).__name__}: {error}")

    @property
    def resting(self) -> bool:
        """Whether everything that can be done now is done and acknowledged."""
        sleeping = self._sleeping_until >= 0 and not self._wake.is_set()
        return sleeping and self._wanted_log_end() is None

    def wake(self) -> None:
        """Have the loop look again: what a level holds has changed."""
        self._wake.set()

    def reconfigure(self, config: ScheduleConfig) -> None:
        """Take new limits; a change of the delivery mode holds from the next batch on."""
        self.config = config
        self._wake.set()

    async def run(self) -> None:
        """Deliver until stopped."""
        now_ms = 0
        while not self._stopping:
            before_ms, now_ms = now_ms, self._clock.now_ms()
            if now_ms < before_ms:  # the clock was set back: a pause would take as long
                for level in self.levels.values():
                    level.pause_no_more()
            due = self._due_levels(now_ms)
            for level in due:
                self._work(level, self._clock.now_ms())  # it may have been stepped back
                await asyncio.sleep(0)
            if not self.config.async_deliver and await self._settle():
                continue
            if self.config.async_deliver and due:
                self._flying.set()
            if not due:
                await self._sleep()

    def _due_levels(self, now_ms: int) -> list[Level]:
        """Return the levels that can move now, another one first each time."""
        due = [lv for lv in self.levels.values() if lv.moment_ms(self.config) <= now_ms]
        self._turn += 1
        first = self._turn % len(due) if due else 0
        return due[first:] + due[:first]

    async def _sleep(self) -> None:
        self._wake.clear()  # nothing was awaited since the levels were looked at
        until_ms = min((lv.moment_ms(self.config) for lv in self.levels.values()), default=NEVER_MS)
        if self._stopping:
            return
        self._sleeping_until = until_ms
        await self._clock.wait(self._wake, until_ms=None if until_ms == NEVER_MS else until_ms)
        self._sleeping_until = -1

    # -- what joins ---------------------------------------------------------------------------

    def note_put(self, batch: PutBatch) -> None:
        """Take note of an appended batch. The dispatcher of this plugin."""
        if self._track is None:
            find: Callable[..., Any] = entry
            self._track = find(
                kernels.track, batch.rows, 0, self._schedule, self._last_due, self._place,
                self._added, self._cuts,
            )  # fmt: skip
        added, cuts = self._track(
            batch.rows, batch.count, self._schedule, self._last_due, self._place, self._added,
            self._cuts,
        )  # fmt: skip
        if not added:
            return
        found = self._cuts[:cuts].tolist() if cuts else []
        for queue, first, due_ms, end in self._added[:added].tolist():
            mine = [Cut(o, d) for q, o, d in found if q == queue]
            level = self.levels.get(queue + 1)
            if level is None:
                level = self.levels[queue + 1] = Level.empty(queue + 1)
            level.cursor.extend(first, due_ms, end, mine)
            if level.cursor.next_due_ms < self._sleeping_until:
                self._wake.set()

    # -- delivery -----------------------------------------------------------------------------

    def _work(self, level: Level, now_ms: int) -> None:
        """Move what can move of a level, one batch."""
        failing = level.table.failing
        if failing is not None and failing.retry_ms <= now_ms:
            self._retry(level, failing, now_ms)
            return
        segment = level.cursor.next_segment()
        room = level.room(self.config)
        if room and max(segment.head_due_ms, level.hold_ms) <= now_ms:
            self._deliver(level, segment, room, now_ms)

    def _deliver(self, level: Level, segment: Segment, room: int, now_ms: int) -> None:
        """Take the due prefix of a segment, as much as one batch may hold, and append it."""
        config = self.config
        count_max = min(room, config.batch_records_max, level.read_units)
        count_max = min(count_max, segment.end - segment.taken)
        units = self._queues.units(level.level, segment.taken, count_max)
        if not units.size:
            self._lost_sight(level, segment, now_ms)
            return
        due_ms = self._queues.due_ms(level.level, units)
        count = kernels.leaving(units, due_ms, now_ms, config.batch_bytes_max)
        if count == 0:
            segment.head_due_ms = int(due_ms[0])
            return
        level.read_units = max(READ_UNITS_MIN, min(2 * count, config.batch_records_max))
        first = segment.taken
        if count < units.size:
            next_due_ms = int(due_ms[count])
        else:
            next_due_ms = self._due_at(level.level, first + count, segment.end)
        level.cursor.take(segment, count, next_due_ms)
        flight = Flight(segment, first, count)
        if level.table.failing is not None:  # nothing overtakes it: wait behind it
            flight.move(Event.REFUSED)
            level.table.add(flight)
            return
        level.table.add(flight)
        self._fly(level, flight, units[:count], due_ms[:count], now_ms)

    def _fly(
        self,
        level: Level,
        flight: Flight,
        units: Units,
        due_ms: npt.NDArray[np.int64],
        now_ms: int,
    ) -> None:
        """Append the units of a flight and note how far that went."""
        skip = level.cursor.settled_in(flight.first, int(units.size))
        trip = self._deliverer.deliver_batch(level.level, flight.first, units, now_ms, skip)
        self._count(level, trip, due_ms)
        level.cursor.advance(flight.segment, flight.first + trip.done)
        if trip.done:
            rest = None
            if trip.done < flight.count:
                rest = level.table.split(flight, trip.done)
            if flight.state is not State.RUNNING:
                flight.move(Event.RESENT if flight.state is State.EXCEPTION else Event.PARKED)
            flight.log_end = self._store.max_offset
            if rest is None:
                return
            flight = rest
        if flight.state is State.RUNNING and trip.illegal:
            flight.move(Event.ILLEGAL)
        flight.refused(now_ms)
        if not trip.refusal:  # the rest lies in another queue file
            flight.retry_ms = now_ms
        elif flight.failures == 1:
            log.warning("level %d waits: %s", level.level, trip.refusal)

    def _retry(self, level: Level, flight: Flight, now_ms: int) -> None:
        """Read a refused flight's units again and append them."""
        first, _ = self._queues.bounds(level.level)
        if flight.first < first:
            self._forget(level, first)
            return
        units = self._queues.units(level.level, flight.first, flight.count)
        if not units.size:
            flight.refused(now_ms)
            return
        due_ms = self._queues.due_ms(level.level, units)
        self._fly(level, flight, units, due_ms, now_ms)

    def _lost_sight(self, level: Level, segment: Segment, now_ms: int) -> None:
        """Go on where units cannot be read: retention took them, or they are not written yet."""
        first, _ = self._queues.bounds(level.level)
        if segment.taken < first:
            self._forget(level, first)
        else:
            level.hold_ms = now_ms + PAUSE_MS

    def _forget(self, level: Level, queue_min: int) -> None:
        """Move a level past units whose records retention removed."""
        lost = level.cursor.forget_before(queue_min)
        for flight in list(level.table):
            if flight.state is not State.RUNNING and flight.first < queue_min:
                gone = min(queue_min - flight.first, flight.count)
                flight.first, flight.count = flight.first + gone, flight.count - gone
                if not flight.count:
                    level.table.remove(flight)
        self._find_heads(level)
        self._count_lost(level, lost)

    def correct_heads(self) -> None:
        """Take note of what retention removed, so that the books are exact."""
        for level in self.levels.values():
            first, _ = self._queues.bounds(level.level)
            if level.cursor.held and level.cursor.first_undelivered < first:
                self._forget(level, first)
                self._wake.set()

    def next_due_ms(self, level: Level) -> int | None:
        """Return when the next pending message of a level is due; None: none is pending.

        The cursor's own next time may be that of a message that was settled ahead.
        """
        found = NEVER_MS
        for segment in level.cursor.segments:
            at = level.cursor.first_unsettled(segment)
            is_head = at == segment.taken
            due_ms = segment.head_due_ms if is_head else self._due_at(level.level, at, segment.end)
            found = min(found, due_ms)
        return None if found == NEVER_MS else found

    def _find_heads(self, level: Level) -> None:
        """Look up when the first units that were not taken are due."""
        for segment in level.cursor.segments:
            if segment.taken < segment.end and segment.head_due_ms == NEVER_MS:
                segment.head_due_ms = self._due_at(level.level, segment.taken, segment.end)

    def _due_at(self, level: int, offset: int, end: int) -> int:
        """Return when a unit is due: 0 if it cannot be read now, NEVER_MS if there is none."""
        if offset >= end:
            return NEVER_MS
        units = self._queues.units(level, offset, 1)
        return int(self._queues.due_ms(level, units)[0]) if units.size else 0

    # -- acknowledgement ----------------------------------------------------------------------

    async def _settle(self) -> bool:
        """Wait until everything on its way is acknowledged; return whether anything was."""
        end = self._wanted_log_end()
        if end is None:
            return False
        if await self._store.wait_durable(end):
            self._acknowledge_to(end)
        else:
            await self._pause()
        return True

    async def _pause(self) -> None:
        """Give the disk time; what is in the log is not put again, whatever it says."""
        until_ms = self._clock.now_ms() + PAUSE_MS
        await self._clock.wait(asyncio.Event(), until_ms=until_ms)

    async def _acknowledge(self) -> None:
        """Settle asynchronous deliveries as the log becomes durable."""
        while True:
            await self._flying.wait()
            self._flying.clear()
            while (end := self._wanted_log_end()) is not None:
                if await self._store.wait_durable(end):
                    self._acknowledge_to(end)
                    self._wake.set()
                else:
                    await self._pause()

    def _wanted_log_end(self) -> int | None:
        ends = [lv.table.wanted_log_end for lv in self.levels.values() if len(lv.table)]
        return max((end for end in ends if end is not None), default=None)

    def _acknowledge_to(self, durable: int) -> None:
        for level in self.levels.values():
            if len(level.table):
                level.table.acknowledge(durable)

    # -- books --------------------------------------------------------------------------------

    def _count(self, level: Level, trip: DeliveryBatch, due_ms: npt.NDArray[np.int64]) -> None:
        stats = level.stats
        for positions, store_ms in zip(trip.delivered, trip.store_ms, strict=True):
            stats.note_delivered(due_ms[positions], store_ms, timed=self.config.stats_enable)
        stats.refused += bool(trip.refusal)
        for item in trip.parked:
            stats.quarantined[item.reason] += 1
        for item in trip.parked[:LOGGED_MAX]:
            log.warning(
                "level %d offset %d (log offset %d) went to quarantine, %s: %s",
                level.level, item.queue_offset, item.phys_offset, item.reason.value, item.detail,
            )  # fmt: skip
        self._count_lost(level, trip.lost)

    @staticmethod
    def _count_lost(level: Level, lost: int) -> None:
        if lost:
            level.stats.expired += lost
            log.error("level %d: retention removed %d messages not due yet", level.level, lost)

    def first_pending_offset(self, offsets: Mapping[int, int]) -> int | None:
        """Return the log offset of the oldest record at or behind `offsets`, None without any.

        Args:
            offsets: level to queue offset: deliveries before it are on the disk. Until then a
                record is still needed, for a power cut takes a delivery that is not.
        """
        self.correct_heads()
        found = []
        for number, level in self.levels.items():
            first, end = self._queues.bounds(number)
            saved = offsets.get(number, 0)  # given back by the timers: the cursor is before it
            at = max(min(saved, level.cursor.first_undelivered), first)
            if at < end:
                found.append(self._queues.first_phys(number, at))
        return min((offset for offset in found if offset is not None), default=None)
