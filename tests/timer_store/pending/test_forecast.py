"""Forecast of due timers: each timer counts in the bin of its own due time, also if it rolls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from delayed_delivery.forecast_bins import Span
from delayed_delivery.steps import at_once
from tests.support.naive_forecast import naive_forecast
from tests.support.timer_rig import TimerRig
from timer_store.kernels import forecast as kernels
from timer_store.kernels.forecast import bin_of, move_rolled
from timer_store.layout import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT, UNIT_BYTES
from timer_store.pending import forecast as module
from timer_store.pending.forecast import forecast

MINUTE_MS = 60_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_window_slots=120, max_delay_s=366 * 86_400).open()
    yield rig
    if rig.is_open:
        rig.close()


def whole(rig: TimerRig, span: Span) -> list[int]:
    """Return all bins, combined from the pieces."""
    bins, pos = at_once(forecast(rig.timers, span))
    while pos is not None:
        more, pos = at_once(forecast(rig.timers, span, pos))
        bins = bins + more
    return bins.tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("horizon_ms", [900, 90_000, 20 * MINUTE_MS])
@pytest.mark.parametrize("scan_units", [7, 1 << 20])
def test_each_timer_counts_in_the_bin_of_its_due_time(
    rig: TimerRig, horizon_ms: int, scan_units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCAN_UNITS", scan_units)
    choose, now_ms = random.Random(2), rig.clock.now_ms()
    due_ms = [now_ms + choose.randint(1, horizon_ms) for _ in range(200)] + [now_ms + 3_000]
    for due in due_ms:
        rig.put(due)
    span = Span(now_ms // 1_000 * 1_000, 3_000, 300)
    assert whole(rig, span) == naive_forecast(due_ms, span)
    rig.advance(horizon_ms // 3)
    left = [due for due in due_ms if due > rig.clock.now_ms()]
    assert whole(rig, span) == naive_forecast(left, span)


def test_a_slot_staged_in_parts(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, stage_records_max=1_024).open()
    start_ms = rig.clock.now_ms() // 1_000 * 1_000 + 5_000
    due_ms = [start_ms + 1 + n % 900 for n in range(3_000)]
    rig.put_many([(due, "T", 0, b"") for due in due_ms])
    rig.advance(start_ms + 200 - rig.clock.now_ms())
    assert rig.timers.position.part is not None
    left = [due for due in due_ms if due > rig.clock.now_ms()]
    span = Span(start_ms - 1_000, 1_000, 10)
    assert whole(rig, span) == naive_forecast(left, span)
    rig.close()


def test_a_slot_that_is_rolled_in_parts(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, roll_window_slots=120, stage_records_max=1_024).open()
    start_ms = rig.clock.now_ms() // 1_000 * 1_000 + 5_000
    due_ms = [start_ms + 1 + n % 900 + (120_000 if n >= 600 else 0) for n in range(1_800)]
    rig.put_many([(due, "T", 0, b"") for due in due_ms])
    rig.advance(start_ms - 500 - rig.clock.now_ms())
    assert rig.timers.dequeue.rolled == 424
    span = Span(start_ms - 1_000, 1_000, 200)
    assert whole(rig, span) == naive_forecast(due_ms, span)
    rig.close()


def test_bin_of() -> None:
    for time_ms in range(-20, 60):
        reported = 0 if time_ms < 5 else min((time_ms - 5) // 7 + 1, 5)
        assert bin_of(time_ms, 5, 7, 6) == reported


def test_the_scan_equals_the_naive_count() -> None:
    choose = np.random.default_rng(3)
    for _ in range(100):
        units = np.zeros(30, TIMER_UNIT)
        units["size"], units["prev_pos"] = UNIT_BYTES, -1
        units["magic"] = choose.choice(
            [MAGIC_DEFAULT, MAGIC_ROLL, MAGIC_ROLL | MAGIC_DELETE, 99], units.size
        )
        units["write_ms"] = choose.integers(0, 10, units.size) * 1_000
        units["delay_ms"] = choose.integers(0, 10_000, units.size)
        units["phys_offset"] = choose.integers(0, 50, units.size)
        units["due_ms"] = choose.integers(-1, 40_000, units.size)
        skip = np.unique(choose.integers(0, 50, 10))
        last = (int(choose.integers(0, 20_000)), 25) if choose.random() < 0.5 else (-1, -1)
        numbers = np.array([4_000, 2_000, 1_000, 3_000, *last], np.int64)
        bins, expected = np.zeros(12, np.int64), np.zeros(12, np.int64)
        for unit in units:
            slot_ms = (int(unit["write_ms"]) + int(unit["delay_ms"])) // 1_000 * 1_000
            rolls = unit["magic"] == MAGIC_ROLL and unit["due_ms"] > 0 and slot_ms >= 3_000
            key = int(unit["due_ms"]), int(unit["phys_offset"])
            rolls = rolls and (slot_ms > 3_000 or key > last)
            if rolls and unit["phys_offset"] not in skip:
                expected[bin_of(slot_ms, 4_000, 2_000, 12)] -= 1
                expected[bin_of(int(unit["due_ms"]) - 1, 4_000, 2_000, 12)] += 1
        span = (520, 520 + units.size * UNIT_BYTES)
        move_rolled(units.view(np.uint8), 520, span, numbers, skip, bins)
        assert bins.tolist() == expected.tolist()


def test_later_forecasts_read_only_units_that_may_roll(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms, day_ms = rig.clock.now_ms(), 86_400_000
    span = Span(now_ms - now_ms % 1_000, 3_600_000, 24 * 5)
    read: list[tuple[int, int]] = []
    scan = kernels.move_rolled

    def counted(data: object, base: int, part: tuple[int, int], *more: object) -> int:
        read.append(part)
        return int(scan(data, base, part, *more))

    monkeypatch.setattr(kernels, "move_rolled", counted)
    rig.put(now_ms + MINUTE_MS)
    rig.work()
    first = whole(rig, span)
    assert whole(rig, span) == first
    assert read == [(0, UNIT_BYTES)]
    rig.put(now_ms + 4 * day_ms)
    rig.work()
    for _ in range(2):
        assert sum(whole(rig, span)) == 2
    assert read[1:] == [(UNIT_BYTES, 2 * UNIT_BYTES)] * 2
