"""Drain: pending messages of a level become timers, in bounded steps, without a copy.

    offer        the front of the level: units and due times              (schedule_service)
    mark         one record in the log: from now on the timers own them   (delivery.ownership)
    hand_over    the level's cursor passes them                           (schedule_service)
    catch_up     the timers take them in where they lie, 52 bytes each    (timer_store)

All in one turn of the event loop. A crash behind the mark is healed by both recoveries, which fold
the marks; one before it has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from delivery import ownership
from delivery.ownership import RANGES_MAX, Transfer
from message_store.ranges import mask_of
from migration.ownership.checksum import checksum
from timer_store.enqueue.level_records import PRE_BLANK_SIZE


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did.

    Attributes:
        moved: messages that changed their owner; taken: units of the level's queue passed.
        waits: why nothing moved though something is there, or empty.
    """

    moved: int = 0
    taken: int = 0
    waits: str = ""


class Drain:
    """Hands level messages over to the timers of one store. Belongs to the event loop's thread.

    Args:
        levels: the `LevelService`; timers: the `TimerStore`; store: the `MessageStore`.
        wake: called when the timers have something new to look at.
    """

    def __init__(
        self, levels: Any, timers: Any, store: Any, clock: Any, *, wake: Callable[[], None]
    ) -> None:
        self._levels, self._timers, self._store = levels, timers, store
        self._clock, self._wake = clock, wake

    def step(self, level: int, units_max: int, *, migration: str = "") -> Step:
        """Hand over up to `units_max` units of a level's queue.

        Raises:
            OwnershipRefused: The store takes no writes now; nothing has changed.
        """
        timers, now_ms = self._timers, self._clock.now_ms()
        if timers.transfers.behind:
            timers.transfers.catch_up(units_max, now_ms)
            if timers.transfers.behind:
                return Step(waits=timers.enqueue.holding or "the timers take in what they have")
        if timers.claims.returning:
            return Step(waits="what went back to its level waits for a checkpoint of the timers")
        offer = self._levels.transfers.offer(level, units_max, RANGES_MAX)
        if offer is None:
            return Step(waits="" if self.is_empty(level) else "deliveries of the level are retried")
        limit_ms = timers.position.staged_ms + timers.config.window_ms
        near = offer.due_ms < limit_ms
        if not near.all():  # Apache's broker would copy them, without a time (decision 0019)
            count = int(np.argmin(near))
            offer = self._levels.transfers.offer(level, count, RANGES_MAX) if count else None
        if offer is None:
            return Step(
                waits=f"what is left is due beyond the roll window of "
                f"{timers.config.window_ms // 1_000} s (timerRollWindowSlot): it waits with its "
                "level until it is within"
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
        self._levels.transfers.hand_over(entry)
        timers.transfers.note(entry)
        timers.transfers.catch_up(units_max, now_ms)
        self._wake()
        return Step(record.count, record.end - record.first)

    def is_empty(self, level: int) -> bool:
        """Return whether nothing is left with the level."""
        found = self._levels.levels.get(level)
        return found is None or found.cursor.held == 0

    def cover(self, keeper: Any) -> None:
        """Let Apache's numbers of the levels follow the timers' last checkpoint.

        Args:
            keeper: the `CheckpointWriter`.
        """
        self._levels.transfers.covered(keeper.handover_offset)
