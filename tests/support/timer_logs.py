"""Small timer logs and wheels for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.naive_timer_log import Model, Timer
from timer_store import layout
from timer_store.kernels.wheel import PAGE_SLOTS
from timer_store.log.timer_log import TimerLog
from timer_store.log.units import TimerUnits
from timer_store.log.wheel import TimerWheel

FILE_BYTES = 2_600  # 49 units, as in the golden stores
NOW_MS = 1_700_000_000_000


def open_units(root: Path, precision_ms: int = 1_000, file_bytes: int = FILE_BYTES) -> TimerUnits:
    """Open a timer log and a wheel; the caller knows the end of the log."""
    log = TimerLog(root / "timerlog", file_bytes)
    log.load()
    return TimerUnits(log, TimerWheel(root / "timerwheel", precision_ms))


@contextmanager
def temporary_units(**settings: Any) -> Iterator[TimerUnits]:
    """Open a timer log and a wheel in a temporary directory."""
    with tempfile.TemporaryDirectory() as root:
        units = open_units(Path(root), **settings)
        try:
            yield units
        finally:
            units.close()


def timed(timers: Iterable[Timer]) -> Any:
    """Return (n,) `layout.TIMED`."""
    timers = list(timers)
    rows = np.zeros(len(timers), layout.TIMED)
    for row, timer in zip(rows, timers, strict=True):
        row["due_ms"], row["slot_ms"] = timer.due_ms, timer.slot_ms
        row["phys_offset"], row["record_size"] = timer.phys_offset, timer.record_size
        row["topic_hash"], row["kind"] = timer.topic_hash, timer.kind
    return rows


def timer(due_ms: int, phys_offset: int, **changes: Any) -> Timer:
    """Return a timer for its own slot."""
    return Timer(due_ms, due_ms - 1, phys_offset, **changes)


def assert_same_log(units: TimerUnits, model: Model) -> None:
    """Check that the log has the model's units, followed by zeros."""
    assert units.log.end == model.end
    for file in units.log.files:
        data = bytearray(file.size)
        for pos, unit in model.units.items():
            if file.base <= pos < file.base + file.size:
                data[pos - file.base : pos - file.base + 52] = unit.pack()
        full = units.log.units_per_file * 52
        assert file.data[:full].tobytes() == data[:full]


def assert_same_wheel(units: TimerUnits, model: Model) -> None:
    """Check that the wheel has the model's slots and no others."""
    slots = units.wheel.data.view(layout.TIMER_SLOT)
    pages = slots["tick"].reshape(-1, PAGE_SLOTS)
    places = [
        int(page) * PAGE_SLOTS + int(index)
        for page in np.flatnonzero(units.wheel.pages)
        for index in np.flatnonzero(pages[page])
    ]
    actual = {index: tuple(slots[index].tolist()[:4]) for index in places}
    expected = {
        index: (slot.tick, slot.first_pos, slot.last_pos, slot.num)
        for index, slot in model.slots.items()
    }
    assert actual == expected
