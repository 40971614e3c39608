"""Forecast without kernels and searches: the twin of those of levels and timers."""

from __future__ import annotations

from collections.abc import Iterable

from delayed_delivery.forecast_bins import Span


def naive_forecast(due_ms: Iterable[int], span: Span) -> list[int]:
    """Count the messages one by one; return all bins, with those before and after the span."""
    bins = [0] * (span.count + 2)
    for due in due_ms:
        number = 0
        while number <= span.count and due > span.from_ms + number * span.width_ms:
            number += 1
        bins[number] += 1
    return bins
