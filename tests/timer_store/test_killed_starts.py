"""Starts that are killed or refused by the disk at any step: the next start succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from tests.message_store.log.test_zeroing import (
    FAULTS,
    SimulatedCrash,
    Steps,
    disk_states,
    no_holes,
)
from tests.support.inline_loop import run_inline
from tests.support.stores import open_store
from tests.support.timer_rig import LOG_FILE_BYTES, TimerRig
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.store import TimerStore

COUNT, LATER = 60, 3
HOUR_MS = 3_600_000


def killed_timers(root: Path) -> FakeClock:
    """Leave a killed store with timers enqueued after the last checkpoint."""
    rig = TimerRig(root).open()
    due_ms = rig.clock.now_ms() + HOUR_MS
    for number in range(COUNT):
        rig.put(due_ms, "T", body=b"%d" % number)
    rig.work()
    assert rig.persist()
    for number in range(LATER):
        rig.put(due_ms, "T", body=b"later %d" % number)
    rig.work()
    rig.kill()
    return rig.clock


def start(root: Path, clock: FakeClock, steps: Steps, step: int) -> bool:
    """Open the timers; return whether the start had fewer than `step` steps."""
    store = open_store(root, clock, flush_commitlog_interval_ms=100_000_000)
    with store:
        timers = TimerStore(store, clock, TimerConfig(log_file_bytes=LOG_FILE_BYTES))
        steps.left = step
        try:
            timers.open(notice=lambda text: None)
            run_inline(CheckpointWriter(timers).persist(last=True))
            return steps.left > 0
        except (SimulatedCrash, OSError):
            return False
        finally:
            steps.left = None
            timers.close()


@pytest.mark.sampled
@pytest.mark.finding("A7", "E1")
@FAULTS
@pytest.mark.parametrize("way", ["holes", "zeros"])
def test_the_next_start_finds_all_timers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, fault: BaseException, after: bool
) -> None:
    if way == "zeros":
        monkeypatch.setattr("message_store.log.zeroing.punch_hole", no_holes)
    clock = killed_timers(tmp_path / "store")
    steps = Steps(monkeypatch, fault, after=after)
    for step, root in disk_states(tmp_path / "store"):
        survived = start(root, clock, steps, step)
        sizes = {path.stat().st_size for path in (root / "timerlog").iterdir()}
        assert sizes == {LOG_FILE_BYTES}
        again = TimerRig(root, clock).open()
        assert again.timers.counts.total == COUNT + LATER
        again.close()
        if survived:
            assert step > 1
            return
