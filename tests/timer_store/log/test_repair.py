"""Repair of log and wheel after crashes of ours, after Apache's and after damage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.extended import examples
from tests.support.golden_stores import golden_store
from tests.support.naive_timer_log import LAP, Model, Timer, columns, staged
from tests.support.sparse_files import copy_used
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
from tests.timer_store.log.test_units import assert_same_slots, batches, fill
from timer_store.log.units import TimerUnits

GOLDEN = ["apache-5.3.3-clean", "apache-5.3.3-killed"]
SECOND = 1_000


def spread(units: TimerUnits, count: int = 120) -> Model:
    """Add timers to six slots, over three files."""
    return fill(units, [[timer(NOW_MS + 1 + n % 6 * SECOND, n * 100) for n in range(count)]])


def slot_bytes(units: TimerUnits, time_ms: int) -> np.ndarray:
    at = units.wheel.tick(time_ms) % LAP * 32
    return units.wheel.data[at : at + 32]


# -- repair -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(50))
@given(batches, st.data())
def test_after_a_crash_slots_return_to_the_snapshot(
    made: list[list[Timer]], data: st.DataObject
) -> None:
    with temporary_units() as units:
        model = fill(units, made)
        ends = [0, model.end, *(pos for pos in model.units), *(pos + 52 for pos in model.units)]
        cut = data.draw(st.sampled_from(sorted(set(ends))))
        assert units.repair(cut) == []
        model.cut(cut)
        assert_same_log(units, model)
        assert_same_wheel(units, model)
        assert_same_slots(units, model)


def test_every_mix_of_old_and_new_slots_is_repaired(tmp_path: Path) -> None:
    """The wheel's file has any mix of slots of the snapshot and of the next one."""
    units = open_units(tmp_path)
    model = spread(units, 60)
    cut, old = units.log.end, units.wheel.data.copy()
    fill_more = timed([timer(NOW_MS + 1 + n % 9 * SECOND, 10_000 + n) for n in range(60)])
    units.add(fill_more, write_ms=NOW_MS, read_ms=NOW_MS)
    for n in (0, 3, 4, 7):
        slot = slot_bytes(units, NOW_MS + n * SECOND)
        at = units.wheel.tick(NOW_MS + n * SECOND) % LAP * 32
        slot[:] = old[at : at + 32]
    assert units.repair(cut) == []
    assert_same_log(units, model)
    assert_same_wheel(units, model)


