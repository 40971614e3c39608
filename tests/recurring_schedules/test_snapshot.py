"""Snapshot of rows: what it reads is the state of its instant, whatever changes meanwhile."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recurring_schedules.snapshot import BLOCK_ROWS, PIECE_BLOCKS, RowSnapshot
from recurring_schedules.table import ROW

ROWS = 2 * PIECE_BLOCKS * BLOCK_ROWS + 5
SLOTS = st.lists(st.integers(0, ROWS + 2), max_size=8)


@given(st.lists(SLOTS, min_size=4, max_size=4))
def test_rows_are_those_of_the_start(changes: list[list[int]]) -> None:
    rows = np.zeros(ROWS + 3, ROW)  # the last ones were added later
    rows["planned_ms"] = np.arange(rows.size)
    expected = rows[:ROWS].tobytes()
    snapshot = RowSnapshot(rows[:ROWS])

    def change(slots: list[int]) -> None:
        for slot in slots:
            snapshot.before_change(slot)
            rows["planned_ms"][slot] += 1

    change(changes[0])
    content = b""
    for piece, slots in zip(snapshot.pieces(), changes[1:], strict=True):
        content += piece.tobytes()
        change(slots)
    assert content == expected
