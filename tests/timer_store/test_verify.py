"""`duemq store verify` on timers: damage is found with its place, intact stores are accepted."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from message_store.replication.truncation import truncate_store
from message_store.verify import Report, verify_store
from tests.support.golden_stores import golden_store
from tests.support.sparse_files import copy_used
from tests.support.stores import open_store, put_one, small_config
from tests.support.timer_rig import LOG_FILE_BYTES, TimerRig
from timer_store.layout import SLOT_BYTES, TIMER_SLOT, UNIT_BYTES, WHEEL_BYTES
from timer_store.verify import TIMERS

COUNT = 120  # three files of the timer log


def verify(root: Path) -> Report:
    return verify_store(root, parts=[TIMERS])


def found_in(report: Report) -> set[tuple[str, str]]:
    """Return (severity, kind) of the findings about timers."""
    return {(f.severity, f.kind) for f in report.findings if f.kind.startswith("timer-")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that was closed in order, with delivered, pending and rolling timers."""
    rig = TimerRig(tmp_path_factory.mktemp("whole"), roll_window_slots=60).open()
    now_ms = rig.clock.now_ms()
    for number in range(COUNT):
        rig.put(now_ms + 1_000 * number + 1, "TU"[number % 2])
    rig.advance(10_500)
    rig.close()
    return rig.root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store", copy_function=copy_used))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def log_file(root: Path, number: int = 0) -> Path:
    return root / "timerlog" / f"{number * LOG_FILE_BYTES:020d}"


def last_slot_at(root: Path) -> int:
    """Return the position of the slot with the latest time in the wheel."""
    slots = np.fromfile(root / "timerwheel", TIMER_SLOT)
    return int(slots["tick"].argmax()) * SLOT_BYTES


def test_a_sound_store_has_no_findings(root: Path) -> None:
    report = verify(root)
    assert report.ok
    assert found_in(report) == set()
    assert report.figures["timers_pending"] >= COUNT - 11
    assert not any(f.file in ("timerlog", "timerwheel") for f in report.findings)


def test_timers_of_a_truncated_log_are_not_compared(root: Path) -> None:
    """A former master that is a replica: the log goes on with other records at these offsets."""
    with open_store(root) as store:
        starts = [int(row["phys_offset"]) for rows in store.scan(0) for row in rows]
    truncate_store(small_config(root), FakeClock(), starts[-6])
    with open_store(root) as store:
        for size in range(400, 500, 10):
            put_one(store, "T", body=b"x" * size)
    report = verify(root)
    assert report.ok
    assert found_in(report) == {("warning", "timer-snapshot")}


@pytest.mark.parametrize("name", ["apache-5.3.3-clean", "apache-5.3.3-killed"])
def test_apaches_stores_are_sound(name: str) -> None:
    report = verify(golden_store(name))
    assert report.ok
    assert found_in(report) == set()
    assert (report.figures["timer_units"], report.figures["timers_pending"]) == (32, 20)


def test_without_the_timer_store_its_files_are_reported_as_unchecked(root: Path) -> None:
    unchecked = {f.file for f in verify_store(root).findings if f.kind == "unchecked"}
    assert unchecked == {"timerlog", "timerwheel"}


def test_a_store_that_was_killed(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path).open()
    now_ms = rig.clock.now_ms()
    for number in range(60):
        rig.put(now_ms + 1_000 * number + 1)
    rig.persist()
    rig.put(now_ms + 5_000)
    rig.advance(3_000)
    rig.kill()
    report = verify(tmp_path)
    assert report.ok, [str(finding) for finding in report.findings]


def cut_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"\0" * (WHEEL_BYTES - 32))


def no_wheel(root: Path) -> None:
    (root / "timerwheel").unlink()


def zeroed_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"\0" * WHEEL_BYTES)


def slot_behind_the_log(root: Path) -> None:
    overwrite(root / "timerwheel", last_slot_at(root) + 16, struct.pack(">q", 1 << 40))


def slot_counts_too_many(root: Path) -> None:
    overwrite(root / "timerwheel", last_slot_at(root) + 24, struct.pack(">i", 7))


def unit_of_garbage(root: Path) -> None:
    overwrite(log_file(root), 5 * UNIT_BYTES, b"\xff" * UNIT_BYTES)


