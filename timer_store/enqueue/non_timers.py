"""Records of the timer queue that are no timers: damaged records, and markers of clients.

    broken   no time, no target, unreadable: to the quarantine topic, with the reason
    marker   TIMER_DEL_UNIQKEY: cancels the timer it names, as Apache's broker would

They are settled between two turns, before the next checkpoint: so a checkpoint never passes one.
"""

from __future__ import annotations

from typing import Any

from timer_store.enqueue.enqueue_service import staged_rows
from timer_store.enqueue.markers import apply_markers
from timer_store.pending.decisions import Decisions
from timer_store.state import TimerState

ROWS_MAX = 1_024  # a turn


class NonTimers:
    """Settles the records of one timer queue that are no timers."""

    def __init__(self, state: TimerState, decisions: Decisions) -> None:
        self._state, self._decisions = state, decisions
        self.parked = self.cancelled = 0

    def settled(self, now_ms: int) -> bool:
        """Settle all there are; return whether none is left."""
        while self.settle(now_ms):
            pass
        enqueue = self._state.enqueue
        return not (enqueue.broken or enqueue.markers)

    def settle(self, now_ms: int) -> int:
        """Settle some; return how many. A full disk leaves them for later."""
        count = self._settle_broken(now_ms) if self._state.enqueue.broken else 0
        return count + self._settle_markers(now_ms) if self._state.enqueue.markers else count

    def _settle_broken(self, now_ms: int) -> int:
        rows = self._state.enqueue.broken.pop(0)
        done = int(self._state.deliverer.park_broken(staged_rows(rows[:ROWS_MAX], now_ms), now_ms))
        self._keep(self._state.enqueue.broken, rows[done:])
        self.parked += done
        return done

    def _settle_markers(self, now_ms: int) -> int:
        rows = self._state.enqueue.markers.pop(0)
        foreign = rows[rows["origin"] < 0]  # a marker with an origin was decided when it was put
        self.cancelled += apply_markers(self._state, self._decisions, foreign)
        return int(rows.size)

    @staticmethod
    def _keep(kept: list[Any], rows: Any) -> None:
        if rows.size:
            kept.insert(0, rows)
