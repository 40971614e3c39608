"""Where a timer waits, and that it is found there from its due time alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_store.log.slot_choice import candidates, slot_times

SECOND, WINDOW = 1_000, 10_000


def slot_of(due_ms: int, read_ms: int, staged_ms: int) -> int:
    return int(slot_times(np.array([due_ms]), read_ms, staged_ms, WINDOW)[0])


@pytest.mark.parametrize(
    ("due_ms", "read_ms", "staged_ms", "slot_ms"),
    [
        (5_001, 2_000, 3_000, 5_000),  # its own
        (5_000, 2_000, 3_000, 4_999),  # an exact second belongs to the slot before, as Apache's
        (2_500, 2_000, 3_000, 2_499),  # staged already: its own slot, read after a crash
        (1_500, 2_000, 3_000, 2_000),  # overdue: the slot that is read now
        (12_999, 2_000, 3_000, 12_998),  # the last moment inside the window
        (13_001, 2_000, 3_000, 3_000),  # one window ahead: looked at again now
        (25_001, 2_000, 3_000, 5_000),  # two windows
    ],
)
def test_a_timer_is_in_its_slot_or_a_window_before(due_ms, read_ms, staged_ms, slot_ms):
    assert slot_of(due_ms, read_ms, staged_ms) == slot_ms


@given(
    due_ms=st.integers(1, 500_000),
    read_ms=st.integers(0, 100).map(lambda n: n * SECOND),
    staged=st.integers(0, 5),
    later=st.integers(0, 100),
)
def test_a_unit_is_found_from_its_due_time(due_ms, read_ms, staged, later):
    """As long as the read time has not passed the slot it was put in."""
    slot_ms = slot_of(due_ms, read_ms, read_ms + staged * SECOND)
    now_ms = min(read_ms + later * SECOND, slot_ms - slot_ms % SECOND)
    found = candidates(np.array([due_ms]), max(now_ms, read_ms), WINDOW)
    if due_ms - 1 >= read_ms:
        assert slot_ms // SECOND in [int(at[0]) // SECOND for at in found]


@given(due_ms=st.integers(1, 500_000), read=st.integers(0, 100), staged=st.integers(0, 5))
def test_a_slot_is_never_after_the_due_time_nor_a_window_away(due_ms, read, staged):
    read_ms, staged_ms = read * SECOND, (read + staged) * SECOND
    slot_ms = slot_of(due_ms, read_ms, staged_ms)
    assert slot_ms <= max(due_ms - 1, read_ms)
    assert read_ms <= slot_ms < staged_ms + WINDOW
    assert (due_ms - 1 - slot_ms) % WINDOW == 0 or slot_ms == read_ms
