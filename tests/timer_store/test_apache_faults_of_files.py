"""T11, T13 to T16: faults of the files of Apache's wheel that our timer store does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.timer_rig import TimerRig
from tests.timer_store.test_apache_faults import check_all, fill, reopen
from timer_store.layout import TIMER_CHECK_BYTES, UNIT_BYTES


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path).open()
    yield rig
    if rig.is_open:
        rig.close()


@pytest.mark.parametrize("content", [None, b"", bytes(TIMER_CHECK_BYTES), b"\0\0\1\x8b\xcf"])
def test_t11_a_lost_timercheck_duplicates_nothing(rig: TimerRig, content: bytes | None) -> None:
    due_ms = fill(rig, 60, every_ms=100)
    rig.advance(3_000)
    rig.persist()
    rig.advance(500)
    rig.kill()
    path = rig.root / "config" / "timercheck"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    opened_ms = reopen(rig)
    rig.advance(10_000)
    check_all(rig, due_ms, opened_ms)


def test_t13_a_wheel_ahead_of_its_log(rig: TimerRig) -> None:
    due_ms = fill(rig, 30, every_ms=500, start_ms=20_000)
    rig.persist()
    end = rig.timers.units.log.end
    now_ms = rig.clock.now_ms()
    for number in range(30, 60):
        due_ms.append(now_ms + 20_000 + 500 * number)
        rig.put(due_ms[-1], body=b"%d" % number)
    units = rig.timers.units
    units.wheel.write(units.wheel.capture())  # written to the disk before the log
    rig.kill()
    zero_behind(rig.root / "timerlog", end, rig.config.log_file_bytes)
    opened_ms = reopen(rig)
    rig.advance(100_000)
    check_all(rig, due_ms, opened_ms)


def zero_behind(directory: Path, end: int, file_bytes: int) -> None:
    """Zero the timer log behind a position."""
    for path in sorted(directory.iterdir()):
        keep = min(max(end - int(path.name), 0), file_bytes)
        path.write_bytes(path.read_bytes()[:keep].ljust(file_bytes, b"\0"))


def test_t14_stale_units_after_a_torn_one_are_ignored(rig: TimerRig) -> None:
    due_ms = fill(rig, 20, every_ms=100, start_ms=5_000)
    rig.persist()
    end = rig.timers.units.log.end
    for number in range(20, 40):
        due_ms.append(due_ms[-1] + 100)
        rig.put(due_ms[-1], body=b"%d" % number)
    rig.kill()
    path = rig.root / "timerlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[end : end + UNIT_BYTES] = bytes(UNIT_BYTES)
    path.write_bytes(data)
    opened_ms = reopen(rig)
    rig.kill()
    reopen(rig)
    rig.advance(20_000)
    check_all(rig, due_ms, opened_ms)


@pytest.mark.parametrize("persist_again", [True, False])
def test_t15_a_gap_in_a_chain_loses_nothing(rig: TimerRig, persist_again: bool) -> None:
    due_ms = fill(rig, 40, every_ms=10, start_ms=10_000)
    rig.persist()
    rig.kill()
    path = rig.root / "timerlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[10 * UNIT_BYTES : 12 * UNIT_BYTES] = bytes(2 * UNIT_BYTES)
    path.write_bytes(data)
    opened_ms = reopen(rig)
    if persist_again:
        rig.persist(last=True)
    rig.advance(20_000)
    check_all(rig, due_ms, opened_ms)


def test_t15_a_missing_file_of_the_timer_log_loses_nothing(rig: TimerRig) -> None:
    due_ms = fill(rig, 200, every_ms=10, start_ms=10_000)
    rig.persist()
    rig.kill()
    files = sorted((rig.root / "timerlog").iterdir())
    assert len(files) > 3
    files[1].unlink()
    opened_ms = reopen(rig)
    assert any("timerlog" in notice for notice in rig.notices)
    rig.advance(20_000)
    check_all(rig, due_ms, opened_ms)


def test_t16_a_checkpoint_never_exceeds_the_synced_log(rig: TimerRig) -> None:
    rig.put(rig.clock.now_ms() + 10)
    rig.persist()
    files = [rig.root / "config" / name for name in ("duemq.timers.json", "timercheck")]
    before = [path.read_bytes() for path in files]
    rig.advance(2_000)

    async def never(end: int) -> bool:
        return False

    rig.store.wait_durable, real = never, rig.store.wait_durable  # type: ignore[assignment]
    assert not rig.persist()
    rig.store.wait_durable = real
    assert [path.read_bytes() for path in files] == before
    assert rig.persist()
    assert rig.store.durable_offset == rig.store.max_offset
