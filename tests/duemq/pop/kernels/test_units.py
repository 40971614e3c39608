"""Number of units of one pop, against a twin that adds the units one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.pop.kernels.units import HAS_GAP, count_units
from duemq.pull.layout import BLANK_UNIT_SIZE
from message_store.layout import UNIT

SIZES = st.integers(1, 50) | st.just(BLANK_UNIT_SIZE)
UNITS = st.lists(st.tuples(st.integers(0, 30), SIZES), min_size=1, max_size=8)


def naive_count(
    units: list[tuple[int, int]], min_log_offset: int, count_max: int, bytes_max: int
) -> int:
    taken = []
    for log_offset, size in units:
        if log_offset < min_log_offset or size == BLANK_UNIT_SIZE:
            return HAS_GAP
        if len(taken) == count_max or (taken and sum(taken) + size > bytes_max):
            break
        taken.append(size)
    return len(taken)


@given(UNITS, st.integers(0, 10), st.integers(1, 8), st.integers(0, 120))
def test_counts_equal_those_of_the_twin(
    units: list[tuple[int, int]], min_log_offset: int, count_max: int, bytes_max: int
) -> None:
    rows = np.zeros(len(units), UNIT)
    rows["phys_offset"], rows["size"] = zip(*units, strict=True)
    found = count_units(rows, min_log_offset, count_max, bytes_max)
    assert found == naive_count(units, min_log_offset, count_max, bytes_max)
