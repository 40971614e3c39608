"""Set of log offsets compared with Python's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timer_store.kernels import offset_set

OFFSETS = st.one_of(st.integers(0, 40), st.integers(0, (1 << 62) - 1))
PARTS = st.lists(st.lists(OFFSETS, max_size=8), max_size=6)


@given(parts=PARTS, requested=st.lists(OFFSETS, max_size=8), step=st.sampled_from((1, 8, 4_096)))
def test_offsets_equal_a_set(parts: list[list[int]], requested: list[int], step: int) -> None:
    slots, present = np.full(128, offset_set.EMPTY, np.int64), set[int]()
    for part in parts:
        offsets = np.array(part, np.int64) // step * step  # records are at multiples
        new = set(offsets.tolist()) - present
        assert offset_set.add_offsets(slots, offsets) == len(new)
        present |= new
    is_present = np.zeros(len(requested), np.bool_)
    offset_set.mark_present(slots, np.array(requested, np.int64), is_present)
    assert is_present.tolist() == [offset in present for offset in requested]
    larger = np.full(256, offset_set.EMPTY, np.int64)
    assert offset_set.add_offsets(larger, slots) == len(present)  # free slots are no offsets
    assert set(larger.tolist()) - {offset_set.EMPTY} == present
