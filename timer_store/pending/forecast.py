"""Forecast: pending timers by due time, from the wheel's slots and the units that roll.

The count of a slot includes timers that will be rolled; a scan of the timer log moves these to
the bin of their due time. It reads the log in bounded pieces: the first call returns the bins of
the slots, every further call returns corrections to add, and the position to continue from. What
has no unit that rolls is not read again by later forecasts. The slots are counted in steps, the
near stage and the next slots in the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from delayed_delivery.forecast_bins import Bins, Span
from delayed_delivery.steps import Steps
from timer_store.kernels import forecast as kernels
from timer_store.layout import UNIT_BYTES

if TYPE_CHECKING:
    from timer_store.store import TimerStore

SCAN_UNITS = 1 << 17  # maximum units read in one piece


def forecast(
    timers: TimerStore, span: Span, pos: int | None = None
) -> Steps[tuple[Bins, int | None]]:
    """Return the bins (count + 2), and the log position to continue from, None at the end.

    Args:
        span: Bins; the width is at least the precision, and the start is that of a slot.
        pos: None in the first call, then the returned position; the result is a correction then.
    """
    bins = span.empty()
    if pos is None:
        yield from _add_pending(timers, span, bins)
        pos = timers.units.log.min_pos
    return bins, _move_rolled(timers, span, bins, pos)


def of_slots(timers: TimerStore, span: Span) -> Steps[Bins]:
    """Return the bins (count + 2) with rolling timers in their current slot.

    Timers after the last bin are not counted.
    """
    bins = span.empty()
    until_ms = span.from_ms + span.width_ms * span.count
    until = None if timers.position.part is not None else until_ms
    yield from _add_pending(timers, span, bins, until)
    return bins


def _add_pending(
    timers: TimerStore, span: Span, bins: Bins, until_ms: int | None = None
) -> Steps[None]:
    """Add the near stage, the slots that are not staged, and the rest of a partly staged slot."""
    position, precision_ms = timers.position, timers.config.precision_ms
    staged_ms, is_in_part = position.staged_ms, position.part is not None
    in_slots = timers.counts.total - len(timers.stage)
    for rows in timers.stage.pending_rows():
        bins += span.count_due(rows["due_ms"])
    former = int(bins.sum())
    from_ms = staged_ms + (precision_ms if is_in_part else 0)
    wheel = timers.units.wheel
    yield from wheel.add_to_bins(bins, span.from_ms, span.width_ms, from_ms, until_ms)
    if is_in_part:
        left = in_slots - (int(bins.sum()) - former)
        bins[span.bins_of(np.array(staged_ms))] += max(left, 0)


def _move_rolled(timers: TimerStore, span: Span, bins: Bins, pos: int) -> int | None:
    log, position, precision_ms = timers.units.log, timers.position, timers.config.precision_ms
    # While a slot is being rolled, its timers with two units are not known: all count in the slot.
    first_ms = position.staged_ms + (precision_ms if timers.dequeue.is_rolling else 0)
    last = position.part or (-1, -1)
    numbers = np.array([span.from_ms, span.width_ms, precision_ms, first_ms, *last], np.int64)
    skip, left = timers.settled_timers.offsets, SCAN_UNITS
    for file in list(log.files):
        start, file_end = max(pos, file.unrolled_end), log.end_in(file)
        if start >= file_end:
            continue
        end = min(file_end, start + left * UNIT_BYTES)
        file.will_read(start, min(file_end, end + SCAN_UNITS * UNIT_BYTES))
        moved = kernels.move_rolled(file.data, file.base, (start, end), numbers, skip, bins)
        if not moved and start <= file.unrolled_end:
            file.unrolled_end = end  # its units do not begin to roll later
        left -= (end - start) // UNIT_BYTES
        if not left:
            return end
    return None
