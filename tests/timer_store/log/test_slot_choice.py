"""Choice of a timer's slot, and its recovery from the due time alone."""

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
        (5_001, 2_000, 3_000, 5_000),  # its own slot
        (5_000, 2_000, 3_000, 4_999),  # an exact second belongs to the slot before, as with Apache
        (2_500, 2_000, 3_000, 2_499),  # staged already: its own slot, which is read after a crash
        (1_500, 2_000, 3_000, 2_000),  # overdue: the slot being read
        (12_999, 2_000, 3_000, 12_998),  # the last time inside the window
        (13_001, 2_000, 3_000, 3_000),  # one window ahead: rolls in the next slot
        (25_001, 2_000, 3_000, 5_000),  # two windows
    ],
)
def test_slot_of_a_timer(due_ms: int, read_ms: int, staged_ms: int, slot_ms: int) -> None:
    assert slot_of(due_ms, read_ms, staged_ms) == slot_ms


@given(
    due_ms=st.integers(1, 500_000),
    read_ms=st.integers(0, 100).map(lambda n: n * SECOND),
    staged=st.integers(0, 5),
    later=st.integers(0, 100),
)
def test_a_unit_is_found_from_its_due_time(
    due_ms: int, read_ms: int, staged: int, later: int
) -> None:
    """While the read time has not passed the slot it was put into."""
    slot_ms = slot_of(due_ms, read_ms, read_ms + staged * SECOND)
    now_ms = min(read_ms + later * SECOND, slot_ms - slot_ms % SECOND)
    found = candidates(np.array([due_ms]), max(now_ms, read_ms), (0, -1), WINDOW)
    if due_ms - 1 >= read_ms:
        assert slot_ms // SECOND in [int(at[0]) // SECOND for at in found]


@given(due_ms=st.integers(1, 500_000), read=st.integers(0, 100), staged=st.integers(0, 5))
def test_a_slot_is_before_the_due_time_and_inside_the_window(
    due_ms: int, read: int, staged: int
) -> None:
    read_ms, staged_ms = read * SECOND, (read + staged) * SECOND
    slot_ms = slot_of(due_ms, read_ms, staged_ms)
    assert slot_ms <= max(due_ms - 1, read_ms)
    assert read_ms <= slot_ms < staged_ms + WINDOW
    assert (due_ms - 1 - slot_ms) % WINDOW == 0 or slot_ms == read_ms


@given(
    due_ms=st.integers(1, 500_000),
    read=st.integers(0, 100),
    loaded=st.integers(0, 100),
    before=st.integers(0, 100),
)
def test_a_unit_is_found_although_slots_are_loaded_far_ahead(
    due_ms: int, read: int, loaded: int, before: int
) -> None:
    """A timer that is rolled with the loaded slots, or waits in its own slot to be delivered.

    The slot after the loaded ones may be rolled in part. The last run has loaded others.
    """
    read_ms = read * SECOND
    loaded_ms = (read + loaded) * SECOND, (read + before) * SECOND
    found = candidates(np.array([due_ms]), read_ms, loaded_ms, WINDOW)
    for end_ms in loaded_ms:
        for start_ms in (end_ms, end_ms + SECOND):
            assert slot_of(due_ms, read_ms, start_ms) in [int(at[0]) for at in found]
    assert len(found) == 2 + 2 * sum(each - read_ms >= WINDOW for each in set(loaded_ms))
