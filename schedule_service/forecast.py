"""Forecast: pending level messages by due time.

Due times do not decrease within a segment of a level's queue, so a range of units whose ends are in
the same bin is counted without reading the units between them. Other ranges are halved, down to
pieces that are read as a whole. The work depends on the number of bins, not on that of messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from delayed_delivery.forecast_bins import Bins, Span, forecast_response
from delayed_delivery.steps import Steps
from schedule_service.cursor import LevelCursor
from schedule_service.level import Level
from schedule_service.queues import ScheduleQueues

PIECE_UNITS: Final = 4_096  # units read, or settled units visited, in one step
TIME_MS_MAX: Final = (1 << 63) - 1


def forecast_view(
    queues: ScheduleQueues, levels: Mapping[int, Level], fields: Mapping[str, str], now_ms: int
) -> Steps[dict[str, object]]:
    """Return the pending messages of all levels by due time.

    Args:
        fields: from_ms, width_ms, count; each may be missing.
    Raises:
        RequestError: A field is invalid.
    """
    span = Span.of(fields, now_ms, time_ms_max=TIME_MS_MAX)
    bins = span.empty()
    for level in list(levels.values()):
        for segment in list(level.cursor.segments):
            ranges = [(segment.appended, segment.end)] if segment.pending else []
            while ranges:
                ranges += _count(queues, level.cursor, ranges.pop(), span, bins)
                yield
    return forecast_response(span, bins, now_ms=now_ms, pending=int(bins.sum()))


def _count(
    queues: ScheduleQueues, cursor: LevelCursor, part: tuple[int, int], span: Span, bins: Bins
) -> list[tuple[int, int]]:
    """Add the pending units of a range to the bins; return the ranges that are not counted yet."""
    first, end = part
    if min(len(cursor.settled), end - first) <= PIECE_UNITS:
        index = _bin_at(queues, cursor.level, first, span)
        if index is not None and index == _bin_at(queues, cursor.level, end - 1, span):
            bins[index] += end - first - cursor.settled_count(first, end)
            return []
    if end - first > PIECE_UNITS:
        middle = (first + end) // 2
        return [(middle, end), (first, middle)]
    units = queues.units(cursor.level, first, end - first)
    if not units.size:  # retention has removed them
        return []
    after = first + int(units.size)
    settled = cursor.settled_in(first, int(units.size))
    units = units if settled is None else units[~settled]
    bins += span.count_due(queues.due_ms(cursor.level, units))
    return [(after, end)] if after < end else []


def _bin_at(queues: ScheduleQueues, level: int, offset: int, span: Span) -> int | None:
    """Return the bin of the unit at an offset; None: there is no unit."""
    units = queues.units(level, offset, 1)
    return int(span.bins_of(queues.due_ms(level, units) - 1)[0]) if units.size else None
