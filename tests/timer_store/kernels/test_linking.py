"""Writing of units into log and wheel, and rebuilding of the wheel, compared with lists."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from tests.support import naive_timer_log as naive
from tests.support.naive_timer_log import LAP, Model, Slot, Timer, Unit
from tests.support.timer_logs import timed
from timer_store import layout
from timer_store.kernels import wheel as kernels
from timer_store.kernels.wheel import PAGE_BYTES
from timer_store.layout import TIMED_BROKEN, TIMED_MARKER, TIMED_PLAIN, WHEEL_BYTES

READ_MS, WIDTH = 1_700_000_000_000, 52
READ = READ_MS // 1_000
WHEEL = np.zeros(WHEEL_BYTES, np.uint8)
SLOTS = WHEEL.view(layout.TIMER_SLOT)
FAR_MS = LAP * 1_000
MANY_BYTES = 1 << 30  # larger than all units

times = st.integers(READ_MS - 9_000, READ_MS + 9_000) | st.sampled_from(
    [READ_MS + FAR_MS - 1, READ_MS + FAR_MS, 5, READ_MS - 40 * 86_400_000]
)
rows = st.builds(
    Timer,
    due_ms=times | st.integers(1, 1 << 60),
    slot_ms=times,
    phys_offset=st.integers(0, (1 << 63) - 1),
    record_size=st.integers(91, (1 << 31) - 1),
    topic_hash=st.integers(-(1 << 31), (1 << 31) - 1),
    kind=st.sampled_from([TIMED_PLAIN] * 4 + [TIMED_MARKER, TIMED_BROKEN]),
)
laps = st.dictionaries(st.integers(READ - 3, READ + 9), st.sampled_from([-LAP, 0, LAP]), max_size=6)


def fill(model: Model, laps_: dict[int, int]) -> None:
    """Give some slots units of this lap or another."""
    for tick, lap in laps_.items():
        model.slots[tick % LAP] = Slot(tick + lap, 0, 52, 2)


def load(model: Model) -> None:
    for place, slot in model.slots.items():
        SLOTS[place] = (slot.tick, slot.first_pos, slot.last_pos, slot.num, 0)


def empty(pages: npt.NDArray[np.uint8]) -> None:
    for page in np.flatnonzero(pages):
        WHEEL[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = 0


def near(model: Model) -> dict[int, tuple[int, ...]]:
    return {
        at: (slot.tick, slot.first_pos, slot.last_pos, slot.num) for at, slot in model.slots.items()
    }


def at_places(places: dict[int, Slot]) -> dict[int, tuple[int, ...]]:
    return {at: tuple(SLOTS[at].tolist()[:4]) for at in places if SLOTS[at]["tick"]}


@given(st.lists(rows, max_size=20), laps, st.sampled_from([0, 40 * 86_400_000]))
def test_link_and_unlink(timers: list[Timer], laps_: dict[int, int], later_ms: int) -> None:
    model = Model(file_bytes=MANY_BYTES, end=520)
    fill(model, laps_)
    load(model)
    before = at_places(model.slots)
    pages = np.zeros(WHEEL_BYTES // PAGE_BYTES, np.uint8)
    out = np.zeros(len(timers) * WIDTH, np.uint8)
    undo = np.zeros((len(timers), kernels.UNDO_COLUMNS), np.int64)
    write_ms = READ_MS + later_ms
    adding = kernels.Adding(520, write_ms, READ_MS, 1_000)
    try:
        taken, made = kernels.link(timed(timers), adding, WHEEL, pages, out, undo)
        assert taken == model.add(timers, write_ms, READ_MS)
        expected = b"".join(unit.pack() for _, unit in sorted(model.units.items()))
        assert out[: made * WIDTH].tobytes() == expected
        assert at_places(model.slots) == near(model)
        touched = {place * 32 // PAGE_BYTES for place in model.slots}
        assert set(np.flatnonzero(pages).tolist()) <= touched
        kernels.unlink(undo, taken, WHEEL, pages)
        assert at_places(model.slots) == before
    finally:
        empty(pages)
        for place in model.slots:
            SLOTS[place] = 0


units = st.builds(
    Unit,
    prev_pos=st.integers(-1, 20).map(lambda n: n * WIDTH if n > 0 else -1),
    magic=st.sampled_from([1, 3, 5]),
    write_ms=st.just(READ_MS),
    delay_ms=st.integers(-3_000, 5_000) | st.just(FAR_MS),
    phys_offset=st.integers(0, 9),
    record_size=st.just(99),
    topic_hash=st.just(0),
    due_ms=st.sampled_from([0, -1, -5, READ_MS]),
)


@given(st.lists(units, max_size=12), st.integers(1, 12), st.integers(0, 3))
def test_relink(found: list[Unit], room: int, gone: int) -> None:
    """The first `gone` units were in a removed file; a unit whose times do not match is the end."""
    base = gone * WIDTH
    fit = [u if u.prev_pos < base + n * WIDTH else None for n, u in enumerate(found)]
    found = found[: fit.index(None)] if None in fit else found
    wrong = [n for n, unit in enumerate(found) if not naive.times_match(unit, 1_000, 1)]
    linked = found[: wrong[0]] if wrong else found
    data = np.frombuffer(b"".join(unit.pack() for unit in found) + b"\0" * 16, np.uint8)
    model = Model(file_bytes=MANY_BYTES)
    expected, newest = [], {}
    for n, unit in enumerate(linked):
        pos, tick = base + n * WIDTH, unit.slot_ms // 1_000
        if tick - READ >= LAP:
            expected.append((pos, kernels.FIX_TOO_FAR))
        elif tick >= READ:
            model.units[pos] = unit
            before = newest.get(tick, -1)
            if unit.prev_pos != before and not (before < 0 and unit.prev_pos < base):
                expected.append((pos, before))
            newest[tick] = pos
    for tick in newest:
        model.link_slot(tick)
    pages = np.zeros(WHEEL_BYTES // PAGE_BYTES, np.uint8)
    fixes, pos = [], base
    end = base + len(found) * WIDTH
    into = kernels.Relinking(READ, 1_000, 1, base)
    try:
        count, before = 1, -1
        while count or pos > before:
            out, before = np.zeros((room, 2), np.int64), pos
            pos, count = kernels.relink(data, (base, pos, end), WHEEL, pages, into, out)
            fixes += [tuple(fix) for fix in out[:count].tolist()]
        assert pos == base + len(linked) * WIDTH
        assert fixes == expected
        assert at_places(model.slots) == near(model)
    finally:
        empty(pages)


def test_relink_stops_at_bytes_that_are_not_a_unit() -> None:
    unit = Unit(-1, 1, READ_MS, 0, 0, 99, 0, 5)
    data = np.frombuffer(unit.pack() + b"\0" * 68, np.uint8)
    pages = np.zeros(WHEEL_BYTES // PAGE_BYTES, np.uint8)
    fixes = np.zeros((9, 2), np.int64)
    span, into = (0, 0, 2 * WIDTH), kernels.Relinking(READ, 1_000, 1, 0)
    assert kernels.relink(data, span, WHEEL, pages, into, fixes) == (WIDTH, 0)
    empty(pages)


@given(st.sets(st.integers(0, 19)), st.integers(0, 1 << 40), st.randoms())
def test_make_tombstones(which: set[int], base: int, chance: random.Random) -> None:
    """Two numbers of each unit change and no other byte."""
    block = np.frombuffer(chance.randbytes(20 * WIDTH), np.uint8).copy()
    positions = np.array(sorted(which), np.int64) * WIDTH + base
    due = -positions - 7
    expected = bytearray(block.tobytes())
    for pos, value in zip(positions.tolist(), due.tolist(), strict=True):
        at = pos - base
        expected[at + 12 : at + 16] = layout.MAGIC_DELETE.to_bytes(4, "big")
        expected[at + 44 : at + 52] = value.to_bytes(8, "big", signed=True)
    kernels.write_tombstones(block, base, positions, due)
    assert block.tobytes() == bytes(expected)
