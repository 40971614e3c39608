"""Writes to and reads from timer log and wheel, without a commit log.

python -m benchmarks.kernels.timer_log_bench [pending timers]

"warm" writes to the same region of the log repeatedly, and shows the cost of the code alone.
"fresh" writes to new pages of the file, as a broker does, and includes the page faults.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.ingest_bench import measure
from timer_store import layout
from timer_store.kernels.forecast import bin_slots, fullest_slots
from timer_store.layout import WHEEL_SLOTS
from timer_store.log.timer_log import TimerLog
from timer_store.log.units import TimerUnits
from timer_store.log.wheel import TimerWheel

NOW_MS = 1_700_000_000_000
RECORD_BYTES = 300
DAY_MS, SECOND_MS = 86_400_000, 1_000
DAY_MINUTES = 1_440


@contextmanager
def opened() -> Iterator[TimerUnits]:
    """Yield an empty timer log and wheel of default sizes."""
    with tempfile.TemporaryDirectory() as directory:
        log = TimerLog(Path(directory) / "timerlog")
        log.load()
        units = TimerUnits(log, TimerWheel(Path(directory) / "timerwheel", SECOND_MS))
        yield units
        units.close()


def timers(count: int, span_ms: int) -> Any:
    """Return timers in queue order, due at random within a span."""
    rows = np.zeros(count, layout.TIMED)
    rows["due_ms"] = NOW_MS + 1 + np.random.default_rng(1).integers(0, span_ms, count)
    rows["slot_ms"] = rows["due_ms"] - 1
    rows["phys_offset"] = np.arange(count) * RECORD_BYTES
    rows["record_size"] = RECORD_BYTES
    return rows


def add_all(units: TimerUnits, rows: Any, batch: int) -> None:
    """Add rows in batches."""
    for start in range(0, rows.size, batch):
        units.add(rows[start : start + batch], write_ms=NOW_MS, read_ms=NOW_MS)


def once(name: str, count: int, work: Callable[[], Any]) -> None:
    """Print wall time and processor time per item of one run of `count` items."""
    start, cpu = time.perf_counter(), time.thread_time()
    work()
    each, cpu = (time.perf_counter() - start) / count, (time.thread_time() - cpu) / count
    print(f"{name:<36} {each * 1e9:8.0f} ns each {1 / each:12,.0f} /s  cpu {cpu * 1e9:6.0f} ns")


def measure_add(units: TimerUnits) -> None:
    """Measure adding batches of several sizes."""
    for count in (1, 64, 2_048, 16_384):
        for span_ms, name in ((SECOND_MS, "one slot"), (DAY_MS, "a day")):
            rows = timers(count, span_ms)

            def again(rows: Any = rows) -> None:
                units.log.end = 0
                units.add(rows, write_ms=NOW_MS, read_ms=NOW_MS)

            measure(f"add {count}, {name}, warm", count, again)
    units.clear()


def measure_read(units: TimerUnits, pending: int) -> None:
    """Measure reading one slot with all timers, completely and its first tenth."""
    add_all(units, timers(pending, SECOND_MS), 2_048)
    measure(f"read_slot of {pending:,}", pending, lambda: units.read_slot(NOW_MS))
    part = max(pending // 10, 1)
    measure(
        f"read_slot_part, {part:,} of them", pending, lambda: units.read_slot_part(NOW_MS, part)
    )
    units.clear()


def measure_many(units: TimerUnits, pending: int) -> None:
    """Measure reading and repairing the slots of one day."""
    rows = timers(pending, DAY_MS)
    once(f"add {pending:,}, a day, fresh", pending, lambda: add_all(units, rows, 2_048))
    slots = units.wheel.live(NOW_MS)["tick"] * SECOND_MS
    once(
        "read_slot, each", pending, lambda: [units.read_slot(slot_ms) for slot_ms in slots.tolist()]
    )
    which = np.random.default_rng(2).integers(0, pending, 10_000)
    phys_offsets, slot_ms = rows["phys_offset"][which], rows["slot_ms"][which]
    measure("find 10,000 in queue order", 10_000, lambda: units.find(phys_offsets, slot_ms))
    places = units.find(phys_offsets, slot_ms)
    once("settle 10,000", 10_000, lambda: units.settle(places))
    measure("find settled ones, by walking", 10_000, lambda: units.find(phys_offsets, slot_ms))
    measure("check every slot", slots.size, lambda: units.check(NOW_MS))
    measure("scan", pending, lambda: [chunk.size for chunk in units.log.scan()])
    once("relink", pending, lambda: units.relink(NOW_MS))
    half = units.log.end // 104_857_600 * 104_857_600 or units.log.end // 104 * 52
    once("repair, half of it cut off", pending // 2, lambda: units.repair(half))


def measure_counts(units: TimerUnits) -> None:
    """Count the slots of a full wheel with the kernels, and with NumPy from a list of slots."""
    rows = timers(WHEEL_SLOTS, SECOND_MS)
    rows["due_ms"] += np.arange(WHEEL_SLOTS) * SECOND_MS
    rows["slot_ms"] = rows["due_ms"] - 1
    add_all(units, rows, 16_384)
    wheel, bins, minute_ms = units.wheel, np.zeros(DAY_MINUTES + 2, np.int64), 60 * SECOND_MS
    ticks = (NOW_MS // SECOND_MS, NOW_MS // SECOND_MS + WHEEL_SLOTS)
    numbers = (NOW_MS, minute_ms, SECOND_MS)
    fullest = np.zeros((5, 2), np.int64)

    def listed_bins() -> Any:
        live = wheel.live(NOW_MS)
        index = (live["tick"] * SECOND_MS - NOW_MS) // minute_ms + 1
        return np.bincount(index.clip(0, DAY_MINUTES + 1), weights=live["num"])

    def listed_fullest() -> Any:
        live = wheel.live(NOW_MS)
        return live[np.lexsort((live["tick"], live["num"]))[-5:]]

    count = WHEEL_SLOTS
    measure("bin_slots", count, lambda: bin_slots(wheel.data, wheel.pages, ticks, numbers, bins))
    measure("the same, of a list of slots", count, listed_bins)
    measure(
        "fullest_slots",
        count,
        lambda: fullest_slots(wheel.data, wheel.pages, ticks, 1_000, fullest),
    )
    measure("the same, of a list of slots", count, listed_fullest)
    units.clear()


def main(pending: int) -> None:
    """Measure with a number of pending timers."""
    with opened() as units:
        measure_counts(units)
        measure_add(units)
        measure_read(units, pending)
        measure_many(units, pending)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
