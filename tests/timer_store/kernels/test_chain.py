"""Walks along chains compared with lists, over valid and damaged units."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import naive_timer_log as naive
from tests.support.naive_timer_log import Unit, columns, is_plain_marker, staged
from timer_store import layout
from timer_store.kernels import chain
from timer_store.log.units import new_walk

BASE, PRECISION, WINDOW = 2_600, 1_000, 60_000
TICKS = (1_700_000_000, 1_700_000_001)
WIDTH = 52
numbers = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def files(draw: Callable[..., Any], damage: bool = True) -> bytes:
    """Return the bytes of a file with chained units of two slots, some damaged, and its end."""
    count = draw(st.integers(1, 14))
    newest = dict.fromkeys(TICKS, -1)
    data = b""
    for n in range(count):
        tick = draw(st.sampled_from(TICKS))
        slot_ms = tick * PRECISION + draw(st.sampled_from([0, 1, 999]))
        magic = draw(st.sampled_from([1, 1, 1, 3, 5, 7]))
        due_ms = draw(
            st.sampled_from(
                [0, -1, -2, -slot_ms, slot_ms + 1, slot_ms + 2, slot_ms, slot_ms + 60_001]
            )
        )
        phys = draw(st.integers(0, 9)) * 100 if draw(st.booleans()) else n * 100
        write_ms = slot_ms - draw(st.integers(-5_000, 5_000))
        unit = Unit(newest[tick], magic, write_ms, slot_ms - write_ms, phys, 99 + n, n - 3, due_ms)
        newest[tick] = BASE + len(data)
        data += unit.pack()
    data += draw(st.sampled_from([b"", b"\0" * 60, layout.BLANK.pack(16, 0, -875286124)]))
    if damage and draw(st.booleans()):
        torn = bytearray(data)
        at = draw(st.integers(0, count - 1)) * WIDTH
        kind = draw(st.sampled_from(["size", "prev", "magic", "slot", "byte"]))
        if kind == "prev":
            struct.pack_into(">q", torn, at + 4, draw(st.integers(BASE - 60, BASE + 900)))
        elif kind == "slot":
            struct.pack_into(">i", torn, at + 24, draw(st.integers(-9_999, 9_999)))
        elif kind == "byte":
            torn[draw(st.integers(0, count * WIDTH - 1))] ^= draw(st.integers(1, 255))
        else:
            struct.pack_into(
                ">i", torn, at + (0 if kind == "size" else 12), draw(st.integers(0, 99))
            )
        data = bytes(torn)
    return data


places = st.integers(0, 14).map(lambda n: BASE + n * WIDTH) | st.integers(BASE - 60, BASE + 900)
offsets = st.sets(st.integers(0, 14)).map(lambda s: np.array(sorted(s), np.int64) * 100)


def array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def cursors_of(*items: tuple[int, int]) -> npt.NDArray[np.void]:
    cursors = np.zeros(len(items), layout.CURSOR)
    for cursor, (tick, pos) in zip(cursors, items, strict=True):
        cursor["tick"], cursor["pos"] = tick, pos
    return cursors


@given(files(), places)
def test_faults(data: bytes, pos: int) -> None:
    at = max(pos, BASE) - BASE
    assert chain.unit_fault(array(data), at, BASE + at) == naive.fault(data, BASE, BASE + at)
    for tick in TICKS:
        found = chain.chain_fault(array(data), at, BASE + at, tick, PRECISION)
        assert found == naive.fault(data, BASE, BASE + at, tick, PRECISION)


def test_a_cycle_is_a_fault() -> None:
    one = Unit(BASE + WIDTH, 1, TICKS[0] * PRECISION, 0, 0, 99, 0, 5)
    two = Unit(BASE, 1, TICKS[0] * PRECISION, 0, 100, 99, 0, 5)
    found, pos, fault = naive.follow(one.pack() + two.pack(), BASE, BASE + WIDTH, TICKS[0], 1_000)
    assert (len(found), pos, fault) == (1, BASE, chain.FAULT_PREV)
    walk, out = new_walk(BASE + WIDTH), np.zeros(9, layout.STAGED)
    none = np.empty(0, np.int64)
    data = array(one.pack() + two.pack() + b"\0" * 16)
    chain.collect(data, BASE, (TICKS[0], PRECISION, WINDOW), none, walk, out)
    assert walk[chain.WALK_FAULT] == chain.FAULT_PREV


# -- one chain ----------------------------------------------------------------------------------


def expected_rows(
    data: bytes, pos: int, tick: int, skip: list[int]
) -> tuple[list[tuple[int, ...]], int, int, tuple[int, int, bool]]:
    """Return the expected (rows oldest first, end of the walk, fault, flags)."""
    units, end, fault = naive.follow(data, BASE, pos, tick, PRECISION, window_ms=WINDOW)
    mixed = any(a[1].phys_offset <= b[1].phys_offset for a, b in pairwise(units))
    kept = [(at, unit) for at, unit in units if unit.due_ms != -1]
    settled = [unit.due_ms < 0 or unit.phys_offset in skip for _, unit in kept]
    rows = []
    for (at, unit), gone in zip(kept, settled, strict=True):
        row = staged(at, unit, PRECISION)
        rows.append((*row[:-1], layout.STAGED_SETTLED if gone else layout.STAGED_PENDING))
    markers = sum(
        is_plain_marker(unit) and not gone for (_, unit), gone in zip(kept, settled, strict=True)
    )
    return rows[::-1], end, fault, (sum(settled), markers, mixed)


@given(files(), places, st.sampled_from(TICKS), offsets, st.integers(1, 20))
def test_collect(data: bytes, pos: int, tick: int, skip: npt.NDArray[np.int64], room: int) -> None:
    rows, end, fault, flags = expected_rows(data, pos, tick, skip.tolist())
    walk, out = new_walk(pos), np.zeros(room, layout.STAGED)
    state = chain.collect(array(data), BASE, (tick, PRECISION, WINDOW), skip, walk, out)
    found = columns(out[room - walk[chain.WALK_ROWS] :])
    if state == chain.WALK_FULL:
        assert walk[chain.WALK_ROWS] == room
        assert found == rows[-room:]
        return
    assert found == rows
    assert (walk[chain.WALK_POS], walk[chain.WALK_FAULT]) == (end, fault)
    assert flags == tuple(walk[[chain.WALK_SETTLED, chain.WALK_MARKERS, chain.WALK_MIXED]].tolist())


# -- many chains --------------------------------------------------------------------------------


@given(files(), places, places, places)
def test_walk_back(data: bytes, first: int, second: int, limit_pos: int) -> None:
    cursors = cursors_of((TICKS[0], first), (TICKS[1], second))
    chain.walk_back(array(data), BASE, cursors, PRECISION, limit_pos)
    for cursor, tick, pos in zip(cursors, TICKS, (first, second), strict=True):
        _, end, fault = naive.follow(data, BASE, pos, tick, PRECISION, limit_pos)
        assert (cursor["pos"], cursor["fault"]) == (end, fault)


@given(files(), places, places)
def test_count_pending(data: bytes, first: int, second: int) -> None:
    cursors = cursors_of((TICKS[0], first), (TICKS[1], second))
    chain.count_pending(array(data), BASE, cursors, PRECISION)
    for cursor, tick, pos in zip(cursors, TICKS, (first, second), strict=True):
        units, end, fault = naive.follow(data, BASE, pos, tick, PRECISION)
        pending = sum(unit.due_ms >= 0 and not unit.is_marker for _, unit in units)
        assert (cursor["pos"], cursor["fault"], cursor["count"]) == (end, fault, pending)


@given(files(), places)
def test_check_units(data: bytes, pos: int) -> None:
    cursors = cursors_of(*[(tick, pos) for tick in TICKS])
    chain.check_units(array(data), BASE, cursors, PRECISION)
    inside = 0 <= pos - BASE < len(data)
    for cursor, tick in zip(cursors, TICKS, strict=True):
        assert cursor["fault"] == (naive.fault(data, BASE, pos, tick, PRECISION) if inside else 0)
        assert cursor["pos"] == pos


@given(files(), places, places, offsets, offsets)
def test_match(
    data: bytes, first: int, second: int, some: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> None:
    cursors = cursors_of((TICKS[0], first), (TICKS[1], second))
    wanted = np.concatenate([some, others])
    cursors["first"], cursors["end"] = [0, some.size], [some.size, wanted.size]
    cursors["count"] = [some.size, others.size]
    found = np.full(wanted.size, -1, np.int64)
    chain.match(array(data), BASE, cursors, PRECISION, wanted, found)
    hits = []
    for tick, pos, mine in zip(TICKS, (first, second), (some, others), strict=True):
        units, _, _ = naive.follow(data, BASE, pos, tick, PRECISION)
        for offset in mine.tolist():
            hits.append(
                next((p for p, u in units if u.phys_offset == offset and u.due_ms >= 0), -1)
            )
    assert found.tolist() == hits


@given(files(), st.lists(st.tuples(st.integers(0, 14), st.sampled_from(TICKS)), max_size=9))
def test_find_in_log_order(data: bytes, requested: list[tuple[int, int]]) -> None:
    wanted = np.array([n * 100 for n, _ in requested], np.int64)
    ticks = np.array([tick for _, tick in requested], np.int64)
    count = len(data) // WIDTH
    found = np.full(wanted.size, -1, np.int64)
    chain.find_in_log_order(
        array(data), BASE, BASE + count * WIDTH, wanted, ticks, PRECISION, found
    )
    sizes = [int.from_bytes(data[n * WIDTH : n * WIDTH + 4], "big") for n in range(count)]
    units = [naive.unpack(data, n * WIDTH) if sizes[n] == WIDTH else None for n in range(count)]
    good = {}
    for n, unit in enumerate(units):
        pos = BASE + n * WIDTH
        if unit is not None and unit.due_ms >= 0:
            for tick in TICKS:
                if not naive.fault(data, BASE, pos, tick, PRECISION):
                    good.setdefault((unit.phys_offset, tick), []).append(pos)
    records = [unit.phys_offset for unit in units if unit is not None]
    ordered = None not in units and records == sorted(set(records))
    for n, (offset, tick) in enumerate(zip(wanted.tolist(), ticks.tolist(), strict=True)):
        places_ = good.get((offset, tick), [-1])
        assert found[n] in places_ if ordered else found[n] in [*places_, -1]


# -- columns ------------------------------------------------------------------------------------


def logged(pos: int, unit: Unit) -> tuple[int, ...]:
    return (
        pos,
        unit.prev_pos,
        unit.write_ms,
        unit.slot_ms,
        unit.phys_offset,
        unit.due_ms,
        unit.record_size,
        unit.topic_hash,
        unit.magic,
        0,
    )


@given(files(), st.integers(0, 20), st.integers(1, 20))
def test_units_as_columns(data: bytes, room: int, end: int) -> None:
    leading = []
    while not naive.fault(data, BASE, BASE + len(leading) * WIDTH):
        leading.append(naive.unpack(data, len(leading) * WIDTH))
    out = np.zeros(room, layout.LOGGED)
    count = chain.read_units(array(data), BASE, BASE, BASE + end * WIDTH, out)
    expected = [logged(BASE + n * WIDTH, unit) for n, unit in enumerate(leading)]
    assert columns(out[:count]) == expected[: min(room, end)]


@given(files(), st.lists(places, max_size=9))
def test_stage_at(data: bytes, positions: list[int]) -> None:
    out = np.zeros(len(positions), layout.STAGED)
    count = chain.stage_at(array(data), BASE, np.array(positions, np.int64), PRECISION, out)
    good = [p >= BASE and not naive.fault(data, BASE, p) for p in positions]
    assert count == sum(good)
    for row, pos, fine in zip(out, positions, good, strict=True):
        unit = naive.unpack(data, pos - BASE) if fine else None
        expected = staged(pos, unit, PRECISION) if unit else (0,) * 8
        if unit and expected[0] < 0:
            expected = (*expected[:-1], layout.STAGED_SETTLED)
        assert columns(out[out["pos"] == pos][:1] if fine else [row]) == [expected]


@given(files(), st.lists(places.filter(lambda p: p >= BASE), max_size=9), st.booleans())
def test_settle(data: bytes, positions: list[int], copied: bool) -> None:
    due, ticks = np.zeros(len(positions), np.int64), np.zeros(len(positions), np.int64)
    places_ = np.array(positions, np.int64)
    state = chain.settle(array(data), BASE, places_, PRECISION, copied, due, ticks)
    wrong = next((n for n, p in enumerate(positions) if naive.fault(data, BASE, p)), None)
    if wrong is not None:
        assert state == -1 - wrong
        return
    for n, pos in enumerate(positions):
        unit = naive.unpack(data, pos - BASE)
        if unit.due_ms < 0:
            assert (due[n], ticks[n]) == (unit.due_ms, 0)
        else:
            assert due[n] == (-1 if copied else min(-unit.due_ms, -unit.slot_ms - 2))
            assert ticks[n] == (0 if unit.is_marker else unit.slot_ms // PRECISION)
    assert state == sum(naive.unpack(data, p - BASE).due_ms >= 0 for p in positions)


@pytest.mark.parametrize("value", [-1, 0, 1, 2, 3, 4, 5, 9])
def test_find_sorted(value: int) -> None:
    values = np.array([9, 1, 3, 3, 5, 0], np.int64)
    found = chain.find_sorted(values, 1, 5, value)
    assert found == ([9, 1, 3, 3, 5].index(value) if value in (1, 3, 5) else -1)
