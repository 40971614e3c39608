"""Timer log and wheel together compared with a list of units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq_common.errors import CorruptStore
from tests.support.extended import examples
from tests.support.naive_timer_log import (
    LAP,
    Model,
    Timer,
    Unit,
    columns,
    is_plain_marker,
    staged,
    unpack,
)
from tests.support.timer_logs import (
    FILE_BYTES,
    NOW_MS,
    assert_same_log,
    assert_same_wheel,
    open_units,
    temporary_units,
    timed,
    timer,
)
from timer_store.kernels.wheel import PAGE_BYTES
from timer_store.layout import MAGIC_DELETE, MAGIC_ROLL, TIMED_BROKEN, TIMED_MARKER, TIMED_PLAIN
from timer_store.log.timer_log import TimerLog, UnitFile
from timer_store.log.units import TimerUnits

SECOND = 1_000


@st.composite
def timers(draw: Callable[..., Any]) -> Timer:
    """Draw a timer: overdue, in one of few slots, or one that will roll."""
    record = draw(st.integers(0, 40))
    due_ms = NOW_MS - 3 * SECOND + record * 7_919 % (11 * SECOND)  # a record has one due time
    slot_ms = due_ms - 1 - draw(st.sampled_from([0, 0, 0, SECOND, 5 * SECOND]))
    if slot_ms < NOW_MS:  # a timer rolls from a slot that is not read yet
        slot_ms = due_ms - 1
    kind = draw(st.sampled_from([TIMED_PLAIN] * 6 + [TIMED_MARKER, TIMED_BROKEN]))
    phys_offset = record * 100 + (kind == TIMED_MARKER)
    return Timer(due_ms, slot_ms, phys_offset, 91 + record, kind=kind)


batches = st.lists(st.lists(timers(), max_size=60), max_size=5)


def fill(units: TimerUnits, made: list[list[Timer]]) -> Model:
    """Add batches of timers; return the model of them."""
    model = Model(units.precision_ms, FILE_BYTES)
    for batch in made:
        taken = units.add(timed(batch), write_ms=NOW_MS + 345, read_ms=NOW_MS)
        assert taken == model.add(batch, NOW_MS + 345, NOW_MS) == len(batch)
    return model


def ticks_of(model: Model) -> list[int]:
    return sorted({unit.slot_ms // model.precision_ms for unit in model.units.values()})


def assert_same_slots(
    units: TimerUnits, model: Model, skip: tuple[Any, ...] | set[int] = ()
) -> None:
    """Check that every slot, read as a whole and in parts, equals the model's."""
    skipped = np.array(sorted(skip), np.int64)
    for tick in ticks_of(model):
        found = units.read_slot(tick * model.precision_ms, skip=skipped)
        expected = model.pending(tick, skip)
        plain = [staged(*item, model.precision_ms) for item in expected if not_marker(item)]
        assert columns(found.rows) == plain
        assert columns(found.markers) == [
            staged(*item, model.precision_ms) for item in expected if not not_marker(item)
        ]
        assert found.complete
        assert found.broken is None


def not_marker(item: tuple[int, Unit]) -> bool:
    return not is_plain_marker(item[1])


# -- add ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(50))
@given(batches, st.sampled_from([100, 200, 500, 1_000]))
def test_log_and_wheel_equal_the_model(made: list[list[Timer]], precision_ms: int) -> None:
    with temporary_units(precision_ms=precision_ms) as units:
        model = fill(units, made)
        assert_same_log(units, model)
        assert_same_wheel(units, model)
        assert_same_slots(units, model)


