"""Flow control: maximum number of timers per slot and per topic.

Source: TimerMessageStore.isReject, TimerFlowController
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from timer_store.layout import Offsets

EXPECTED_PER_S = 500_000  # deliveries per second, for the estimate in refusals


def over_limit(
    values: Offsets, count_of: Callable[[int], int], limit: int
) -> list[tuple[int, int, int]]:
    """Return (index, value, pending timers) of the timers beyond the limit.

    Args:
        values: (n,) slots or topics of new timers, in order.
        count_of: Returns the number of pending timers of a slot or topic.
    """
    refused = []
    groups, group = np.unique(values, return_inverse=True)
    for number, value in enumerate(groups.tolist()):
        indexes = np.flatnonzero(group == number)
        pending = count_of(value)
        before = max(pending, limit)
        refused += [(index, value, before) for index in indexes[max(limit - pending, 0) :].tolist()]
    return refused


def full_slot_refusal(slot_ms: int, count: int, limit: int) -> str:
    """Return the refusal of a timer whose slot is full."""
    late_ms = count * 1_000 // EXPECTED_PER_S
    return (
        f"timer message is under flow control: {count} timers are pending in slot {slot_ms}, "
        f"timerCongestNumEachSlot is {limit}; one more would be about "
        f"{late_ms} ms late. Choose another time, or raise the limit"
    )
