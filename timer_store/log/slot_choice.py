"""Slot of a timer: its own, or an earlier one from which it rolls.

    read      staged               staged + window
     |----------|---- own slot -------|------------------------------------------> due
                      ^ T = due - k * window, the only such time in [staged, staged + window)

A timer due beyond the roll window is put into slot T and rolled when T is loaded. T depends only on
the due time and the window in which the timer was enqueued, so `candidates` returns the possible
slots of a unit for its due time.

    read     the first slot that is not completely delivered
    staged   slots before are loaded for delivery

Source: TimerMessageStore.doEnqueue, where the roll time depends on the time of the put.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from timer_store.layout import Rows

Times = npt.NDArray[np.int64]


def slot_times(due_ms: Times, read_ms: int, staged_ms: int, window_ms: int) -> Times:
    """Return the time whose slot each timer is put into: `due_ms` - 1, or its roll time.

    Overdue timers are put into the slot that is read now.
    """
    own_ms = due_ms - 1
    laps = np.maximum(own_ms - staged_ms, 0) // window_ms
    return np.asarray(np.maximum(own_ms - laps * window_ms, read_ms))


def place(rows: Rows, read_ms: int, staged_ms: int, window_ms: int) -> None:
    """Set `slot_ms` of (n,) `layout.TIMED` rows."""
    rows["slot_ms"] = slot_times(rows["due_ms"], read_ms, staged_ms, window_ms)


def candidates(
    due_ms: Times, read_ms: int, loaded_ms: Iterable[int], window_ms: int
) -> tuple[Times, ...]:
    """Return the slots that may contain a unit, whenever it was enqueued or rolled.

    A unit is in the window that begins at the read time, or one window later. While deliveries are
    delayed, slots after that window are loaded and their timers rolled: then a unit may also be in
    a window that begins at one of `loaded_ms`, or one window later.

    Args:
        loaded_ms: Times before which slots are loaded, and were loaded by the last run; the slot at
            such a time may be loaded in part.
    """
    far_ms = sorted({time_ms for time_ms in loaded_ms if time_ms - read_ms >= window_ms})
    slots_ms: list[Times] = []
    for start_ms in (read_ms, *far_ms):
        first = slot_times(due_ms, read_ms, start_ms, window_ms)
        slots_ms += [first, np.minimum(first + window_ms, np.maximum(due_ms - 1, first))]
    return tuple(slots_ms)
