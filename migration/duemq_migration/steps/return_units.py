"""Return of transferred messages to their level, with unchanged due times.

    UnitReturn    transferred messages: a record returns them without a copy, from the end of the
                  queue backwards, so that the level always owns the end of its queue
    RoutedReturn  timers that were sent with the level: a copy with the same due time, whose origin
                  is the timer, is appended to the level's queue; the earliest timers first

New messages of the level become timers until the last batch of `RoutedReturn`: that batch and the
record that ends the route are appended in one turn of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from delayed_delivery import ownership
from delayed_delivery.kernels.outcome import SKIPPED
from delayed_delivery.ownership import RANGES_MAX, Return, Route
from delayed_delivery.ownership_projection import LevelProjection
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import OwnershipRefused
from duemq_common.topics import SCHEDULE_TOPIC
from duemq_migration.kernels.routed import levels_of
from duemq_migration.ownership.checksum import checksum
from duemq_migration.steps.drain import DrainStep, enqueue_transfers
from duemq_migration.steps.router import Router
from message_store import layout as store_layout
from message_store.layout import TAGS_DUE
from message_store.log.batch import PutBatch
from message_store.ranges import Range
from message_store.store import MessageStore
from schedule_service.delivery import LevelService
from timer_store import layout
from timer_store.dequeue.deliverer import Gatherer
from timer_store.kernels.enqueue import Scratch
from timer_store.layout import NO_OFFSETS
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

Rows = npt.NDArray[np.void]
Offsets = npt.NDArray[np.int64]
PIECE_UNITS = 8_192
NOWHERE = -1
NO_TIMERS = np.empty(0, layout.TIMED)


class UnitReturn:
    """Return of transferred messages to their level. Belongs to the event loop's thread.

    Args: see `duemq_migration.steps.drain.Drain`.
    """

    def __init__(
        self, levels: LevelService, timers: TimerStore, store: MessageStore, clock: Clock
    ) -> None:
        self._levels, self._timers, self._store, self._clock = levels, timers, store, clock

    def remaining(self, level: int) -> list[Range]:
        """Return the ranges of a level that the timers own, including settled messages."""
        return self._timers.transfers.owned.ranges(level)

    def is_finished(self, level: int) -> bool:
        """Return whether the timers own no messages of a level's queue."""
        return self._timers.transfers.owned.bounds(level) is None

    def step(self, level: int, units_max: int, *, migration: str = "") -> DrainStep:
        """Return the last units of a level's queue, up to `units_max`.

        Raises:
            OwnershipRefused: The store is not writable; nothing has changed.
        """
        transfers, now_ms = self._timers.transfers, self._clock.now_ms()
        left = transfers.owned.bounds(level)
        if left is None:
            return DrainStep()
        if reason := enqueue_transfers(self._timers, units_max, now_ms):
            return DrainStep(blocked_by=reason)
        if not self._levels.transfers.is_ready(level):
            return DrainStep(blocked_by="deliveries of the level are retried")
        first, end = max(left[0], left[1] - units_max), left[1]
        names: list[Offsets] = [NO_OFFSETS]
        rows, numbers = transfers.owned_rows(level, first, end, names)
        name_at = np.concatenate(names)
        locations = self._timers.decisions.locate(rows)
        ranges = _ranges(numbers[locations != NOWHERE])
        if len(ranges) > RANGES_MAX:
            ranges = ranges[-RANGES_MAX:]
            first = ranges[0][0]
            kept = numbers >= first
            rows, locations, name_at = rows[kept], locations[kept], name_at[kept]
        settled = rows[locations == NOWHERE]
        if settled.size:
            kept = locations != NOWHERE
            rows, locations, name_at = rows[kept], locations[kept], name_at[kept]
        record = Return(
            migration=migration,
            level=level,
            first=first,
            end=end,
            pending=tuple(ranges),
            count=int(rows.size),
            checksum=checksum(rows["phys_offset"], rows["due_ms"]),
            gone=int(settled.size),
            gone_sum=checksum(settled["phys_offset"], settled["due_ms"]),
        )
        entry = ownership.append(self._store, record, now_ms)
        self._timers.decisions.return_units(entry, rows, locations)
        self._levels.transfers.apply_return(entry)
        transfers.set_level_letters(rows, name_at)  # a disk can refuse it
        return DrainStep(int(rows.size), end - first)


def _ranges(numbers: Offsets) -> list[Range]:
    """Return ascending queue offsets as ranges."""
    if not numbers.size:
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    firsts, ends = np.append(0, breaks), np.append(breaks, numbers.size)
    return [
        (int(numbers[a]), int(numbers[b - 1]) + 1)
        for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)
    ]


