"""Counters and histograms that request handlers update and /metrics reads.

Clients choose the label values, so the number of keys is bounded; beyond the bound, values are
counted under a key of empty labels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

KEYS_MAX: Final = 10_000
CREATE_BOUNDS_MS: Final = (10, 100, 1_000, 3_000, 5_000)
RPC_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)

Labels = tuple[Any, ...]
Buckets = list[tuple[str, float]]


class Counts:
    """Counter by label values."""

    def __init__(self) -> None:
        self._counts: dict[Labels, int] = {}

    def add(self, *labels: object, count: int = 1) -> None:
        """Add to the counter of these label values."""
        key = _limited_key(self._counts, labels)
        self._counts[key] = self._counts.get(key, 0) + count

    def __iter__(self) -> Iterator[tuple[Labels, int]]:
        return iter(list(self._counts.items()))


class Observations:
    """Histogram by label values.

    Args:
        bounds: Upper bounds of the buckets, ascending, without infinity.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts: dict[Labels, list[float]] = {}  # one count per bucket, then the sum

    def add(self, value: float, *labels: object, count: int = 1) -> None:
        """Add `count` observations of one value."""
        counts = self._counts.get(labels)
        if counts is None:
            key = _limited_key(self._counts, labels)
            counts = self._counts.setdefault(key, [0.0] * (len(self._bounds) + 2))
        counts[bisect_left(self._bounds, value)] += count
        counts[-1] += value * count

    def __iter__(self) -> Iterator[tuple[Labels, Buckets, float]]:
        """Yield label values, cumulative buckets in prometheus-client's form, and the sum."""
        for labels, counts in list(self._counts.items()):
            yield labels, cumulative(self._bounds, counts[:-1]), counts[-1]


def cumulative(bounds: Sequence[float], counts: Sequence[float]) -> Buckets:
    """Return the cumulative buckets of a histogram.

    Args:
        counts: One count for each bound, then one for values above the last.
    """
    buckets, total = [], 0.0
    for bound, count in zip((*map(float, bounds), float("inf")), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets


def _limited_key(keys: Mapping[Labels, object], labels: Labels) -> Labels:
    if labels in keys or len(keys) < KEYS_MAX:
        return labels
    return ("",) * len(labels)
