"""The wheel: laps, changed pages and the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_delivery.steps import at_once
from duemq_common.errors import CorruptStore
from tests.support.golden_stores import golden_store
from tests.support.timer_logs import NOW_MS
from timer_store import layout
from timer_store.kernels.wheel import PAGE_BYTES, put_slot
from timer_store.layout import WHEEL_BYTES, WHEEL_SLOTS
from timer_store.log import wheel as module
from timer_store.log.wheel import NO_UNITS, Slot, TimerWheel

SECOND = 1_000
LAP_MS = WHEEL_SLOTS * SECOND
GOLDEN = ["apache-5.3.3-clean", "apache-5.3.3-killed"]


@pytest.fixture
def wheel(tmp_path: Path) -> Iterator[TimerWheel]:
    wheel = TimerWheel(tmp_path / "timerwheel", SECOND)
    yield wheel
    wheel.close()


def put(wheel: TimerWheel, time_ms: int, first: int = 0, last: int = 0, num: int = 1) -> None:
    tick = wheel.tick(time_ms)
    at = tick % WHEEL_SLOTS * 32
    put_slot(wheel.data, wheel.pages, at, tick, first, last, num)


def test_slot_layout_of_the_specification(wheel: TimerWheel) -> None:
    put(wheel, 1_700_000_100_000)
    wheel.write(wheel.capture())
    data = wheel.path.read_bytes()[16_387_200:16_387_232]
    assert data == bytes.fromhex("000000006553f164" + "00" * 16 + "00000001" + "00000000")


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1_000])
def test_a_slot_holds_the_times_of_one_tick_of_one_lap(tmp_path: Path, precision_ms: int) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", precision_ms)
    put(wheel, NOW_MS, 52, 104, 2)
    slot = Slot(NOW_MS // precision_ms, 52, 104, 2, 0)
    lap_ms = WHEEL_SLOTS * precision_ms
    for time_ms, found in [
        (NOW_MS, slot),
        (NOW_MS + precision_ms - 1, slot),
        (NOW_MS - 1, NO_UNITS),
        (NOW_MS + precision_ms, NO_UNITS),
        (NOW_MS + lap_ms, NO_UNITS),
        (NOW_MS - lap_ms, NO_UNITS),
        (0, NO_UNITS),
    ]:
        assert wheel.slot(time_ms) == found
        assert wheel.num(time_ms) == found.num
    wheel.close()


@pytest.mark.parametrize("store", GOLDEN)
def test_apaches_wheel(store: str) -> None:
    wheel = TimerWheel(golden_store(store) / "timerwheel", SECOND)
    live = wheel.live(0)
    raw = np.frombuffer((golden_store(store) / "timerwheel").read_bytes(), layout.TIMER_SLOT)
    expected = raw[raw["tick"] > 0]
    order = np.argsort(expected["tick"])
    first_ms = int(expected["tick"].min()) * SECOND
    live = wheel.live(first_ms)
    assert live.tolist() == expected[order].tolist()
    assert live.size == 19
    assert wheel.slot(1_795_312_232_500) == Slot(1_795_312_232, 884, 1_456, 9, 0)
    assert wheel.slot(1_795_229_432_000).num == -1  # one timer and two cancels
    assert wheel.num(1_795_229_432_000) == 0
    assert not wheel.capture().pages.size
    wheel.close()


def test_a_wheel_of_another_size_is_refused_with_the_action(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.write_bytes(b"\0" * (WHEEL_BYTES // 2))
    with pytest.raises(CorruptStore, match="it has 19353600 bytes; a wheel has 38707200") as raised:
        TimerWheel(path, SECOND)
    assert "rebuilt from the timer log" in raised.value.remedy


@pytest.mark.parametrize("empty", [True, False])
def test_a_missing_wheel_is_created_as_a_sparse_file(tmp_path: Path, empty: bool) -> None:
    path = tmp_path / "timerwheel"
    if empty:
        path.touch()
    wheel = TimerWheel(path, SECOND)
    assert path.stat().st_size == WHEEL_BYTES
    assert path.stat().st_blocks == 0
    assert not wheel.pages.any()
    assert wheel.total(NOW_MS) == 0
    wheel.close()


def test_the_file_changes_only_when_it_is_written(wheel: TimerWheel) -> None:
    put(wheel, NOW_MS)
    assert not any(wheel.path.read_bytes())
    captured = wheel.capture()
    put(wheel, NOW_MS, num=2)  # after the capture
    wheel.write(captured)
    again = TimerWheel(wheel.path, SECOND)
    assert (again.num(NOW_MS), wheel.num(NOW_MS)) == (1, 2)
    wheel.write(wheel.capture())
    assert TimerWheel(wheel.path, SECOND).num(NOW_MS) == 2
    assert not wheel.capture().pages.size


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sets(st.integers(0, WHEEL_SLOTS - 1), max_size=40), max_size=4))
def test_only_changed_pages_are_written(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[set[int]]
) -> None:
    path = tmp_path_factory.mktemp("wheel") / "timerwheel"
    wheel = TimerWheel(path, SECOND)
    for number, places in enumerate(rounds):
        for place in places:
            put(wheel, (WHEEL_SLOTS + place) * SECOND, num=number)
        captured = wheel.capture()
        assert captured.pages.tolist() == sorted({place * 32 // PAGE_BYTES for place in places})
        wheel.write(captured)
    found = TimerWheel(path, SECOND)
    pages = np.flatnonzero(wheel.pages)
    assert np.flatnonzero(found.pages).tolist() == pages.tolist()
    for page in pages:
        span = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
        assert found.data[span].tobytes() == wheel.data[span].tobytes()
    assert (
        path.stat().st_blocks * 512 <= (len(pages) + 16) * PAGE_BYTES
    )  # blocks of the file system itself
    wheel.close()
    found.close()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_pages_not_written_to_a_full_disk_are_captured_again(
    wheel: TimerWheel, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    for n in (0, 1, 500):
        put(wheel, NOW_MS + n * 128 * SECOND)
    left, pwrite = [written], os.pwrite

    def no_room(*args: int | memoryview) -> int:
        left[0] -= 1
        if left[0] < 0 or len(args) == 1:
            raise OSError(28, "No space left on device")
        return pwrite(*args)

    before = wheel.capture()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_room)
        patch.setattr(os, "fdatasync", no_room)
        with pytest.raises(OSError, match="No space"):
            wheel.write(before)
    assert wheel.capture().pages.tolist() == before.pages.tolist()


def test_the_wheel_of_a_killed_process_is_synced_again(
    wheel: TimerWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Any] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    wheel.write(wheel.capture())
    assert len(synced) == 1, "nothing was changed by this process"
    wheel.write(wheel.capture())
    assert len(synced) == 1, "once"


def test_an_unwritten_capture_is_restored(wheel: TimerWheel) -> None:
    put(wheel, NOW_MS)
    captured = wheel.capture()
    wheel.mark_changed(captured)
    put(wheel, NOW_MS + 500 * SECOND)
    assert set(wheel.capture().pages.tolist()) > set(captured.pages.tolist())


def test_clear_changes_the_file(wheel: TimerWheel) -> None:
    put(wheel, NOW_MS)
    wheel.write(wheel.capture())
    wheel.clear()
    assert wheel.slot(NOW_MS) == NO_UNITS
    wheel.write(wheel.capture())
    assert not any(wheel.path.read_bytes())


@pytest.mark.parametrize(
    ("from_ms", "until_ms", "found"),
    [
        (NOW_MS, NOW_MS + 9_000, NOW_MS + 2_000),
        (NOW_MS + 2_999, NOW_MS + 9_000, NOW_MS + 2_000),
        (NOW_MS + 3_000, NOW_MS + 9_000, NOW_MS + 5_000),
        (NOW_MS + 3_000, NOW_MS + 5_001, NOW_MS + 5_000),
        (NOW_MS + 3_000, NOW_MS + 5_000, None),
        (NOW_MS + 6_000, NOW_MS + 9_000, None),
        (NOW_MS + 6_000, NOW_MS, None),
        (NOW_MS + 6_000, NOW_MS + 3 * LAP_MS, NOW_MS + LAP_MS - SECOND),
        (NOW_MS + LAP_MS, NOW_MS + 3 * LAP_MS, None),
    ],
)
def test_the_next_slot_with_units(
    wheel: TimerWheel, from_ms: int, until_ms: int, found: int | None
) -> None:
    for time_ms in (NOW_MS + 2_000, NOW_MS + 5_000, NOW_MS + LAP_MS - SECOND):
        put(wheel, time_ms)
    assert wheel.next_live(from_ms, until_ms) == found


def test_slots_are_listed_in_the_order_of_time(wheel: TimerWheel) -> None:
    times = [NOW_MS + n * 400 * SECOND for n in range(3_000)]  # wraps around the wheel's end
    for n, time_ms in enumerate(times):
        put(wheel, time_ms, num=n - 1)
    found = np.concatenate(list(wheel.live_parts(NOW_MS, slots_max=700)))
    assert (found["tick"] * SECOND).tolist() == times
    assert (wheel.live(times[7], times[9])["tick"] * SECOND).tolist() == times[7:9]
    assert wheel.total(NOW_MS) == sum(range(2_999))


def test_the_forecast(wheel: TimerWheel) -> None:
    for n, num in [(0, 1), (59, 2), (60, 4), (61, 8), (179, 16), (180, 32)]:
        put(wheel, NOW_MS + n * SECOND, num=num)
    put(wheel, NOW_MS + 70 * SECOND, num=-3)
    assert wheel.forecast(NOW_MS, 60_000, 3).tolist() == [3, 12, 16]
    assert wheel.forecast(NOW_MS + 500, 60_000, 1).tolist() == [7]


def test_counts_in_several_steps(wheel: TimerWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_SLOTS", 100)
    nums = {0: 4, 99: 7, 100: 2, 250: 9, 251: 0, 1_000: 7, LAP_MS // SECOND - 1: 5}
    for n, num in nums.items():
        put(wheel, NOW_MS + n * SECOND, num=num)
    used, full, fullest = at_once(wheel.fullest(NOW_MS, 4, 5))
    ticks = [NOW_MS // SECOND + n for n in (250, 1_000, 99, LAP_MS // SECOND - 1)]
    assert (used, full) == (6, 4)
    assert fullest.tolist() == [[9, ticks[0]], [7, ticks[1]], [7, ticks[2]], [5, ticks[3]]]
    assert wheel.total(NOW_MS) == sum(nums.values())
    assert wheel.forecast(NOW_MS, 100 * SECOND, 3).tolist() == [11, 2, 9]


def test_slots_with_impossible_times_are_counted(wheel: TimerWheel) -> None:
    put(wheel, NOW_MS + LAP_MS - SECOND)
    assert wheel.stray_slots(NOW_MS) == 0
    put(wheel, NOW_MS + LAP_MS)
    assert wheel.stray_slots(NOW_MS) == 1