@pytest.mark.parametrize(
    ("due", "slot", "magic", "slot_ms"),
    [
        (NOW_MS + 5_000, NOW_MS + 4_999, 1, NOW_MS + 4_999),
        (NOW_MS + 9_000, NOW_MS + 4_999, 1 | MAGIC_ROLL, NOW_MS + 4_999),
        (NOW_MS - 5_000, NOW_MS - 5_001, 1, NOW_MS),  # overdue: the slot being read
        (NOW_MS + 9_000, NOW_MS - 5_001, 1 | MAGIC_ROLL, NOW_MS),  # its roll time has passed
        (NOW_MS - 90 * 86_400_000, 5_000, 1, NOW_MS),
    ],
    ids=["own slot", "rolls", "overdue", "roll time passed", "months overdue"],
)
def test_which_slot_and_magic(
    tmp_path: Path, due: int, slot: int, magic: int, slot_ms: int
) -> None:
    units = open_units(tmp_path)
    assert units.add(timed([Timer(due, slot, 77)]), write_ms=NOW_MS, read_ms=NOW_MS) == 1
    unit = units.log.unit(0)
    assert (unit["magic"], unit["slot_ms"], unit["due_ms"]) == (magic, slot_ms, due)  # type: ignore[comparison-overlap]
    assert units.read_slot(slot_ms).rows["due_ms"].tolist() == [due]


