"""Unreadable sectors in the commit log, timer log and wheel."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.page_guard import PAGE_BYTES
from tests.support.bad_disk import BadDisk
from tests.support.timer_rig import TimerRig
from timer_store.checkpoint.snapshot import SNAPSHOT_FILE
from timer_store.layout import WHEEL_BYTES
from timer_store.log.wheel import TimerWheel

TIMERS, DELAY_MS = 40, 60_000
BACKUP_FILE = f"{SNAPSHOT_FILE}.bak"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BadDisk:
    return BadDisk(monkeypatch)


def filled(tmp_path: Path, **config: int) -> tuple[TimerRig, list[np.void]]:
    rig = TimerRig(tmp_path, **config).open()
    rig.is_sound = False
    due_ms = rig.clock.now_ms() + DELAY_MS
    rows = [
        rig.put(due_ms, body=b"%04d" % number + b"z" * 900).rows[0].copy()
        for number in range(TIMERS)
    ]
    rig.work()
    return rig, rows


@pytest.mark.finding("E4")
def test_timers_with_unreadable_records_are_quarantined(tmp_path: Path, disk: BadDisk) -> None:
    rig, rows = filled(tmp_path)
    page = 3 * PAGE_BYTES
    hit = {
        number
        for number, row in enumerate(rows)
        if row["phys_offset"] < page + PAGE_BYTES and row["phys_offset"] + row["record_size"] > page
    }
    assert hit
    disk.break_page(rig.store.log.files[0].path, page)
    rig.advance(DELAY_MS + 1_000)
    expected = [b"%04d" % number for number in range(TIMERS) if number not in hit]
    assert sorted(body[:4] for body in rig.bodies()) == expected
    kept = rig.delivered(QUARANTINE_TOPIC)
    assert {record.properties["DUEMQ_REASON"] for record in kept} == {"unreadable"}
    assert all("Input/output error" in record.properties["DUEMQ_DETAIL"] for record in kept)
    origins = {-(int(rows[number]["phys_offset"]) + 1) for number in hit}
    assert {record.prepared_offset for record in kept} == origins
    rig.close()


@pytest.mark.finding("E4")
@pytest.mark.parametrize("restart", [False, True])
def test_an_unreadable_timer_log_is_rebuilt(tmp_path: Path, disk: BadDisk, restart: bool) -> None:
    rig, _ = filled(tmp_path, log_file_bytes=8_192)
    path = rig.timers.units.log.files[0].path
    if restart:
        rig.close()
        disk.break_page(path, 0)
        rig = TimerRig(tmp_path, rig.clock, log_file_bytes=8_192).open()
        rig.is_sound = False
    else:
        disk.break_page(path, 0)
    rig.advance(DELAY_MS + 1_000)
    assert sorted(body[:4] for body in rig.bodies()) == [b"%04d" % n for n in range(TIMERS)]
    rig.close()


@pytest.mark.finding("E4")
def test_an_unreadable_wheel_is_rebuilt(tmp_path: Path, disk: BadDisk) -> None:
    rig, _ = filled(tmp_path)
    rig.close()
    slot = rig.timers.units.wheel.tick(rig.clock.now_ms() + DELAY_MS) % (WHEEL_BYTES // 32) * 32
    disk.break_page(tmp_path / "timerwheel", slot - slot % PAGE_BYTES)
    rig = TimerRig(tmp_path, rig.clock).open()
    assert any(
        "timerwheel" in reported and "cannot be read" in reported for reported in rig.notices
    )
    rig.is_sound = False
    rig.advance(DELAY_MS + 1_000)
    assert sorted(body[:4] for body in rig.bodies()) == [b"%04d" % n for n in range(TIMERS)]
    rig.close()


@pytest.mark.finding("E7")
def test_a_running_wheel_does_not_read_its_file(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", 1_000)
    os.truncate(tmp_path / "timerwheel", 0)  # a mapping of the file would fault now
    assert wheel.next_live(1, 10**12) is None
    assert not wheel.data.any()
    wheel.data[5] = 1
    assert wheel.data[5] == 1
    wheel.close()


@pytest.mark.finding("E4")
@pytest.mark.parametrize("names", [["timercheck"], [SNAPSHOT_FILE], [SNAPSHOT_FILE, BACKUP_FILE]])
def test_an_unreadable_checkpoint_loses_no_timer(
    tmp_path: Path, disk: BadDisk, names: list[str]
) -> None:
    rig, _ = filled(tmp_path)
    rig.close()
    for name in names:
        disk.break_file(tmp_path / "config" / name)
    rig = TimerRig(tmp_path, rig.clock).open()
    rig.advance(DELAY_MS + 1_000)
    assert sorted(body[:4] for body in rig.bodies()) == [b"%04d" % n for n in range(TIMERS)]
    rig.close()


@pytest.mark.finding("E7")
def test_a_temporary_error_quarantines_no_timer(tmp_path: Path, disk: BadDisk) -> None:
    rig, _ = filled(tmp_path)
    for page in range(9):
        disk.break_page(rig.store.log.files[0].path, page * PAGE_BYTES, passing=True)
    rig.advance(DELAY_MS + 1_000)
    assert sorted(body[:4] for body in rig.bodies()) == [b"%04d" % n for n in range(TIMERS)]
    assert rig.delivered(QUARANTINE_TOPIC) == []
    rig.close()
