"""Truncated, changed, zeroed and lost files: no timer is lost or duplicated.

The commit log contains everything that is needed to rebuild the other files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore
from duemq_common.json_dialect import backup_path
from duemq_common.topics import QUARANTINE_TOPIC
from tests.support.extended import one_in
from tests.support.sparse_files import copy_used
from tests.support.timer_rig import TimerRig
from timer_store.dequeue.dequeue_service import RETRY_MS
from timer_store.layout import SLOT_BYTES, TIMER_SLOT, TIMER_UNIT, UNIT_BYTES, WHEEL_SLOTS

TIMERS = 120
LOG, WHEEL = f"timerlog/{0:020d}", "timerwheel"
CHECK, SAVED, METRICS = "config/timercheck", "config/duemq.timers.json", "config/timermetrics"
STAGES = ["checkpoint", "later", "closed"]
DUE_MS = [FakeClock().now_ms() + 1 + 61 * number for number in range(TIMERS)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, int]]:
    """Return the directory of an undamaged store by its stage, and the time of its end."""

    @cache
    def write(stage: str) -> tuple[Path, int]:
        root = tmp_path_factory.mktemp(stage)
        return root, write_store(root, stage)

    return write


@pytest.fixture
def rig(stage: str, tmp_path: Path, written: Callable[[str], tuple[Path, int]]) -> TimerRig:
    """Return a closed copy of a store."""
    root, end_ms = written(stage)
    shutil.copytree(root, tmp_path, copy_function=copy_used, dirs_exist_ok=True)
    return TimerRig(tmp_path, FakeClock(end_ms))


def write_store(root: Path, stage: str) -> int:
    """Leave a store with timers delivered, pending, and put after the checkpoint."""
    rig = TimerRig(root).open()
    for number in range(TIMERS // 2):
        rig.put(DUE_MS[number], body=b"%d" % number)
    rig.advance(1_000)
    assert rig.persist()
    if stage == "checkpoint":
        rig.advance(100)
    for number in range(TIMERS // 2, TIMERS):
        rig.put(DUE_MS[number], body=b"%d" % number)
    rig.advance(1_000)
    if stage == "later":
        assert rig.persist()
    rig.close() if stage == "closed" else rig.kill()
    return rig.clock.now_ms()


def check_all(
    rig: TimerRig, due_ms: Sequence[int] = DUE_MS, late_ms: int = 0, rest_ms: int = 20_000
) -> None:
    """Open the store twice and check that each timer was delivered once, not early and in time."""
    rig.clock.advance(100)
    opened_ms = rig.open().clock.now_ms()
    rig.advance(1_000)
    rig.kill()
    rig.open()
    rig.advance(rest_ms)
    records = rig.delivered()
    assert sorted(int(record.body) for record in records) == list(range(TIMERS))
    for record in records:
        next_ms = due_ms[int(record.body)]
        assert next_ms <= record.store_ms <= max(next_ms, opened_ms) + late_ms
    assert rig.timers.counts.total == 0
    rig.close()


def change(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "damage", "stage"),
    one_in(
        4,
        product(
            [LOG, WHEEL, CHECK, SAVED, METRICS],
            ["lost", "empty", "half", "zero", "longer", "garbage"],
            STAGES,
        ),
    ),
)
def test_a_whole_file_is_damaged(rig: TimerRig, name: str, damage: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == SAVED:
        backup_path(path).unlink(missing_ok=True)
    if damage == "lost":
        path.unlink()
    else:
        size = path.stat().st_size
        with path.open("r+b") as file:
            if damage == "longer":
                file.seek(size)
                file.write(b"x" * 52)
            elif damage == "garbage":
                file.write(b"\xa5" * min(size, 1 << 16))
            else:
                file.truncate({"empty": 0, "half": size // 2, "zero": 0}[damage])
                file.truncate(size if damage == "zero" else {"empty": 0}.get(damage, size // 2))
    check_all(rig)
    if (name, damage) in [(WHEEL, "half"), (WHEEL, "longer"), (LOG, "half"), (LOG, "longer")]:
        assert any(name.split("/")[0] in notice for notice in rig.notices)
        assert (tmp_path / (name.split("/")[0] + ".damaged")).exists()


def damage_unit(rig: TimerRig, unit: int, column: str) -> None:
    dtype, offset = TIMER_UNIT.fields[column][:2]
    change(rig.root / LOG, unit * UNIT_BYTES + offset, b"\x5a" * dtype.itemsize)
    rig.is_sound = False


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("column", "unit", "stage"), one_in(4, product(TIMER_UNIT.names, [0, 20, 47], STAGES))
)
def test_a_number_of_a_unit_is_damaged(rig: TimerRig, column: str, unit: int) -> None:
    damage_unit(rig, unit, column)
    check_all(rig, late_ms=RETRY_MS)  # the timers are rebuilt
    assert rig.delivered(QUARANTINE_TOPIC) == []


@pytest.mark.sampled
@pytest.mark.parametrize("stage", ["later"])
@pytest.mark.parametrize(
    ("bit", "unit"), one_in(3, product(range(0, UNIT_BYTES * 8, 23), [20, 47]))
)
def test_a_bit_of_a_unit_is_flipped(rig: TimerRig, bit: int, unit: int, tmp_path: Path) -> None:
    path, at = tmp_path / LOG, unit * UNIT_BYTES + bit // 8
    change(path, at, bytes([path.read_bytes()[at] ^ 1 << bit % 8]))
    rig.is_sound = False
    check_all(rig, late_ms=RETRY_MS)


@pytest.mark.sampled
@pytest.mark.parametrize(("column", "stage"), one_in(2, product(TIMER_SLOT.names, STAGES)))
def test_a_number_of_a_slot_is_damaged(rig: TimerRig, column: str, tmp_path: Path) -> None:
    slot = DUE_MS[40] // 1_000 % WHEEL_SLOTS
    dtype, offset = TIMER_SLOT.fields[column][:2]
    change(tmp_path / WHEEL, slot * SLOT_BYTES + offset, b"\x5a" * dtype.itemsize)
    check_all(rig)


@pytest.mark.sampled
@pytest.mark.parametrize(("at", "stage"), one_in(2, product([0, 8, 16, 24, 40, 48], STAGES)))
def test_a_number_of_timercheck_is_damaged(rig: TimerRig, at: int, tmp_path: Path) -> None:
    change(tmp_path / CHECK, at, b"\0\0\x5a\x5a\x5a\x5a\x5a\x5a")
    check_all(rig)


@pytest.mark.parametrize("stage", ["later"])
@pytest.mark.parametrize("place", [13, 10_000_000])
def test_a_wrong_position_stops_neither_checkpoint_nor_broker(
    rig: TimerRig, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    rig.open()
    rig.keeper._next_tombstones = np.array([place], np.int64)
    assert rig.persist(last=True)
    assert "there is no unit" in caplog.text
    rig.keeper._next_tombstones = np.array([place], np.int64)
    rig.close()
    check_all(rig)


def test_a_rebuild_drops_the_positions_of_rolled_units(tmp_path: Path) -> None:
    """Otherwise the next checkpoints write tombstones to units of pending timers."""
    rig = TimerRig(tmp_path, roll_window_slots=10).open()
    due_ms = [rig.clock.now_ms() + 45_500 + number for number in range(TIMERS)]
    rig.put_many([(at, "T", 0, b"%d" % number) for number, at in enumerate(due_ms)])
    rig.advance(8_000)
    assert rig.timers.dequeue.rolled == TIMERS
    rig.timers.dequeue.broken = CorruptStore(tmp_path / LOG, 0, "a unit is damaged", "")
    rig.work()
    for _ in range(3):
        assert rig.persist(last=True)
    rig.kill()
    check_all(rig, due_ms, rest_ms=60_000)
    assert rig.timers.state.rebuilds == 0
