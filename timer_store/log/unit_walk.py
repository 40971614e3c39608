"""Walk through the timer log in bounded pieces, to find timers with records in old log files.

It returns only units in slots that are not loaded yet: loaded timers are delivered soon, and rolled
timers have another unit in a later slot.
"""

from __future__ import annotations

import numpy as np

from timer_store import layout
from timer_store.layout import UNIT_BYTES, Mask, Offsets, Rows
from timer_store.log.chain_check import is_pending
from timer_store.state import TimerState

PIECE_UNITS = 16_384


class UnitWalk:
    """One walk to the end that the timer log had when the walk began.

    Args:
        until: Timers with records before this log offset are returned.
    """

    def __init__(self, state: TimerState, until: int) -> None:
        self._state, self._until = state, until
        log = state.units.log
        self._first, self._pos, self._end = log.min_pos, log.min_pos, log.end
        self._rebuilds = state.rebuilds
        self._out = np.empty(PIECE_UNITS, layout.LOGGED)

    @property
    def left(self) -> bool:
        """Whether units remain to be read."""
        return self._pos < self._end and self.valid

    @property
    def valid(self) -> bool:
        """Whether positions are still valid: the timer log was not rebuilt since the start."""
        return self._rebuilds == self._state.rebuilds

    @property
    def progress(self) -> tuple[int, int]:
        """Number of processed units and of all units."""
        whole = self._end - self._first
        return (min(self._pos, self._end) - self._first) // UNIT_BYTES, whole // UNIT_BYTES

    def piece(self) -> Rows:
        """Return the pending units among the next ones, (n,) `layout.LOGGED`.

        The rows are valid until the next call.
        """
        log = self._state.units.log
        self._pos = max(self._pos, log.min_pos)
        if not self.left:
            return self._out[:0]
        rows, self._pos = log.read_piece(self._pos, self._end, self._out)
        return rows[self._is_selected(rows)]

    def _is_selected(self, rows: Rows) -> Mask:
        selection = is_pending(rows) & (rows["phys_offset"] < self._until)
        selection &= rows["phys_offset"] >= self._state.store.min_offset
        return np.asarray(selection & not_loaded(self._state, rows["slot_ms"]))


def not_loaded(state: TimerState, slot_ms: Offsets) -> Mask:
    """Return which slots are not loaded, not even partly."""
    position = state.position
    width_ms = state.config.precision_ms if position.part is not None else 0
    return np.asarray(slot_ms >= position.staged_ms + width_ms)
