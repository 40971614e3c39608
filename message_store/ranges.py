"""Half-open offset ranges (sorted, disjoint, not empty) and arrays of them. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges sorted and disjoint; adjacent ranges are joined."""
    merged: list[Range] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged


def plus(ranges: Sequence[Range], more: Iterable[Range]) -> list[Range]:
    """Return the union of both."""
    return joined([*ranges, *more])


def minus(ranges: Sequence[Range], cuts: Sequence[Range]) -> list[Range]:
    """Return `ranges` without `cuts` (each sorted, disjoint)."""
    remaining: list[Range] = []
    position = 0
    for first, end in ranges:
        while position < len(cuts) and cuts[position][1] <= first:
            position += 1
        number = position
        while number < len(cuts) and cuts[number][0] < end:
            low, high = cuts[number]
            if first < low:
                remaining.append((first, low))
            first = max(first, high)
            number += 1
        if first < end:
            remaining.append((first, end))
    return remaining


def common(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the intersection of both (each sorted, disjoint)."""
    return minus(ranges, minus(ranges, others))


def within(ranges: Iterable[Range], first: int, end: int) -> list[Range]:
    """Return the intersection of ranges with first..end."""
    cut = ((max(low, first), min(high, end)) for low, high in ranges)
    return [(low, high) for low, high in cut if low < high]


def mask_of(ranges: Iterable[Range], first: int, end: int) -> npt.NDArray[np.bool_]:
    """Return which offsets of first..end are in one of the ranges, (end - first,) b1."""
    mask = np.zeros(end - first, np.bool_)
    for low, high in within(ranges, first, end):
        mask[low - first : high - first] = True
    return mask


def is_among(
    values: npt.NDArray[np.int64], sorted_values: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which values are in a sorted array (`np.isin` sorts all of it at each call)."""
    if not sorted_values.size:
        return np.zeros(values.size, np.bool_)
    spots = np.minimum(np.searchsorted(sorted_values, values), sorted_values.size - 1)
    return np.asarray(sorted_values[spots] == values)


def is_in(values: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which values are in an array (`np.isin` hashes: see `distinct`)."""
    return is_among(values, np.sort(others))


def distinct(*arrays: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the values of arrays ascending, each once.

    Like `np.unique`, whose hash table takes two hundred times as long for millions of offsets that
    are multiples of one number.
    """
    values = np.sort(np.concatenate(arrays))
    if values.size < 2:
        return values
    return np.asarray(values[np.concatenate([[True], values[1:] != values[:-1]])])
