"""A timer unit and its record differ: which one is damaged, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from delayed_delivery.pending import Verdict
from duemq_common.topics import QUARANTINE_TOPIC
from tests.support.timer_rig import TimerRig
from timer_store import layout
from timer_store.checkpoint import recovery
from timer_store.checkpoint.recovery import invalid_reason
from timer_store.dequeue.unit_check import is_due_with_record
from timer_store.kernels.chain import FAULT_TIMES, times_fault
from timer_store.layout import TIMER_UNIT, UNIT_BYTES

COUNT = 12
STEP_MS = 700


@pytest.mark.parametrize(
    ("unit_ms", "record_ms", "promised"),
    [
        (5_000, 5_000, True),
        (5_001, 5_001, True),
        (5_000, 4_001, True),  # Apache's: due at the end of the slot
        (5_000, 4_000, True),
        (5_000, 3_999, False),
        (5_001, 5_000, False),
        (5_000, 5_001, False),  # early
    ],
)
def test_a_unit_is_due_with_its_record(unit_ms: int, record_ms: int, promised: bool) -> None:
    found = is_due_with_record(np.array([unit_ms]), np.array([record_ms]), 1_000)
    assert found.tolist() == [promised]


class FilledRig(TimerRig):
    """Rig with the due times of its timers."""

    due_ms: list[int]


@pytest.fixture
def rig(tmp_path: Path) -> FilledRig:
    """A stopped store of pending timers."""
    found = FilledRig(tmp_path)
    found.open()
    now_ms = found.clock.now_ms()
    found.due_ms = [now_ms + 5_000 + STEP_MS * number for number in range(COUNT)]
    for number, due_ms in enumerate(found.due_ms):
        found.put(due_ms, body=b"%03d" % number)
    found.close()
    return found


def field(rig: FilledRig, unit: int, name: str) -> tuple[Path, int, int]:
    """Return the file, the position and the size of a field of a unit."""
    kind, offset = TIMER_UNIT.fields[name][:2]
    return rig.root / "timerlog" / f"{0:020d}", unit * UNIT_BYTES + offset, kind.itemsize


def change(rig: FilledRig, unit: int, name: str, value: int | None = None, bit: int = 0) -> None:
    """Set a field of a unit, or flip a bit of it."""
    path, pos, size = field(rig, unit, name)
    data = bytearray(path.read_bytes())
    before = int.from_bytes(data[pos : pos + size], "big")
    after = before ^ 1 << bit if value is None else value
    data[pos : pos + size] = after.to_bytes(size, "big")
    path.write_bytes(data)
    rig.is_sound = False


def value(rig: FilledRig, unit: int, name: str) -> int:
    path, pos, size = field(rig, unit, name)
    return int.from_bytes(path.read_bytes()[pos : pos + size], "big")


def delivered(rig: FilledRig) -> dict[int, int]:
    """Let everything come due; return the delivery time of each timer."""
    rig.config = TimerRig(rig.root).config
    rig.open()
    for _ in range(30):
        rig.advance(STEP_MS)
    records = rig.delivered()
    found = {int(record.body): record.store_ms for record in records}
    assert len(found) == len(records), "delivered twice"
    return found


def assert_all_in_time(rig: FilledRig) -> None:
    found = delivered(rig)
    assert sorted(found) == list(range(COUNT))
    late = [found[number] - due_ms for number, due_ms in enumerate(rig.due_ms)]
    assert min(late) >= 0
    assert max(late) <= STEP_MS
    assert rig.delivered(QUARANTINE_TOPIC) == []
    rig.close()


@pytest.mark.parametrize("bit", [0, 5, 9, 12, 17, 30, 40, 62, 63])
def test_a_due_time_that_was_flipped_neither_loses_nor_delays(rig: FilledRig, bit: int) -> None:
    change(rig, 4, "due_ms", bit=bit)
    assert_all_in_time(rig)


@pytest.mark.parametrize("name", ["write_ms", "delay_ms"])
@pytest.mark.parametrize("bit", [0, 3, 8])
def test_a_time_of_the_slot_that_was_flipped_changes_nothing(
    rig: FilledRig, name: str, bit: int
) -> None:
    change(rig, 4, name, bit=bit)
    assert_all_in_time(rig)


@pytest.mark.parametrize("bit", [0, 4, 8, 11, 35, 62, 63])
def test_a_log_offset_that_was_flipped_is_repaired(rig: FilledRig, bit: int) -> None:
    change(rig, 4, "phys_offset", bit=bit)
    assert_all_in_time(rig)


def test_a_unit_with_the_place_of_another_timer_is_repaired(rig: FilledRig) -> None:
    """Both records have the same size: only the due times show it."""
    for number in (3, 5):
        change(rig, 4, "phys_offset", value(rig, number, "phys_offset"))
        assert value(rig, 4, "record_size") == value(rig, number, "record_size")
        assert_all_in_time(rig)
        return


@pytest.mark.parametrize("bit", [0, 3, 20, 31])
def test_a_size_that_was_flipped_is_repaired(rig: FilledRig, bit: int) -> None:
    change(rig, 4, "record_size", bit=bit)
    assert_all_in_time(rig)


def test_a_damaged_record_goes_to_quarantine_and_costs_one_rebuild_at_most(rig: FilledRig) -> None:
    start = value(rig, 4, "phys_offset")
    path = rig.root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[start + 4] ^= 0xFF  # its magic
    path.write_bytes(data)
    found = delivered(rig)
    assert sorted(found) == [number for number in range(COUNT) if number != 4]
    assert len(rig.delivered(QUARANTINE_TOPIC)) == 1
    assert rig.timers.state.rebuilds == 0
    rig.close()


def test_a_record_whose_time_was_flipped_goes_to_quarantine(rig: FilledRig) -> None:
    """Its block has another checksum: the unit is right."""
    start, size = value(rig, 4, "phys_offset"), value(rig, 4, "record_size")
    path = rig.root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at = data.index(str(rig.due_ms[4]).encode(), start, start + size) + 9
    data[at] ^= 1
    path.write_bytes(data)
    found = delivered(rig)
    assert 4 not in found
    assert len(rig.delivered(QUARANTINE_TOPIC)) == 1
    assert rig.timers.state.rebuilds == 0
    rig.close()


@pytest.mark.parametrize("bit", range(4))
@pytest.mark.parametrize("rolls", [1, 2])
def test_a_flipped_magic_of_a_timer_that_rolls_loses_nothing(
    tmp_path: Path, rolls: int, bit: int
) -> None:
    """One of the bits makes a marker of it: the count of its slot stays right."""
    rig = FilledRig(tmp_path, roll_window_slots=5)
    rig.open()
    first_ms = rig.clock.now_ms() + 4_000 + 5_000 * rolls
    rig.due_ms = [first_ms + 100 * number for number in range(COUNT)]
    for number, due_ms in enumerate(rig.due_ms):
        rig.put(due_ms, body=b"%03d" % number)
    rig.close()
    assert value(rig, 4, "magic") == layout.MAGIC_DEFAULT | layout.MAGIC_ROLL
    change(rig, 4, "magic", bit=bit)
    rig.config = TimerRig(tmp_path, roll_window_slots=5).config
    rig.open()
    for _ in range(60):
        rig.advance(STEP_MS)
    assert sorted(int(record.body) for record in rig.delivered()) == list(range(COUNT))
    rig.close()


def test_a_marker_that_rolls_is_compared_once_and_no_damage(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, roll_window_slots=5).open()
    due_ms = rig.clock.now_ms() + 12_500
    rig.put(due_ms, body=b"000", UNIQ_KEY="K")
    rig.put(due_ms, body=b"001")
    rig.put(due_ms, body=b"", TIMER_DEL_UNIQKEY="T+K")
    for _ in range(30):
        rig.advance(STEP_MS)
    assert [record.body for record in rig.delivered()] == [b"001"]
    assert rig.timers.state.rebuilds == 0
    rig.close()


def without_window(reason_of: Callable[[Any, Any], str | None], state: Any, saved: Any) -> Any:
    return reason_of(state, replace(saved, window_ms=0))


@pytest.mark.parametrize("is_recorded", [True, False])
def test_timers_rolled_by_another_window_cost_one_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    """Their distance is no multiple of the window in force.

    The checkpoint records the window, so that the start enqueues the timers again, and decisions
    find them. Without it, as in one of 1.0.0, the first slot that rolls detects it.
    """
    if not is_recorded:
        monkeypatch.setattr(recovery, "invalid_reason", partial(without_window, invalid_reason))
    rig = FilledRig(tmp_path, roll_window_slots=7)
    rig.open()
    rig.due_ms = [rig.clock.now_ms() + 17_300 + STEP_MS * number for number in range(COUNT)]
    for number, due_ms in enumerate(rig.due_ms):
        rig.put(due_ms, body=b"%03d" % number)
    rig.close()
    rig.config = TimerRig(tmp_path, roll_window_slots=5).config
    rig.open()
    rebuilds = [text for text in rig.notices if "timerRollWindowSlot was 7, it is 5 now" in text]
    assert len(rebuilds) == is_recorded
    left = list(range(COUNT))
    if is_recorded:
        row = rig.timers.fetch.fetch_queue(COUNT - 1, 1)[0]
        decided = rig.timers.decisions.cancel(row["phys_offset"].copy())
        assert decided.verdicts.tolist() == [Verdict.DONE]
        left.pop()
    for _ in range(60):
        rig.advance(STEP_MS)
    assert sorted(int(record.body) for record in rig.delivered()) == left
    assert rig.timers.state.rebuilds == (not is_recorded)
    rig.close()


def test_a_log_offset_before_the_first_log_file_is_repaired(tmp_path: Path) -> None:
    """Retention removes no file with pending timers, so the unit is damaged."""
    rig = FilledRig(tmp_path)
    rig.store_changes = {"commitlog_file_bytes": 16_384}
    rig.open()
    while len(rig.store.log.files) < 3:
        rig.put(rig.clock.now_ms() - 1, "U", body=b"x" * 900)
    rig.due_ms = [rig.clock.now_ms() + 5_000 + STEP_MS * number for number in range(COUNT)]
    for number, due_ms in enumerate(rig.due_ms):
        rig.put(due_ms, body=b"%03d" % number)
    rig.store.log.detach_first().erase()
    rig.close()
    last = (rig.root / "timerlog" / f"{0:020d}").read_bytes().rstrip(b"\0")
    change(rig, (len(last) - 1) // UNIT_BYTES, "phys_offset", 400)
    assert_all_in_time(rig)


def test_the_times_of_settled_units_and_of_units_of_apache_match() -> None:
    unit = np.zeros(1, TIMER_UNIT)
    unit["write_ms"], unit["delay_ms"] = 5_000, 3_210
    for due_ms, magic, matches in (
        (8_211, 1, True),
        (8_212, 1, False),
        (8_210, 1, False),
        (0, 1, True),
        (-5, 1, True),
        (8_211 + 60_000, 3, True),
        (8_211 + 60_000, 1, False),
        (8_211 + 60_001, 3, False),
    ):
        unit["due_ms"], unit["magic"] = due_ms, magic
        data = unit.view(np.uint8).reshape(-1)
        assert times_fault(data, 0, 1_000, 60_000) == (0 if matches else FAULT_TIMES), due_ms
    unit["delay_ms"], unit["due_ms"], unit["magic"] = 3_000, 7_500, layout.MAGIC_DEFAULT
    assert times_fault(unit.view(np.uint8).reshape(-1), 0, 1_000, 60_000) == 0  # overdue
