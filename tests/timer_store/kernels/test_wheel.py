"""The wheel's slots compared with a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naive_timer_log import columns
from timer_store import layout
from timer_store.kernels import forecast as counts
from timer_store.kernels import wheel as kernels
from timer_store.layout import SLOT_BYTES, WHEEL_BYTES, WHEEL_SLOTS

PAGES = WHEEL_BYTES // kernels.PAGE_BYTES
WHEEL = np.zeros(WHEEL_BYTES, np.uint8)
SLOTS = WHEEL.view(layout.TIMER_SLOT)
FIRST = (
    1_700_000_000 - 1_700_000_000 % WHEEL_SLOTS + WHEEL_SLOTS - 3
)  # wraps around after three slots
ticks = st.integers(FIRST, FIRST + 300) | st.integers(FIRST, FIRST + WHEEL_SLOTS - 1)
slots = st.tuples(st.integers(-1, 5_000), st.integers(-1, 5_000), st.integers(-9, 99))
wheels = st.dictionaries(ticks, slots, max_size=12)


@contextmanager
def wheel_of(slots_: dict[int, tuple[int, int, int]]) -> Iterator[np.ndarray]:
    """Fill the wheel and return its pages and data; clear it afterwards."""
    pages = np.zeros(PAGES, np.uint8)
    try:
        for tick, (first, last, num) in slots_.items():
            at = tick % WHEEL_SLOTS
            SLOTS[at] = (tick, first, last, num, 77)
            pages[at * SLOT_BYTES // kernels.PAGE_BYTES] = kernels.PAGE_USED
        yield pages
    finally:
        for page in np.flatnonzero(pages):
            WHEEL[page * kernels.PAGE_BYTES : (page + 1) * kernels.PAGE_BYTES] = 0


def live(slots_: dict[int, tuple[int, int, int]], first: int, count: int) -> list[tuple[int, ...]]:
    return [
        (tick, *slots_[tick], 77)
        for tick in sorted(slots_)
        if first <= tick < first + count and slots_[tick][1] >= 0
    ]


@given(wheels, ticks, st.integers(0, 400) | st.just(WHEEL_SLOTS), st.integers(1, 6))
def test_live_slots(
    slots_: dict[int, tuple[int, int, int]], first: int, count: int, room: int
) -> None:
    expected = live(slots_, first, count)
    with wheel_of(slots_) as pages:
        tick = kernels.next_live(WHEEL, pages, first, count)
        assert tick == (expected[0][0] if expected else -1)
        found, at, left = [], first, count
        while left:
            out = np.zeros(room, layout.SLOT)
            n, looked_at = kernels.live_slots(WHEEL, pages, at, left, out)
            assert n == room or looked_at == left
            found += columns(out[:n])
            at, left = at + looked_at, left - looked_at
        assert found == expected


@given(wheels, ticks, st.integers(0, 400) | st.just(WHEEL_SLOTS), st.integers(-300, 300))
def test_counts_of_slots(
    slots_: dict[int, tuple[int, int, int]], first: int, count: int, start: int
) -> None:
    expected = [
        (tick, num)
        for tick, (_, last, num) in sorted(slots_.items())
        if first <= tick < first + count and last >= 0 and num > 0
    ]
    from_ms, width_ms = (first + start) * 500, 7_000
    bins, naive = np.zeros(6, np.int64), [0] * 6
    for tick, num in expected:
        index = 0
        while index < 5 and tick * 500 >= from_ms + index * width_ms:
            index += 1
        naive[index] += num
    fullest = np.zeros((3, 2), np.int64)
    with wheel_of(slots_) as pages:
        used = full = 0
        middle = first + count // 3
        for span in ((first, middle), (middle, first + count)):
            counts.bin_slots(WHEEL, pages, span, (from_ms, width_ms, 500), bins)
            part = counts.fullest_slots(WHEEL, pages, span, 50, fullest)
            used, full = used + part[0], full + part[1]
    assert bins.tolist() == naive
    assert (used, full) == (len(expected), sum(num >= 50 for _, num in expected))
    top = sorted(((num, tick) for tick, num in expected), reverse=True)[:3]
    assert [tuple(row) for row in fullest.tolist()] == [*top, *[(0, 0)] * (3 - len(top))]


@given(wheels, st.integers(FIRST - 5, FIRST + 400))
def test_stray_slots(slots_: dict[int, tuple[int, int, int]], end_tick: int) -> None:
    with wheel_of(slots_) as pages:
        strays = [tick for tick in slots_ if tick >= end_tick]
        assert kernels.stray_slots(WHEEL, pages, end_tick) == len(strays)


@given(
    wheels, st.lists(ticks | ticks.map(lambda t: t - WHEEL_SLOTS) | st.just(0)), st.integers(-2, 2)
)
def test_add_num(slots_: dict[int, tuple[int, int, int]], requested: list[int], by: int) -> None:
    with wheel_of(slots_) as pages:
        kernels.add_num(WHEEL, pages, np.array(requested, np.int64), by)
        changed = set()
        for tick, (first, last, num) in slots_.items():
            expected = num + by * requested.count(tick)
            assert tuple(SLOTS[tick % WHEEL_SLOTS]) == (tick, first, last, expected, 77)
            if tick in requested:
                changed.add(tick % WHEEL_SLOTS // kernels.PAGE_SLOTS)
        assert set(np.flatnonzero(pages & kernels.PAGE_CHANGED).tolist()) == changed


@given(wheels, st.integers(-1, 5_000), st.integers(0, 12))
def test_slots_after(slots_: dict[int, tuple[int, int, int]], log_end: int, room: int) -> None:
    with wheel_of(slots_) as pages:
        out = np.zeros(room, layout.CURSOR)
        count = kernels.slots_after(WHEEL, pages, log_end, out)
        expected = {(tick, last) for tick, (_, last, _) in slots_.items() if last >= log_end}
        assert count == len(expected)
        found = {(int(row["tick"]), int(row["pos"])) for row in out[: min(count, room)]}
        assert len(found) == min(count, room)
        assert found <= expected


@given(wheels, st.data())
def test_set_slots(slots_: dict[int, tuple[int, int, int]], data: st.DataObject) -> None:
    some = sorted(data.draw(st.sets(st.sampled_from(sorted(slots_))) if slots_ else st.just(set())))
    last = [data.draw(st.integers(-1, 9_000)) for _ in some]
    nums = [data.draw(st.integers(0, 99)) for _ in some]
    with wheel_of(slots_) as pages:
        kernels.set_slots(WHEEL, pages, *(np.array(x, np.int64) for x in (some, last, nums)))
        for tick, (first, old_last, old_num) in slots_.items():
            expected = (tick, first, old_last, old_num, 77)
            if tick in some:
                pos, num = last[some.index(tick)], nums[some.index(tick)]
                expected = (tick, min(first, pos), pos, num, 77) if pos >= 0 else (0, 0, 0, 0, 77)
            assert tuple(SLOTS[tick % WHEEL_SLOTS]) == expected


@given(ticks, st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 3), st.integers(-9, 99))
def test_put_slot(tick: int, longs: tuple[int, int, int], num: int) -> None:
    at = kernels.slot_at(tick)
    assert at == tick % WHEEL_SLOTS * SLOT_BYTES
    with wheel_of({tick: (1, 2, 3)}) as pages:
        kernels.put_slot(WHEEL, pages, at, *longs, num)
        assert tuple(SLOTS[at // SLOT_BYTES]) == (*longs, num, 77)
        assert pages[at // kernels.PAGE_BYTES] == kernels.PAGE_USED | kernels.PAGE_CHANGED
