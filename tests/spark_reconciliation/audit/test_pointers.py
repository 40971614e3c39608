"""Pending timer units match their records, and their slots contain all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from message_store.replication.truncation import truncate_store
from message_store.verify import verify_store
from spark_reconciliation.audit import file_checks
from spark_reconciliation.audit.pointers import check_units
from tests.migration.steps.test_drain import fill
from tests.spark_reconciliation.test_bad_files import places
from tests.support.migration_rig import MigrationRig
from tests.support.read_tables import read_rows
from tests.support.stores import open_store, put_one, small_config
from tests.support.timer_rig import TimerRig
from timer_store import layout
from timer_store.verify import TIMERS

pytestmark = pytest.mark.finding("C3")
HOUR_MS = 3_600_000
SAME = 5  # number of timers below that are due in one second


def filled(root: Path) -> TimerRig:
    """Write delivered, cancelled and pending timers."""
    rig = TimerRig(root).open()
    for n in range(120):
        rig.put(rig.clock.now_ms() + 500 * n, UNIQ_KEY=f"key-{n}")
    rig.advance(60_000)
    for n in range(SAME):
        rig.put(rig.clock.now_ms() + HOUR_MS + n, UNIQ_KEY=f"same-{n}")
    for n in range(20):
        rig.put(rig.clock.now_ms() + HOUR_MS + 2_000 * n, UNIQ_KEY=f"far-{n}")
    rig.put(rig.clock.now_ms() + 60 * 24 * HOUR_MS)  # this one rolls
    return rig


@pytest.fixture
def store(tmp_path: Path) -> Path:
    filled(tmp_path).close()
    return tmp_path


class Units:
    """The units of a timer log, open for writing."""

    def __init__(self, root: Path) -> None:
        self.files = [
            np.memmap(path, np.uint8, "r+")
            for path in sorted((root / "timerlog").iterdir())
            if path.stat().st_size
        ]
        self.rows: list[Any] = []
        self.pos: list[int] = []
        base = 0
        for data in self.files:
            count = data.size // layout.UNIT_BYTES
            rows = data[: count * layout.UNIT_BYTES].view(layout.TIMER_UNIT)
            for at in range(count):
                if rows[at]["size"] == layout.UNIT_BYTES:
                    self.rows.append(rows[at : at + 1])
                    self.pos.append(base + at * layout.UNIT_BYTES)
            base += data.size

    def pending(self, read_ms: int) -> list[Any]:
        return [row for row in self.rows if row["write_ms"] + row["delay_ms"] >= read_ms]


def read_ms(root: Path) -> int:
    check = np.fromfile(root / "config/timercheck", layout.TIMER_CHECK, 1)
    return int(check["read_ms"][0])


def kinds(root: Path) -> set[tuple[str, str]]:
    return {(file.split("/")[0], kind) for file, _, kind in places(root)}


def test_an_intact_store_has_no_findings(store: Path) -> None:
    assert places(store) == set()
    assert len(Units(store).pending(read_ms(store))) >= 20 + SAME


def test_a_kill_and_late_units_give_no_findings(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.persist()
    rig.clock.set_ms(rig.clock.now_ms() + HOUR_MS + 9_000)  # many become due together
    rig.put(rig.clock.now_ms() - 5_000)
    rig.work()
    rig.put(rig.clock.now_ms() + 5_000)
    rig.kill()
    assert places(tmp_path) == set()
    TimerRig(tmp_path, rig.clock).open().kill()
    assert places(tmp_path) == set()


def test_timers_of_a_truncated_log_give_no_findings(store: Path) -> None:
    """A former master that is a replica: the log goes on with other records at these offsets."""
    with open_store(store) as opened:
        ends = [int(row["phys_offset"]) for rows in opened.scan(0) for row in rows]
    truncate_store(small_config(store), FakeClock(), ends[-6])
    clock = FakeClock()
    clock.advance(HOUR_MS)
    with open_store(store, clock) as opened:
        for size in range(400, 500, 10):
            put_one(opened, "T", body=b"x" * size)
    assert places(store) == set()


def test_migrations_and_rollbacks_give_no_findings(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    fill(rig, 60, (3, 4, 5))
    assert rig.drain.step(4, 13, migration="run-1").moved == 13
    rig.route(5)
    fill(rig, 20, (4, 5))
    rig.work()
    rig.close()
    assert places(tmp_path) == set()
    assert not any(row["other_time"] for row in read_rows(tmp_path, "messages", "other_time"))
    assert all(row["queued"] is not False for row in read_rows(tmp_path, "messages", "queued"))


@pytest.mark.sampled
@pytest.mark.parametrize("field", ["phys_offset", "due_ms", "delay_ms", "record_size"])
def test_a_unit_with_a_wrong_field(store: Path, field: str) -> None:
    units = Units(store)
    rows = units.pending(read_ms(store))
    row = rows[SAME + 7]
    row[field] = rows[3][field] if field == "phys_offset" else row[field] + 61_000
    assert ("timerlog", "pointer") in kinds(store)


def test_a_unit_with_an_offset_between_records(store: Path) -> None:
    row = Units(store).pending(read_ms(store))[4]
    row["phys_offset"] += 8
    assert kinds(store) == {("timerlog", "pointer")}


def test_a_chain_that_omits_a_unit(store: Path) -> None:
    """All units are of one second; the newest but one is omitted."""
    rows = Units(store).pending(read_ms(store))[:SAME]
    rows[-1]["prev_pos"] = rows[-3]["prev_pos"]
    assert kinds(store) == {("timerwheel", "pointer")}


@pytest.mark.parametrize("field", ["last_pos", "tick", "all"])
def test_a_slot_with_a_wrong_field(store: Path, field: str) -> None:
    slots = np.memmap(store / "timerwheel", layout.TIMER_SLOT, "r+")
    ticks = read_ms(store) // 1_000
    waits = np.flatnonzero((slots["tick"] >= ticks) & (slots["last_pos"] >= 0))
    if field == "all":
        slots[waits[3]] = np.zeros((), layout.TIMER_SLOT)
    elif field == "tick":
        slots["tick"][waits[3]] -= layout.WHEEL_SLOTS  # a slot of another lap
    else:
        slots["last_pos"][waits[3]] = slots["last_pos"][waits[5]]
    assert kinds(store) == {("timerwheel", "pointer")}


def test_pages_of_the_wheel_without_blocks_are_not_read(store: Path) -> None:
    """On a file system in memory, a page that is read through a mapping takes memory."""
    wheel = store / "timerwheel"
    blocks = wheel.stat().st_blocks
    assert blocks < layout.WHEEL_BYTES // 512 // 10
    assert kinds(store) == set()
    assert verify_store(store, parts=[TIMERS]).ok
    assert wheel.stat().st_blocks == blocks


def test_units_are_checked_in_blocks_of_a_fixed_size(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def recorded(about: Any, part: Any, rows: Any, pos: Any) -> Any:
        sizes.append(rows.size)
        return check_units(about, part, rows, pos)

    Units(store).pending(read_ms(store))[SAME + 7]["due_ms"] += 61_000
    whole = places(store)
    monkeypatch.setattr(file_checks, "check_units", recorded)
    monkeypatch.setattr(file_checks, "BLOCK_UNITS", 7)
    assert places(store) == whole != set()
    assert max(sizes) == 7
    assert sum(sizes) >= 20 + SAME
