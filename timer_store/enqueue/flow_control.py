"""Flow control: maximum number of timers per slot and per topic.

Source: TimerMessageStore.isReject, TimerFlowController
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from timer_store.layout import Rows

EXPECTED_PER_S = 500_000  # timers that leave in a second: for what refusals say


def beyond(values: Rows, count_of: Callable[[int], int], limit: int) -> list[tuple[int, int, int]]:
    """Return (index, value, pending timers) of those for which there is no room any more.

    Args:
        values: (n,) slots or topics that one more timer each is asked for, in order.
        count_of: the number of pending timers there now.
    """
    found = []
    groups, group = np.unique(values, return_inverse=True)
    for number, value in enumerate(groups.tolist()):
        mine = np.flatnonzero(group == number)
        waiting = count_of(value)
        before = max(waiting, limit)
        found += [(at, value, before) for at in mine[max(limit - waiting, 0) :].tolist()]
    return found


def crowded(slot_ms: int, count: int, limit: int) -> str:
    """Return why a slot takes no more timers."""
    late_ms = count * 1_000 // EXPECTED_PER_S
    return (
        f"timer message is under flow control: {count} timers wait for the slot of {slot_ms}, "
        f"timerCongestNumEachSlot is {limit}; one more would come about "
        f"{late_ms} ms late. Choose another time, or have the limit raised"
    )
