"""Selection of the first timers of a slot: the kernel and a model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from tests.support import naive_timer_log as naive
from tests.support.naive_timer_log import is_plain_marker, staged
from tests.timer_store.kernels.test_chain import (
    BASE,
    PRECISION,
    TICKS,
    WINDOW,
    array,
    files,
    offsets,
    places,
)
from timer_store.kernels import chain, first_due
from timer_store.log.units import new_walk


@given(files(), places, st.sampled_from(TICKS), offsets, st.integers(1, 6), st.data())
def test_the_first_timers_after_a_given_one(
    data: bytes, pos: int, tick: int, skip: npt.NDArray[np.int64], room: int, drawn: st.DataObject
) -> None:
    units, end, fault = naive.follow(data, BASE, pos, tick, PRECISION, window_ms=WINDOW)
    timers = []
    for at, unit in units:
        row = staged(at, unit, PRECISION)
        if row[0] >= 0 and unit.phys_offset not in skip and not is_plain_marker(unit):
            timers.append(row[:3])
    after = drawn.draw(st.sampled_from([(-1, -1), *[row[:2] for row in timers]]))
    expected = sorted(row for row in timers if row[:2] > after)
    walk, heap = new_walk(pos), np.zeros((room, 3), np.int64)
    key = (tick, PRECISION, WINDOW)
    first_due.collect_first(array(data), BASE, key, after, skip, walk, heap)
    assert walk[chain.WALK_ROWS] == len(expected)
    assert (walk[chain.WALK_POS], walk[chain.WALK_FAULT]) == (end, fault)
    found = sorted(heap[: min(room, len(expected)), :2].tolist())
    assert found == [list(row[:2]) for row in expected[:room]]
