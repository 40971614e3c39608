"""Rows of lists of pending timers: their order, and the removal of settled and doubled ones."""

from __future__ import annotations

import numpy as np

from message_store.ranges import is_among
from timer_store.layout import Rows

LISTED = np.dtype(
    [
        ("due_ms", "i8"),
        ("phys_offset", "i8"),
        ("slot_ms", "i8"),
        ("topic_hash", "i4"),
        ("staged", "?"),
    ],
    align=True,
)


def listed_rows(rows: Rows, *, staged: bool) -> Rows:
    """Return (n,) LISTED of timers, with slot 0."""
    out = np.zeros(rows.size, LISTED)
    for column in ("due_ms", "phys_offset", "topic_hash"):
        out[column] = rows[column]
    out["staged"] = staged
    return out


def without_settled(rows: Rows) -> Rows:
    """Return timers without those that have a settled unit in the same slot."""
    is_settled = rows["due_ms"] < 0
    if not is_settled.any():
        return rows
    order = np.lexsort((rows["phys_offset"], rows["slot_ms"]))
    rows, is_settled = rows[order], is_settled[order]
    numbers = np.cumsum(
        (np.diff(rows["phys_offset"], prepend=-1) != 0)
        | (np.diff(rows["slot_ms"], prepend=-1) != 0)
    )
    settled_numbers = np.unique(numbers[is_settled])
    return np.asarray(rows[~is_among(numbers, settled_numbers)])


def without_duplicates(rows: Rows) -> Rows:
    """Return timers slot by slot in due order, each once."""
    rows = rows[np.lexsort((rows["phys_offset"], rows["due_ms"], rows["slot_ms"]))]
    second = np.zeros(rows.size, np.bool_)
    second[1:] = rows["phys_offset"][1:] == rows["phys_offset"][:-1]
    return rows[~second]


def first_rows(rows: Rows, count: int) -> Rows:
    """Return the `count` rows that are due first, by (due_ms, phys_offset), in order."""
    if rows.size > count:
        limit_ms = np.partition(rows["due_ms"], count - 1)[count - 1]
        sooner, same = rows[rows["due_ms"] < limit_ms], rows[rows["due_ms"] == limit_ms]
        left = count - sooner.size
        if left < same.size:
            last = np.partition(same["phys_offset"], left - 1)[left - 1]
            same = same[same["phys_offset"] <= last]
        rows = np.concatenate([sooner, same])
    return rows[np.lexsort((rows["phys_offset"], rows["due_ms"]))]
