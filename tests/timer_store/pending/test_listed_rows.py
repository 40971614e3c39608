"""Rows of lists of pending timers."""

from __future__ import annotations

import numpy as np

from timer_store.pending.listed_rows import LISTED, first_rows


def test_first_rows_equal_a_sort() -> None:
    choose = np.random.default_rng(1)
    for _ in range(300):
        rows = np.zeros(choose.integers(1, 40), LISTED)
        rows["due_ms"] = choose.integers(1, 6, rows.size)
        rows["phys_offset"] = choose.permutation(rows.size)
        count = int(choose.integers(1, 45))
        expected = sorted(zip(rows["due_ms"], rows["phys_offset"], strict=True))[:count]
        found = first_rows(rows, count)
        assert list(zip(found["due_ms"], found["phys_offset"], strict=True)) == expected
