"""Planner: appends the next occurrence of each schedule as a timer.

    planned <= now, next exists   ->   append the occurrence `next`, then: planned, next = next, ...

So exactly one planned occurrence of a schedule is pending, from the creation on; the next one is
appended soon after the planned time of the former, at least a second ahead. A jitter delays the
former for at most the time between both. A turn appends a few, the most
urgent ones first; timers are delivered between two turns. The record of the occurrence is the only
proof that it is planned: after a kill, a start finds it in the log, or appends it.

Overdue occurrences, after an outage or a jump of the clock, are appended at once, unless they are
older than the catch-up window, or the rule `latest` applies and a later one is overdue too. A long
search for the following time continues in the next turns. If the topic of a schedule was deleted,
or this host has not its time zone, the schedule is paused with the reason as its note.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from delayed_delivery.steps import Steps
from duemq_common.clock import Clock, Signal
from duemq_common.errors import RecordUnreadable, RequestError
from message_store.hooks import PutHook
from message_store.log.batch import PutBatch
from recurring_schedules import journal
from recurring_schedules.definition import Definition, InvalidDefinition
from recurring_schedules.journal import PAUSED, ScheduleRecord
from recurring_schedules.messages import add_occurrence
from recurring_schedules.occurrences import StepWork, due_ms_of, search_after
from recurring_schedules.pause_reports import PauseReports
from recurring_schedules.table import ScheduleTable
from recurring_schedules.urgency_queue import UrgencyQueue
from recurring_schedules.wake_times import NEVER

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
TURN_OCCURRENCES: Final = 5
"""Maximum number of occurrences of one turn, during which no timer is delivered."""
LOOK_SLOTS: Final = 8_192
"""Number of schedules with work that one turn adds to the queue, approximately."""
DROPS_MAX: Final = 200
"""Maximum number of schedules of the queue that one turn drops, because they have changed."""
GATHER_MS: Final = 20
"""Time after the first occurrence is due in which others join it, so that they share appends."""
AHEAD_MS: Final = 10_000
"""A backlog of occurrences that are due later is appended with pauses, for other timers."""
BACKLOG_SLOTS: Final = 200  # schedules in the queue after a turn
PAUSE_S: Final = 0.004
SKIPS_MAX: Final = 200
"""Maximum number of occurrences of one schedule that one turn skips."""
RETRY_MS: Final = 1_000
RETRY_SHARE: Final = 16
"""Share of the time until a refused occurrence after which it is tried again: beyond the longest
delay of a timer, it is refused for days."""
UNREADABLE_RETRY_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """Occurrence to append."""

    slot: int
    definition: Definition
    planned_ms: int
    next_ms: int
    due_ms: int


@dataclass(slots=True)
class PlannerStats:
    """Counts since the start.

    Attributes:
        planned: Occurrences appended.
        late: Occurrences appended after their due time.
        missed: Occurrences skipped by the catch-up window or the overlap rule.
        refused: Appends that were refused, by the store or a limit of timers; they are repeated.
    """

    planned: int = 0
    late: int = 0
    missed: int = 0
    refused: int = 0


class Planner:
    """Task that appends occurrences; owns the progress of the table while it runs.

    Args:
        hooks: Put hooks of the timers.
    """

    def __init__(
        self, store: MessageStore, table: ScheduleTable, clock: Clock, hooks: Sequence[PutHook]
    ) -> None:
        self._store, self._table, self._clock, self._hooks = store, table, clock, hooks
        self._batch = PutBatch(TURN_OCCURRENCES)
        self._queue, self._pauses = UrgencyQueue(), PauseReports(log)
        self._step, self._searches = StepWork(), dict[int, Steps[Candidate | None]]()  # by slot
        self._wake, self._stops = Signal(), False
        self._can_pause = False  # whether the last turn left a backlog without urgent occurrences
        self.stats = PlannerStats()

    def wake(self) -> None:
        """Look for schedules to plan now."""
        self._wake.set()

    def stop(self) -> None:
        """Make `run` return."""
        self._stops = True
        self._wake.set()

    async def run(self) -> None:
        """Append occurrences until `stop`."""
        while not self._stops:
            self._wake.clear()
            if not len(self._table):
                await self._wake.wait()
                continue
            now_ms = self._clock.now_ms()
            if self.turn(now_ms):
                await (self._wake.wait_for(PAUSE_S) if self._can_pause else asyncio.sleep(0))
            else:
                await self._clock.wait(self._wake, until_ms=self.next_turn_ms(now_ms))

    def turn(self, now_ms: int, slots: Sequence[int] | None = None) -> bool:
        """Append the most urgent occurrences; return whether there are more.

        Args:
            slots: Only these schedules.
        """
        self._pauses.report(now_ms)
        if self._store.refusal:
            return False
        due = self._take_due(now_ms) if slots is None else slots
        next_ms = self._table.rows["next_ms"][due]
        is_ahead = bool((next_ms >= now_ms + AHEAD_MS).all())
        self._can_pause = is_ahead and len(self._queue) > BACKLOG_SLOTS
        self._step.units = 0
        for slot in due:
            self._searches[slot] = self._candidate(slot, now_ms)
        candidates = [self._searched(slot) for slot in due]
        self._step.units = 0
        candidates += [self._searched(slot) for slot in self._unfinished(due)]
        if occurrences := [item for item in candidates if item is not None]:
            self._append(occurrences, now_ms)
        return bool(due or len(self._queue) or self._searches)

    def _unfinished(self, due: Sequence[int]) -> list[int]:
        """Return slots whose search has to continue in this turn: the one that waits longest."""
        first = next((slot for slot in self._searches if slot not in due), None)
        return [] if first is None else [first]

    def _searched(self, slot: int) -> Candidate | None:
        """Do a step of a search, unless the turn's work is done; return its result at the end."""
        search = self._searches.pop(slot)
        try:
            if not self._step.is_done:
                next(search)
        except StopIteration as end:
            candidate: Candidate | None = end.value
            return candidate
        self._searches[slot] = search
        return None

    async def plan(self, slot: int) -> None:
        """Append the next occurrence of a schedule if it has to be appended now."""
        self.turn(self._clock.now_ms(), [slot])
        while slot in self._searches and not self._store.refusal:
            await asyncio.sleep(0)
            self.turn(self._clock.now_ms(), [])

    def _take_due(self, now_ms: int) -> list[int]:
        """Return slots whose next occurrence has to be appended, the earliest one first."""
        woken = self._table.wake_ms.take(now_ms, LOOK_SLOTS)
        self._queue.add(self._table.rows["next_ms"][woken], woken)
        slots: list[int] = []
        drops = 0
        while len(self._queue) and len(slots) < TURN_OCCURRENCES and drops < DROPS_MAX:
            slot = self._queue.pop()
            if slot in slots:  # it has changed while it was in the queue
                continue
            if self._table.is_due(slot, now_ms):
                slots.append(slot)
            else:  # paused or deleted meanwhile, or the clock was set back
                self._table.set_wake(slot)
                drops += 1
        return slots

    def next_turn_ms(self, now_ms: int) -> int | None:
        """Return the time of the next work; None: no schedule has any."""
        if self._store.refusal or len(self._queue):
            return now_ms + RETRY_MS
        first_ms = self._table.wake_ms.first()
        if first_ms != NEVER:
            first_ms += GATHER_MS
        first_ms = min(first_ms, self._pauses.next_ms)
        return None if first_ms == NEVER else first_ms

    def _candidate(self, slot: int, now_ms: int) -> Steps[Candidate | None]:
        """Return the occurrence to append, None if it is skipped or the schedule has changed."""
        try:
            record = self._table.record(self._store, slot)
        except RecordUnreadable as error:
            log.error("a schedule cannot be planned: %s", error)
            self._table.wake_ms[slot] = now_ms + UNREADABLE_RETRY_MS
            return None
        definition = record.definition
        if fault := journal.topic_fault(self._store.topics, definition.topic):
            self._pause(slot, record, fault, now_ms)
            return None
        planned_ms = int(self._table.rows["next_ms"][slot])
        before = self._table.rows[slot].tolist()
        for _ in range(SKIPS_MAX):
            next_ms, fault = None, ""
            try:
                next_ms = yield from search_after(definition, planned_ms, self._step)
            except InvalidDefinition as error:
                fault = str(error)
            if self._table.rows[slot].tolist() != before:  # it has changed meanwhile
                self._table.set_wake(slot)
                return None
            if fault:
                self._pause(slot, record, fault, now_ms)
                return None
            is_old = planned_ms < now_ms - definition.catch_up_ms
            is_replaced = definition.overlap == "latest" and next_ms and next_ms <= now_ms
            if not is_old and not is_replaced:
                due_ms = due_ms_of(definition, planned_ms, next_ms)
                return Candidate(slot, definition, planned_ms, next_ms or 0, due_ms)
            self.stats.missed += 1
            if next_ms is None:
                break
            planned_ms = next_ms
        self._table.skip_to(slot, planned_ms if next_ms is not None else 0)
        return None

    def _pause(self, slot: int, record: ScheduleRecord, reason: str, now_ms: int) -> None:
        """Pause a schedule that cannot continue, with the reason as its note."""
        paused: ScheduleRecord = replace(
            record,
            state=PAUSED,
            note=f"paused by the broker: {reason}",
            revision=record.revision + 1,
            changed_ms=now_ms,
        )
        try:
            journal.append(self._store, paused, now_ms)
        except RequestError as error:
            log.warning("schedule %s is paused later: %s", record.definition.name, error)
            self._table.wake_ms[slot] = now_ms + RETRY_MS
        else:
            self._pauses.add(record.definition.name, reason, now_ms)

    def _append(self, candidates: list[Candidate], now_ms: int) -> None:
        batch = self._batch
        batch.clear()
        for item in candidates:
            add_occurrence(
                batch,
                self._store.topics,
                item.definition,
                item.planned_ms,
                next_ms=item.next_ms,
                due_ms=item.due_ms,
                now_ms=now_ms,
            )
        self.put(batch, now_ms)
        for index, item in enumerate(candidates):
            if batch.rows[index]["status"]:
                self.stats.refused += 1
                pause_ms = max(RETRY_MS, (item.due_ms - now_ms) // RETRY_SHARE)
                self._table.wake_ms[item.slot] = now_ms + pause_ms
                continue
            offset = int(batch.rows[index]["phys_offset"])
            self._table.occurred(item.slot, item.planned_ms, item.next_ms, offset)
            self.stats.planned += 1
            self.stats.late += item.due_ms < now_ms

    def put(self, batch: PutBatch, now_ms: int) -> None:
        """Append messages through the put hooks of the timers; each row has its result."""
        for hook in self._hooks:
            hook(batch, now_ms)
        self._store.put(batch)