def test_units_refer_to_their_slot_after_an_outage_of_months(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    later_ms = NOW_MS + 90 * 86_400_000
    assert units.add(timed([timer(NOW_MS + 1, 0)]), write_ms=later_ms, read_ms=NOW_MS) == 1
    assert units.log.unit(0)["slot_ms"] == NOW_MS
    assert units.read_slot(NOW_MS).broken is None


def test_markers_count_in_no_slot(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    rows = timed([timer(NOW_MS + 1, 0), timer(NOW_MS + 2, 9, kind=TIMED_MARKER)])
    units.add(rows, write_ms=NOW_MS, read_ms=NOW_MS)
    assert units.wheel.num(NOW_MS) == 1
    found = units.read_slot(NOW_MS)
    assert (found.rows["phys_offset"].tolist(), found.markers["phys_offset"].tolist()) == ([0], [9])
    assert units.log.unit(52)["magic"] == 1 | MAGIC_DELETE


def test_a_slot_with_an_older_lap_delays_new_units(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    lap_ms = LAP * SECOND
    units.add(timed([timer(NOW_MS + 5_001, 0)]), write_ms=NOW_MS, read_ms=NOW_MS)
    rows = timed([timer(NOW_MS + 1, 1), timer(NOW_MS + 5_002 + lap_ms, 2), timer(NOW_MS + 1, 3)])
    assert units.add(rows, write_ms=NOW_MS, read_ms=NOW_MS) == 1
    assert units.add(rows[1:], write_ms=NOW_MS, read_ms=NOW_MS) == 0
    read_ms = NOW_MS + 5_000  # that slot is being read
    assert units.add(rows[1:], write_ms=NOW_MS, read_ms=read_ms) == 0
    assert units.log.end == 2 * 52
    read_ms += SECOND
    assert units.add(rows[1:], write_ms=NOW_MS, read_ms=read_ms) == 2
    assert units.log.unit(2 * 52)["prev_pos"] == -1
    assert units.read_slot(NOW_MS + 5_001).rows.size == 0
    assert units.read_slot(NOW_MS + 5_001 + lap_ms).rows["phys_offset"].tolist() == [2]


def test_a_timer_a_lap_ahead_is_not_linked_although_its_slot_is_free(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    far = timer(NOW_MS + LAP * SECOND + 1, 0)
    assert units.add(timed([far]), write_ms=NOW_MS, read_ms=NOW_MS) == 0
    assert units.add(timed([far]), write_ms=NOW_MS, read_ms=NOW_MS + SECOND) == 1


def used_pages(units: TimerUnits) -> dict[int, bytes]:
    """Return the pages of the wheel that are not zeros; others have no memory yet."""
    pages = np.flatnonzero(units.wheel.pages).tolist()
    data = units.wheel.data.reshape(-1, PAGE_BYTES)
    return {page: data[page].tobytes() for page in pages if data[page].any()}


@pytest.mark.parametrize("written", [0, 1, 51, 52, 200])
def test_a_full_disk_does_not_change_log_and_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    units = open_units(tmp_path)
    model = fill(units, [[timer(NOW_MS + 1, 0), timer(NOW_MS + 3_001, 1)]])
    before = used_pages(units)

    def no_room(self: UnitFile, pos: int, data: memoryview) -> None:
        self_write(self, pos, bytes(data)[:written])
        raise OSError(28, "No space left on device")

    file_class = type(units.log.files[0])
    self_write = file_class.write
    more = timed([timer(NOW_MS + 1, n) for n in range(2, 5)] + [timer(NOW_MS + 9_001, 5)])
    with monkeypatch.context() as patch:
        patch.setattr(file_class, "write", no_room)
        with pytest.raises(OSError, match="No space"):
            units.add(more, write_ms=NOW_MS, read_ms=NOW_MS)
    assert used_pages(units) == before
    assert units.log.end == model.end
    assert units.add(more, write_ms=NOW_MS, read_ms=NOW_MS) == 4
    assert units.read_slot(NOW_MS).rows["phys_offset"].tolist() == [0, 2, 3, 4]


def test_a_disk_full_between_two_files_takes_the_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = open_units(tmp_path)
    rows = timed([timer(NOW_MS + 1, n) for n in range(60)])
    file_class = type(open_units(tmp_path / "other").log)

    def no_room(self: TimerLog) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_class, "close_file", no_room)
        assert units.add(rows, write_ms=NOW_MS, read_ms=NOW_MS) == 49
        with pytest.raises(OSError, match="No space"):
            units.add(rows[49:], write_ms=NOW_MS, read_ms=NOW_MS)
    assert units.add(rows[49:], write_ms=NOW_MS, read_ms=NOW_MS) == 11
    assert units.read_slot(NOW_MS).rows["phys_offset"].tolist() == list(range(60))


# -- read ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(50))
@given(batches, st.sets(st.integers(0, 40).map(lambda n: n * 100)))
def test_settled_timers_and_second_units_are_omitted(
    made: list[list[Timer]], skip: set[int]
) -> None:
    with temporary_units() as units:
        assert_same_slots(units, fill(units, made), skip=skip)


@settings(deadline=None, max_examples=examples(50))
@given(batches, st.integers(1, 20), st.data())
def test_a_slot_read_in_parts_is_in_due_order(
    made: list[list[Timer]], count_max: int, data: st.DataObject
) -> None:
    with temporary_units() as units:
        model = fill(units, made)
        positions = data.draw(st.lists(st.sampled_from(sorted(model.units) or [0]), max_size=9))
        if model.units and positions:
            units.settle(np.array(positions))
            model.settle(positions)
        skip = np.array(sorted(data.draw(st.sets(st.integers(0, 9)))), np.int64) * 100
        for tick in ticks_of(model):
            expected = [item for item in model.pending(tick, skip.tolist()) if not_marker(item)]
            parts = read_in_parts(units, tick * SECOND, count_max, skip)
            found = [(int(row["due_ms"]), int(row["phys_offset"])) for row in parts]
            assert found == sorted((unit.due_ms, unit.phys_offset) for _, unit in expected)


def read_in_parts(
    units: TimerUnits, slot_ms: int, count_max: int, skip: npt.NDArray[np.int64]
) -> list[np.void]:
    rows, after = [], None
    while True:
        part = units.read_slot_part(slot_ms, count_max, after=after, skip=skip)
        assert part.rows.size <= count_max
        rows += sorted(part.rows, key=lambda row: (int(row["due_ms"]), int(row["phys_offset"])))
        if part.complete:
            return rows
        after = int(part.rows[-1]["due_ms"]), int(part.rows[-1]["phys_offset"])


def test_apaches_units_are_not_due_before_their_slot_ends(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    units.add(timed([timer(NOW_MS + 1, 0)]), write_ms=NOW_MS, read_ms=NOW_MS)
    units.log.patch(np.array([0]), "due_ms", np.array([0]))
    assert units.read_slot(NOW_MS).rows["due_ms"].tolist() == [NOW_MS + SECOND]


def test_scan_gives_every_unit_as_columns(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    model = fill(units, [[timer(NOW_MS + 1 + n * 100, n) for n in range(120)]])
    rows = np.concatenate(list(units.log.scan()))
    assert rows["pos"].tolist() == sorted(model.units)
    assert rows["phys_offset"].tolist() == list(range(120))
    assert rows["slot_ms"].tolist() == [unit.slot_ms for _, unit in sorted(model.units.items())]
    later = np.concatenate(list(units.log.scan(FILE_BYTES, 2 * FILE_BYTES)))
    assert later["phys_offset"].tolist() == list(range(49, 98))
    assert units.read(rows["pos"][::-7])["phys_offset"].tolist() == list(range(119, -1, -7))


def test_a_full_file_ends_with_a_row_without_a_unit(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    rows = [timer(NOW_MS + 1, n) for n in range(49)]
    model = fill(units, [[*rows, Timer(NOW_MS + 1, NOW_MS, 7, kind=TIMED_BROKEN)]])
    assert units.log.end == FILE_BYTES
    assert_same_log(units, model)


# -- single timers ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(50))
@given(batches, st.data())
def test_units_are_found_and_settled(made: list[list[Timer]], data: st.DataObject) -> None:
    with temporary_units() as units:
        model = fill(units, made)
        for _ in range(3):
            requested = data.draw(
                st.lists(st.tuples(st.integers(0, 41), st.integers(-1, 9)), max_size=30)
            )
            phys = np.array([n * 100 for n, _ in requested], np.int64)
            slots = np.array([NOW_MS + n * SECOND + 321 for _, n in requested], np.int64)
            found = units.find(phys, slots)
            for position, offset, slot_ms in zip(
                found.tolist(), phys.tolist(), slots.tolist(), strict=True
            ):
                places = {
                    pos
                    for pos, unit in model.in_slot(slot_ms // SECOND)
                    if unit.phys_offset == offset and unit.due_ms >= 0
                }
                assert position in (places or {-1})
            hits = found[found >= 0]
            copied = data.draw(st.booleans())
            assert units.settle(hits, copied=copied) == model.settle(hits.tolist(), copied=copied)
            assert_same_log(units, model)
            assert_same_wheel(units, model)
        assert_same_slots(units, model)


def test_a_copied_unit_replaces_its_original(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    rows = timed([timer(NOW_MS + 1, 100), timer(NOW_MS + 2, 200)])
    units.add(rows, write_ms=NOW_MS, read_ms=NOW_MS)
    units.add(rows[:1], write_ms=NOW_MS, read_ms=NOW_MS)
    assert units.wheel.num(NOW_MS) == 3
    assert units.read_slot(NOW_MS).rows["pos"].tolist() == [0, 52]
    assert units.settle(np.array([0]), copied=True) == 1
    assert units.read_slot(NOW_MS).rows["pos"].tolist() == [52, 104]
    assert units.wheel.num(NOW_MS) == 2
    assert units.find(np.array([100]), NOW_MS).tolist() == [104]


def test_one_settled_unit_settles_all_of_its_record(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    rows = timed([timer(NOW_MS + 1, 100), timer(NOW_MS + 2, 200), timer(NOW_MS + 1, 100)])
    units.add(rows, write_ms=NOW_MS, read_ms=NOW_MS)
    for pos in (0, 104):
        assert units.settle(np.array([pos])) == 1
        assert units.read_slot(NOW_MS).rows["phys_offset"].tolist() == [200]
        assert read_in_parts(units, NOW_MS, 1, np.empty(0, np.int64))[0]["phys_offset"] == 200


def test_only_units_can_be_settled(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    units.add(timed([timer(NOW_MS + 1, 0)]), write_ms=NOW_MS, read_ms=NOW_MS)
    for pos in (13, 52, 5 * FILE_BYTES):
        with pytest.raises(CorruptStore, match="there is no unit"):
            units.settle(np.array([0, pos]))
    assert units.wheel.num(NOW_MS) == 1
    assert unpack(units.log.files[0].data.tobytes()).due_ms == NOW_MS + 1


def test_units_of_removed_files_are_no_fault(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    rows = timed([timer(NOW_MS + 1, n) for n in range(100)])
    units.add(rows, write_ms=NOW_MS, read_ms=NOW_MS)
    units.log.detach_first().erase()
    found = units.read_slot(NOW_MS)
    assert found.rows["phys_offset"].tolist() == list(range(49, 100))
    assert found.broken is None
    assert units.find(np.array([3, 60]), NOW_MS).tolist() == [-1, FILE_BYTES + 11 * 52]
    assert units.settle(np.array([0, FILE_BYTES])) == 1