class RoutedReturn:
    """Return of timers that were sent with a level: copies into its queue; ends the route.

    Args:
        wake: Called after copies were added to a level.
    """

    def __init__(
        self,
        router: Router,
        timers: TimerStore,
        store: MessageStore,
        clock: Clock,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._router, self._timers, self._store, self._clock = router, timers, store, clock
        self._wake = wake
        self._schedule = store.topics.add(SCHEDULE_TOPIC)
        self._gatherer, self._batch = Gatherer(store, timers.config.precision_ms), PutBatch(1_024)
        self._scratch = Scratch(np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT))
        self._pending: dict[int, Rows] = {}  # by level: pending timers, (n,) TIMED, in due order
        self._read_to: dict[int, int] = {}  # by level: offset up to which the timer queue was read
        self._finished: set[int] = set()

    def step(self, level: int, count_max: int, *, migration: str = "") -> DrainStep:
        """Copy up to `count_max` timers of a level back; the last step ends the route.

        Raises:
            OwnershipRefused: All timers are returned, but the route has not ended; call again.
        """
        rows = self._pending_timers(level)
        now, self._pending[level] = rows[:count_max], rows[count_max:]
        moved, refusal = self._copy(level, now)
        if refusal:
            self._pending[level] = rows  # the next call drops the copied timers
            return DrainStep(moved, blocked_by=refusal)
        if not self._pending[level].size and not self._has_unread(level):
            self._end(level, migration)
        return DrainStep(moved, int(now.size))

    def is_finished(self, level: int) -> bool:
        """Return whether a level is not routed and the last steps found no timer of it."""
        return level not in self._router.levels and level in self._finished

    def forget(self, level: int) -> None:
        """Forget the timers found for a level; the next rollback searches for them again."""
        self._finished.discard(level)

    def _has_unread(self, level: int) -> bool:
        return bool(self._timers.fetch.bounds()[1] > self._read_to.get(level, 0))

    def _end(self, level: int, migration: str) -> None:
        self._read_to.pop(level, None)
        if level in self._router.levels:
            record = Route(migration=migration, level=level, on=False)
            try:
                entry = ownership.append(self._store, record, self._clock.now_ms())
            except OwnershipRefused:
                self._pending[level] = NO_TIMERS
                raise
            self._router.set_route(LevelProjection(level=level).after(entry))
        self._finished.add(level)

    def _pending_timers(self, level: int) -> Rows:
        """Return the pending timers of a level in the part of the queue that was read.

        Each call reads one more piece: the queue may have millions of other timers. The result is
        sorted by due time.
        """
        blocks = [self._pending.get(level, NO_TIMERS)]
        position = self._read_to.get(level, -1)
        if position < 0:
            position = PendingTimers(self._timers).first_pending()
        end = min(self._timers.fetch.bounds()[1], position + PIECE_UNITS)
        while position < end:
            rows, position = self._timers.fetch.fetch_queue(position, end - position)
            blocks.append(rows[self._levels_of(rows) == level].copy())
        self._read_to[level] = max(position, end)
        rows = np.concatenate(blocks)
        rows = rows[self._timers.decisions.is_pending(rows)]
        order = np.lexsort((rows["phys_offset"], rows["due_ms"]))
        return np.asarray(rows[order])

    def _levels_of(self, rows: Rows) -> Offsets:
        out = np.zeros(rows.size, np.int64)
        for file, in_file in self._store.indexes_by_file(rows["phys_offset"]):
            levels = np.zeros(in_file.size, np.int64)
            span = self._store.written_span(file)
            levels_of(file.data, span, rows[in_file], self._scratch, levels)
            out[in_file] = levels
        out[rows["kind"] != layout.TIMED_PLAIN] = 0
        return out

    def _copy(self, level: int, rows: Rows) -> tuple[int, str]:
        """Append copies to the level's queue; return (their number, the refusal or empty)."""
        if not rows.size:
            return 0, ""
        locations = self._timers.decisions.locate(rows)
        batch, now_ms = self._batch, self._clock.now_ms()
        load = self._gatherer.plan(_staged(rows, now_ms), batch, now_ms)
        load.read()
        self._gatherer.finish(load)
        made = batch.filled
        made["topic_index"], made["queue_id"] = self._schedule, level - 1
        made["due_delay_ms"], made["due_ms"] = TAGS_DUE, rows["due_ms"]
        made["enqueue_ms"] = made["dequeue_ms"] = -1
        for position in (
            *load.quarantine_items,
            *load.lost,
        ):  # still timers, in quarantine when due
            made[position]["status"] = SKIPPED
        self._store.put(batch)
        stored = made["status"] == 0
        self._timers.decisions.settle(rows[stored], locations[stored])
        # A copy that the store will never accept stays a timer, and stops no other one.
        refused = np.flatnonzero(
            (made["status"] > SKIPPED) & (made["status"] != ResponseCode.MESSAGE_ILLEGAL)
        )
        self._wake()
        reason = batch.refusal(int(refused[0])) if refused.size else ""
        return int(np.count_nonzero(stored)), reason


def _staged(rows: Rows, now_ms: int) -> Rows:
    """Return (n,) `layout.STAGED` of timers that are delivered before their due time."""
    staged = np.zeros(rows.size, layout.STAGED)
    for column in ("due_ms", "phys_offset", "record_size", "topic_hash"):
        staged[column] = rows[column]
    staged["pos"], staged["write_ms"], staged["magic"] = -1, now_ms, layout.MAGIC_DEFAULT
    staged["state"] = layout.STAGED_FIRED
    return staged
