"""What leaves a timer store when it is closed in the middle of a second.

Slots from the read time on are read again by whoever opens the store next. Our own start finds in
the commit log what was delivered of them; an Apache broker does not look, and would deliver it
again. So units whose timers have left are settled in such slots, before the last checkpoint.

Source: TimerMessageStore.dequeue, TimerDequeueGetMessageService
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from timer_store.loading import is_after

if TYPE_CHECKING:
    from timer_store.store import TimerStore

Rows = npt.NDArray[Any]
Offsets = npt.NDArray[np.int64]


def settle_delivered(timers: TimerStore) -> Offsets:
    """Take delivered timers out of slots that are not completely delivered.

    Returns the places of their units, which are to be buried when their deliveries are on the disk.
    """
    if timers.delivery.broken is not None:
        return np.empty(0, np.int64)
    places = np.concatenate([np.empty(0, np.int64), *_delivered(timers)])
    timers.units.discount(places)
    return places


def _delivered(timers: TimerStore) -> Iterator[Offsets]:
    """Yield by slot the places of units whose timers were loaded and wait no longer."""
    units, position = timers.units, timers.position
    from_ms, until_ms = position.read_ms, position.staged_ms + (position.part is not None)
    while (slot_ms := units.wheel.next_live(from_ms, until_ms)) is not None:
        rows = units.read_slot(slot_ms, skip=timers.claims.offsets).rows
        ends_ms = slot_ms + units.precision_ms
        rows = rows[(rows["due_ms"] > 0) & (rows["due_ms"] <= ends_ms)]  # what passes was put on
        if position.part is not None and slot_ms >= position.staged_ms:
            rows = rows[~is_after(rows, position.part)]
        waits = timers.stage.contains(rows["phys_offset"], rows["due_ms"])
        yield rows["pos"][~waits]
        from_ms = ends_ms
