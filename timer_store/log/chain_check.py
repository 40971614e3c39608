"""Checks of timer log and wheel: slots, chains of units, and pending units.

    slot         check_slots: both ends are valid positions
    chain, unit  `kernels.chain`: every step is in the log, points back, and stays in the slot
    fault        FAULT_TEXTS, chain_error: the fault and its position

Recovery, verification, lists and delivery check slots and units with this module.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from duemq_common.errors import CorruptStore
from timer_store import layout
from timer_store.kernels import chain
from timer_store.layout import Mask, Offsets, Rows
from timer_store.log.timer_log import TimerLog
from timer_store.log.wheel import TimerWheel

FAULT_TEXTS: Final = {
    chain.FAULT_PLACE: "no unit can be there",
    chain.FAULT_SIZE: "there is no unit",
    chain.FAULT_MAGIC: "the unit's magic is invalid",
    chain.FAULT_PREV: "the unit points forward",
    chain.FAULT_SLOT: "the unit belongs to another slot",
    chain.FAULT_TIMES: "the unit's due time does not match its slot",
}


def check_slots(slots: Rows, log_end: int) -> Rows:
    """Return the start of a walk along each slot, (n,) `layout.CURSOR`, with the slots' faults.

    Args:
        slots: (n,) `layout.SLOT`.
        log_end: Position after the last unit of the timer log.
    """
    cursors = np.zeros(slots.size, layout.CURSOR)
    cursors["tick"], cursors["pos"] = slots["tick"], slots["last_pos"]
    cursors["fault"][slots["first_pos"] > slots["last_pos"]] = chain.FAULT_PREV
    cursors["fault"][slots["last_pos"] >= log_end] = chain.FAULT_PLACE
    return cursors


def cursors_of(log: TimerLog, wheel: TimerWheel, ticks: Offsets) -> Rows:
    """Return the start of a walk along the slots of `ticks`, (n,) `layout.CURSOR`."""
    slots = np.zeros(ticks.size, layout.SLOT)
    slots["tick"] = ticks
    width_ms = wheel.precision_ms
    slots["last_pos"] = [wheel.slot(tick * width_ms).last_pos for tick in ticks.tolist()]
    slots["first_pos"] = slots["last_pos"]  # the walk detects pointers that lead forward
    return check_slots(slots, log.end)


def chain_error(log: TimerLog, pos: int, fault: int, slot_ms: int | None = None) -> CorruptStore:
    """Return the error for a chain that breaks at a log position.

    Args:
        fault: FAULT_* of the unit there.
        slot_ms: Start of the slot, if the pointer of the slot itself is wrong.
    """
    text = FAULT_TEXTS[fault]
    return log.fault(pos, text if slot_ms is None else f"slot {slot_ms} points here, but {text}")


def is_pending(units: Rows) -> Mask:
    """Return which units, (n,) `layout.LOGGED`, are pending timers: not markers, not settled."""
    return np.asarray((units["due_ms"] >= 0) & (units["magic"] & layout.MAGIC_DELETE == 0))
