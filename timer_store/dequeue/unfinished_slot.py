"""Settlement of delivered units in slots that a stop leaves partly delivered.

The next broker on the store reads slots from the read time on again. DueMQ finds their deliveries
in the commit log; an Apache broker does not, and would deliver the timers again. Therefore the
units of delivered timers in such slots are settled before the last checkpoint.

Source: TimerMessageStore.dequeue, TimerDequeueGetMessageService
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from duemq_common.errors import CorruptStore
from timer_store.layout import NO_OFFSETS, Offsets
from timer_store.progress import is_after
from timer_store.state import TimerState

log = logging.getLogger(__name__)


def settle_delivered(state: TimerState) -> Offsets:
    """Settle delivered timers in slots that are not completely delivered.

    Returns the positions of their units, which get tombstones once the deliveries are synced. The
    result is empty if the slots would then not contain as many timers as are pending, for example
    after an interrupted turn or with a damaged slot.
    """
    if state.dequeue.broken is not None:
        return NO_OFFSETS
    try:
        positions = np.concatenate([NO_OFFSETS, *_delivered(state)])
        left = state.units.wheel.total(state.position.read_ms) - positions.size
        if left == state.counts.total:
            state.units.discount(positions)
            return positions
        log.warning(
            "%d timers are pending, but their slots would count %d", state.counts.total, left
        )
    except CorruptStore as error:
        log.warning("%s", error)
    log.warning("an Apache broker would deliver the timers of the last second again")
    return NO_OFFSETS


def _delivered(state: TimerState) -> Iterator[Offsets]:
    """Yield the positions of units whose timers were loaded and are no longer pending."""
    units, position = state.units, state.position
    from_ms, until_ms = position.read_ms, position.staged_ms + (position.part is not None)
    while (slot_ms := units.wheel.next_live(from_ms, until_ms)) is not None:
        from_ms = slot_ms + units.precision_ms
        for rows in units.read_parts(slot_ms, skip=state.settled_timers.offsets):
            gone = (rows["due_ms"] > 0) & (rows["due_ms"] <= from_ms)  # the other units were rolled
            if position.part is not None and slot_ms >= position.staged_ms:
                gone &= ~is_after(rows, position.part)
            gone &= ~state.stage.contains(rows["phys_offset"], rows["due_ms"])
            yield rows["pos"][gone]
