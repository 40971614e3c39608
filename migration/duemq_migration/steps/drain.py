"""Drain: transfers pending messages of a level to the timers, in bounded steps, without a copy.

    offer            return the first units of the level and their due times   (schedule_service)
    append           append one record: the timers own the units    (delayed_delivery.ownership)
    apply_transfer   advance the level's cursor past the units                 (schedule_service)
    catch_up         enqueue the units as timers, 52 bytes each, no copy       (timer_store)

All of these happen in one turn of the event loop. After a crash that follows the record, both
recoveries apply the journal; a crash before the record has no effect.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from delayed_delivery import ownership
from delayed_delivery.ownership import Transfer
from duemq_common.clock import Clock
from duemq_migration.ownership.checksum import checksum
from message_store.layout import PRE_BLANK_SIZE
from message_store.ranges import mask_of
from message_store.store import MessageStore
from schedule_service.delivery import LevelService
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.store import TimerStore


class DrainStep(Struct, frozen=True):
    """Result of one step.

    Attributes:
        moved: Messages whose owner has changed.
        processed: Units of the level's queue that the step processed.
        blocked_by: Reason why no message moved although some remain, or empty.
    """

    moved: int = 0
    processed: int = 0
    blocked_by: str = ""


def enqueue_transfers(timers: TimerStore, units_max: int, now_ms: int) -> str:
    """Enqueue earlier transfers as timers; return the reason if some remain, else empty."""
    if timers.transfers.incomplete:
        timers.transfers.catch_up(units_max, now_ms)
        if timers.transfers.incomplete:
            return timers.enqueue.blocked_by or "the timers enqueue earlier transfers"
    return ""


class Drain:
    """Transfer of level messages to the timers of one store. Belongs to the event loop's thread.

    Args:
        wake: Called when the timers have new units.
    """

    def __init__(
        self,
        levels: LevelService,
        timers: TimerStore,
        store: MessageStore,
        clock: Clock,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._levels, self._timers, self._store = levels, timers, store
        self._clock, self._wake = clock, wake

    def step(self, level: int, units_max: int, *, migration: str = "") -> DrainStep:
        """Transfer up to `units_max` units of a level's queue.

        Raises:
            OwnershipRefused: The store is not writable; nothing has changed.
        """
        timers, now_ms = self._timers, self._clock.now_ms()
        if reason := enqueue_transfers(timers, units_max, now_ms):
            return DrainStep(blocked_by=reason)
        if timers.settled_timers.returning:
            return DrainStep(blocked_by="returned messages need a checkpoint of the timers")
        offer = self._levels.transfers.offer(level, units_max)
        if offer is None:
            is_empty = self.is_empty(level)
            return DrainStep(blocked_by="" if is_empty else "deliveries of the level are retried")
        limit_ms = timers.position.staged_ms + timers.config.window_ms
        near = offer.due_ms < limit_ms
        if not near.all():  # Apache's broker would copy them, without a time (decision 0019)
            count = int(np.argmin(near))
            offer = self._levels.transfers.offer(level, count) if count else None
        if offer is None:
            return DrainStep(
                blocked_by=f"the rest is due beyond the roll window of "
                f"{timers.config.window_ms // 1_000} s (timerRollWindowSlot): it stays with the "
                "level until it is due within the window"
            )
        kept = ~mask_of(offer.excluded, offer.first, offer.end)
        kept &= offer.units["size"] != PRE_BLANK_SIZE
        record = Transfer(
            migration=migration,
            level=level,
            first=offer.first,
            end=offer.end,
            excluded=tuple(offer.excluded),
            count=int(np.count_nonzero(kept)),
            checksum=checksum(offer.units["phys_offset"][kept], offer.due_ms[kept]),
            promised=offer.promised,
        )
        entry = ownership.append(self._store, record, now_ms)
        self._levels.transfers.apply_transfer(entry)
        timers.transfers.on_transfer(entry)
        timers.transfers.catch_up(units_max, now_ms)
        self._wake()
        return DrainStep(record.count, record.end - record.first)

    def is_empty(self, level: int) -> bool:
        """Return whether the level has no undelivered units."""
        source_level = self._levels.levels.get(level)
        return source_level is None or source_level.cursor.undelivered == 0

    def cover(self, keeper: CheckpointWriter) -> None:
        """Advance the levels' saved offsets to the timers' last checkpoint."""
        self._levels.transfers.on_checkpoint(keeper.handover_offset)