def test_a_slot_that_points_after_the_log_is_reported(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    spread(units, 12)
    slot_bytes(units, NOW_MS)[16:24] = np.frombuffer((99 * FILE_BYTES).to_bytes(8, "big"), np.uint8)
    (found,) = units.repair(units.log.end)
    assert f"slot {NOW_MS} points here, but no unit can be there" in str(found)
    assert "linked again from the timer log" in found.remedy


def test_slots_are_counted_again(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    units.add(
        timed([timer(NOW_MS + 1 + n % 2 * SECOND, n * 100) for n in range(8)]),
        write_ms=NOW_MS,
        read_ms=NOW_MS,
    )
    units.write_tombstones(np.array([0, 52]))
    assert (units.wheel.num(NOW_MS), units.wheel.num(NOW_MS + SECOND)) == (4, 4)
    times = np.array([NOW_MS, NOW_MS + 5, NOW_MS + SECOND, NOW_MS + 77 * SECOND])
    units.recount(times)
    assert (units.wheel.num(NOW_MS), units.wheel.num(NOW_MS + SECOND)) == (3, 3)
    assert units.read_slot(NOW_MS).rows["phys_offset"].tolist() == [200, 400, 600]


def test_discount_and_make_tombstones_together_settle(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    model = spread(units, 20)
    places = np.array(sorted(model.units)[3:9])
    units.discount(places)
    assert units.read_slot(NOW_MS).rows.size == 4
    assert units.wheel.total(NOW_MS) == 14
    units.write_tombstones(places)
    model.settle(places.tolist())
    assert_same_log(units, model)
    assert_same_wheel(units, model)


# -- check and relink ---------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(50))
@given(batches, st.data())
def test_relink_rebuilds_the_wheel_from_the_log(
    made: list[list[Timer]], data: st.DataObject
) -> None:
    with temporary_units() as units:
        model = fill(units, made)
        settled = data.draw(st.lists(st.sampled_from(sorted(model.units) or [0]), max_size=5))
        if model.units and settled:
            units.settle(np.array(settled))
            model.settle(settled)
        wrong = data.draw(st.lists(st.sampled_from(sorted(model.units) or [0]), max_size=5))
        if model.units and wrong:  # arbitrary pointers
            places = np.unique(wrong)
            values = [data.draw(st.integers(-1, int(pos) - 1)) for pos in places]
            units.log.patch(places, "prev_pos", np.array(values, np.int64))
        from_ms = NOW_MS + data.draw(st.integers(0, 3)) * SECOND
        found = units.relink(from_ms)
        assert found.units == len(model.units)
        assert not found.too_far.size
        assert not found.damaged.size
        model.slots.clear()
        ticks = {unit.slot_ms // SECOND for unit in model.units.values()}
        for tick in ticks:
            if tick >= from_ms // SECOND:
                model.link_slot(tick)
        assert_same_wheel(units, model)
        for tick in sorted(ticks):
            if tick >= from_ms // SECOND:
                got = units.read_slot(tick * SECOND)
                assert got.broken is None
                both = sorted(columns(got.rows) + columns(got.markers), key=lambda row: row[2])
                assert both == [staged(*item, SECOND) for item in model.pending(tick)]


def test_a_wheel_ahead_of_the_log_is_detected_and_rebuilt(tmp_path: Path) -> None:
    """T13: before a power cut the wheel was flushed, the log was not."""
    units = open_units(tmp_path)
    model = spread(units, 30)
    assert units.check(NOW_MS) == []
    units.log.truncate(20 * 52)
    faults = units.check(NOW_MS)
    assert len(faults) == 6
    assert "no unit can be there" in str(faults[0])
    units.relink(NOW_MS)
    model.cut(20 * 52)
    assert_same_wheel(units, model)
    assert units.check(NOW_MS) == []


def test_a_chain_that_leads_into_another_slot_is_reported_and_corrected(tmp_path: Path) -> None:
    """T13: new units are chained to a position that other slots reused."""
    units = open_units(tmp_path)
    model = spread(units, 30)
    head = units.wheel.slot(NOW_MS).last_pos
    units.log.patch(np.array([head]), "prev_pos", np.array([head - 52]))
    found = units.read_slot(NOW_MS)
    assert found.broken is not None
    assert "the unit belongs to another slot" in str(found.broken)
    assert found.broken.offset == head - 52
    assert found.rows.size == 1  # the rows before the fault are returned
    assert units.read_slot_part(NOW_MS, 1).broken is not None
    assert units.relink(NOW_MS).corrected == 1
    assert_same_log(units, model)
    assert_same_slots(units, model)


def test_a_cycle_ends(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    spread(units, 30)
    slot = units.wheel.slot(NOW_MS)
    units.log.patch(np.array([slot.first_pos]), "prev_pos", np.array([slot.last_pos]))
    found = units.read_slot(NOW_MS)
    assert "the unit points forward" in str(found.broken)
    assert found.rows.size == 4


def test_damage_in_the_log_loses_only_damaged_units(tmp_path: Path) -> None:
    """T15: a gap in the chain."""
    units = open_units(tmp_path)
    model = spread(units, 120)
    bad = sorted(model.units)[60]
    file = units.log.files[1]
    file.write(bad - file.base, b"\0" * 52)
    tick = model.units.pop(bad).slot_ms // SECOND
    assert units.read_slot(tick * SECOND).broken is not None
    found = units.relink(NOW_MS)
    assert found.damaged.tolist() == [bad]
    assert found.corrected == 1
    assert units.read_slot(tick * SECOND).rows["pos"].tolist() == [
        pos for pos, _ in model.in_slot(tick)
    ]
    assert np.concatenate(list(units.log.scan()))["pos"].tolist() == sorted(model.units)


def test_stale_units_after_a_cut_are_never_linked(tmp_path: Path) -> None:
    """T14: the cut-off part is zeroed, so it is not mistaken for new units."""
    units = open_units(tmp_path)
    spread(units, 60)
    units.repair(10 * 52)
    units.add(timed([timer(NOW_MS + 1, 9)]), write_ms=NOW_MS, read_ms=NOW_MS)
    assert units.log.end == 11 * 52


def test_another_precision_moves_units_into_other_slots(tmp_path: Path) -> None:
    """T20: the configuration key timerPrecisionMs was changed."""
    units = open_units(tmp_path)
    spread(units, 30)
    far_ms = NOW_MS + 6 * 86_400_000
    units.add(timed([timer(far_ms, 99_900)]), write_ms=NOW_MS, read_ms=NOW_MS)
    end = units.log.end
    units.close()
    units = open_units(tmp_path, precision_ms=100)
    units.log.truncate(end)
    found = units.relink(NOW_MS)
    assert found.too_far.tolist() == [end - 52]  # the lap is 33.6 hours with this precision
    assert units.read_slot(NOW_MS + 3 * SECOND).rows.size == 5
    assert units.read_slot(NOW_MS + 3 * SECOND + 100).rows.size == 0
    assert units.wheel.total(NOW_MS) == 30


def test_slots_of_removed_files_count_only_if_pending(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    units.add(timed([timer(NOW_MS + 1, n) for n in range(49)]), write_ms=NOW_MS, read_ms=NOW_MS)
    later = [timer(NOW_MS + 9_001, n) for n in range(100, 110)]
    units.add(timed(later), write_ms=NOW_MS, read_ms=NOW_MS)
    units.log.detach_first().erase()
    assert len(units.check(NOW_MS)) == 1
    units.recount(np.array([NOW_MS]))
    assert units.check(NOW_MS) == []
    assert units.read_slot(NOW_MS).rows.size == 0


def test_clear(tmp_path: Path) -> None:
    units = open_units(tmp_path)
    spread(units, 120)
    units.clear()
    assert (units.log.end, units.log.files) == (0, [])
    assert units.wheel.total(NOW_MS) == 0
    spread(units, 6)
    assert units.wheel.total(NOW_MS) == 6


# -- Apache's stores ----------------------------------------------------------------------------


@pytest.fixture(params=GOLDEN)
def apache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimerUnits]:
    """Open a copy of Apache's timer log and wheel."""
    source = golden_store(request.param)
    shutil.copytree(source / "timerlog", tmp_path / "timerlog")
    copy_used(str(source / "timerwheel"), str(tmp_path / "timerwheel"))
    units = open_units(tmp_path)
    units.log.truncate(32 * 52)
    yield units
    units.close()


APACHE_READ_MS = 1_795_225_834_000


def test_apaches_chains_resolve(apache: TimerUnits) -> None:
    assert apache.check(APACHE_READ_MS) == []
    rows = np.concatenate(list(apache.log.scan()))
    assert rows.size == 32
    found = []
    for slot in apache.wheel.live(APACHE_READ_MS):
        slot_ms = int(slot["tick"]) * SECOND
        read = apache.read_slot(slot_ms)
        assert read.broken is None
        found += read.rows["pos"].tolist() + read.markers["pos"].tolist()
        assert (read.rows["due_ms"][read.rows["magic"] == 1] == slot_ms + SECOND).all()
        assert (
            read.rows["due_ms"][read.rows["magic"] == 3] == 0
        ).all()  # the due time is in the record
        waiting = read.rows.size - read.markers.size
        assert slot["num"] == waiting
    assert sorted(found) == rows["pos"].tolist()
    assert sum((rows["magic"] & 4) > 0) == 3
    assert sum((rows["magic"] & 2) > 0) == 8


def test_apaches_units_are_found_by_their_records(apache: TimerUnits) -> None:
    rows = np.concatenate(list(apache.log.scan()))
    assert apache.find(rows["phys_offset"], rows["slot_ms"]).tolist() == rows["pos"].tolist()
    assert (apache.find(rows["phys_offset"], rows["slot_ms"] + SECOND) == -1).all()


def test_apaches_wheel_is_rebuilt_from_its_log(apache: TimerUnits) -> None:
    before = apache.wheel.live(APACHE_READ_MS).copy()
    found = apache.relink(APACHE_READ_MS)
    assert (found.units, found.corrected, found.damaged.size) == (32, 0, 0)
    after = apache.wheel.live(APACHE_READ_MS)
    for column in ("tick", "first_pos", "last_pos"):
        assert after[column].tolist() == before[column].tolist()
    assert after["num"].sum() == 29  # markers do not count


def test_our_units_follow_apaches(apache: TimerUnits) -> None:
    rows = timed([timer(APACHE_READ_MS + 3_600_000 - 2_000 + 1, 70_000)])
    slot_ms = int(rows["slot_ms"][0])
    before = apache.read_slot(slot_ms).rows.size
    assert apache.add(rows, write_ms=APACHE_READ_MS, read_ms=APACHE_READ_MS) == 1
    assert apache.read_slot(slot_ms).rows.size == before + 1
