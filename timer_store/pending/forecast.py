"""Forecast: pending timers by due time, from the wheel's slots and the units that roll.

    | before | bin 1 | bin 2 | ... | bin n | later |      bin k: due after its start, up to its end
           from_ms  + width_ms

A slot's number counts a timer that only passes through it; the scan over the timer log puts such a
timer where it is due. It goes through the log in bounded pieces: the first piece answers with the
bins of the slots, every further one with corrections to be added, and with where to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from timer_store.kernels import forecast as kernels
from timer_store.layout import UNIT_BYTES

if TYPE_CHECKING:
    from timer_store.store import TimerStore

BINS_MAX = 10_000
SCAN_UNITS = 1 << 20  # looked at in one piece
Bins = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """The bins asked for: `count` of `width_ms`, from `from_ms` on, where a slot begins."""

    from_ms: int
    width_ms: int
    count: int


def forecast(timers: TimerStore, span: Span, pos: int | None = None) -> tuple[Bins, int | None]:
    """Return the bins (count + 2), and the log position to go on from; None: that was all.

    Args:
        span: its width is at least the precision.
        pos: None at first, then what was returned: the bins are corrections then.
    """
    bins: Bins = np.zeros(span.count + 2, np.int64)
    if pos is None:
        _add_staged(timers, span, bins)
        _add_slots(timers, span, bins)
        pos = timers.units.log.min_pos
    return bins, _move_rolled(timers, span, bins, pos)


def of_slots(timers: TimerStore, span: Span) -> Bins:
    """Return the bins (count + 2) with rolling timers where they are looked at next.

    What is later than the bins is not counted.
    """
    bins: Bins = np.zeros(span.count + 2, np.int64)
    _add_staged(timers, span, bins)
    until_ms = span.from_ms + span.width_ms * span.count
    _add_slots(timers, span, bins, None if timers.position.part is not None else until_ms)
    return bins


def _which(times_ms: Any, span: Span) -> Any:
    return np.clip((times_ms - span.from_ms) // span.width_ms + 1, 0, span.count + 1)


def _add_staged(timers: TimerStore, span: Span, bins: Bins) -> None:
    for rows in timers.stage.waiting():
        bins += np.bincount(_which(rows["due_ms"] - 1, span), minlength=bins.size)


def _add_slots(timers: TimerStore, span: Span, bins: Bins, until_ms: int | None = None) -> None:
    """Add what the slots hold that are not staged; of one that is in parts, what is left."""
    position, precision_ms = timers.position, timers.config.precision_ms
    from_ms = position.staged_ms + (precision_ms if position.part is not None else 0)
    beyond = 0
    for slots in timers.units.wheel.live_parts(from_ms, until_ms):
        num = np.maximum(slots["num"], 0)
        places = _which(slots["tick"] * precision_ms, span)
        bins += np.bincount(places, num, bins.size).astype(np.int64)
        beyond += int(num.sum())
    if position.part is not None:
        left = timers.counts.total - len(timers.stage) - beyond
        bins[_which(position.staged_ms, span)] += max(left, 0)


def _move_rolled(timers: TimerStore, span: Span, bins: Bins, pos: int) -> int | None:
    log, position = timers.units.log, timers.position
    numbers = np.array(
        [span.from_ms, span.width_ms, timers.config.precision_ms, position.staged_ms], np.int64
    )
    skip, left = timers.claims.offsets, SCAN_UNITS
    for file in list(log.files):
        start, file_end = max(pos, file.base), log.end_in(file)
        if start >= file_end:
            continue
        end = min(file_end, start + left * UNIT_BYTES)
        kernels.move_rolled(file.data, file.base, (start, end), numbers, skip, bins)
        left -= (end - start) // UNIT_BYTES
        if not left:
            return end
    return None