def unit_of_no_record(root: Path) -> None:
    overwrite(log_file(root, 1), 40 * UNIT_BYTES + 28, struct.pack(">q", 77))


def unit_behind_the_commit_log(root: Path) -> None:
    overwrite(log_file(root, 1), 40 * UNIT_BYTES + 28, struct.pack(">q", 1 << 50))


def cut_log(root: Path) -> None:
    overwrite(log_file(root, 1), 10 * UNIT_BYTES, b"\0" * (LOG_FILE_BYTES - 10 * UNIT_BYTES))


def lost_log_file(root: Path) -> None:
    log_file(root, 1).unlink()


def no_blank(root: Path) -> None:
    overwrite(log_file(root), LOG_FILE_BYTES - 52, b"\0" * 52)


def zeroed_check(root: Path) -> None:
    (root / "config" / "timercheck").write_bytes(b"\0" * 4_096)


def cut_check(root: Path) -> None:
    (root / "config" / "timercheck").write_bytes(b"\0" * 40)


def no_check(root: Path) -> None:
    (root / "config" / "timercheck").unlink()


def check_of_apache(root: Path) -> None:
    overwrite(
        root / "config" / "timercheck", 0, struct.pack(">7q", 1, 1 << 40, 1 << 40, 0, 0, 0, 9)
    )


def snapshot_of_garbage(root: Path) -> None:
    path = root / "config" / "duemq.timers.json"
    path.write_text(path.read_text().replace('"scanFrom":', '"scanFrom": 1'))
    path.with_name(path.name + ".bak").unlink(missing_ok=True)


def snapshot_with_backup(root: Path) -> None:
    path = root / "config" / "duemq.timers.json"
    shutil.copy(path, path.with_name(path.name + ".bak"))
    path.write_text(path.read_text()[:-20])


def metrics_of_garbage(root: Path) -> None:
    for name in ("timermetrics", "timermetrics.bak"):
        (root / "config" / name).write_text('{"timing')


def lost_commit_log(root: Path) -> None:
    files = sorted((root / "commitlog").iterdir())
    files[-1].write_bytes(b"\0" * files[-1].stat().st_size)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("damage", "severity", "kind", "file"),
    [
        (cut_wheel, "error", "timer-wheel", "timerwheel"),
        (no_wheel, "error", "timer-wheel", "timerwheel"),
        (zeroed_wheel, "error", "timer-count", "timerwheel"),
        (slot_behind_the_log, "error", "timer-chain", "timerwheel"),
        (slot_counts_too_many, "error", "timer-count", "timerwheel"),
        (unit_of_garbage, "error", "timer-unit", "timerlog/"),
        (unit_of_no_record, "error", "timer-unit-record", "timerlog/"),
        (unit_behind_the_commit_log, "error", "timer-unit-record", "timerlog/"),
        (cut_log, "error", "timer-log-gap", "timerlog/"),
        (lost_log_file, "error", "missing-file", "timerlog/"),
        (no_blank, "error", "timer-blank", "timerlog/"),
        (zeroed_check, "error", "timer-check", "config/timercheck"),
        (cut_check, "error", "timer-check", "config/timercheck"),
        (no_check, "error", "timer-check", "config/timercheck"),
        (check_of_apache, "error", "timer-check", "config/timercheck"),
        (snapshot_of_garbage, "error", "timer-snapshot", "config/duemq.timers.json"),
        (snapshot_with_backup, "warning", "timer-snapshot", "config/duemq.timers.json"),
        (metrics_of_garbage, "error", "timer-metrics", "config/timermetrics"),
        (lost_commit_log, "error", "timer-unit-record", "timerlog/"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_damage_is_reported(
    root: Path, damage: Callable[[Path], None], severity: str, kind: str, file: str
) -> None:
    damage(root)
    report = verify(root)
    named = [f for f in report.findings if (f.severity, f.kind) == (severity, kind)]
    assert named, [str(finding) for finding in report.findings]
    assert named[0].file.startswith(file)
    assert report.ok == (severity != "error" and not report.severities["error"])


def test_nothing_is_written(root: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = state()
    verify(root)
    assert state() == before
