"""Names shared by the timer store and other packages."""

from __future__ import annotations

from typing import Final

TIMER_QUEUE: Final = 0  # it has one queue only

# The first one present applies.
DUE_NAMES: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
STALE_NAMES: Final = (
    "TIMER_OUT_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    "DUEMQ_DUE_MS",
    "REAL_TOPIC",
    "REAL_QID",
)
"""Properties that a broker added to a timer, and that a client sends again with the message."""
