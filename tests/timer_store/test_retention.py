"""Log files that timers need are kept: pending, not yet enqueued, or needed by the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.timer_rig import TimerRig

HOUR_MS = 3_600_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, stage_lead_ms=0)
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    rig.store_changes = {"commitlog_file_bytes": 16_384, "delete_when_hours": hours}
    rig.open()
    rig.store.retention.add_pin(lambda: rig.timers.first_pending_offset)
    yield rig
    if rig.is_open:
        rig.close()


def fill(rig: TimerRig) -> None:
    """Write files of messages that are no timers."""
    for _ in range(6):
        rig.put_many([(1, "U", 0, b"x" * 900)] * 15)


def clean(rig: TimerRig) -> int:
    rig.store.flush()
    rig.clock.advance(1_000_000 * HOUR_MS)  # all files expire; nothing is delivered meanwhile
    removed = sum(rig.store.retention.clean() for _ in range(5))
    rig.clock.advance(-1_000_000 * HOUR_MS)
    return removed


def test_a_file_with_a_timer_stays_until_its_delivery_is_in_a_checkpoint(rig: TimerRig) -> None:
    due_ms = rig.clock.now_ms() + HOUR_MS
    fill(rig)
    rig.put(due_ms)
    fill(rig)
    base = rig.timers.counts.first_file
    rig.persist()
    clean(rig)
    assert rig.store.min_offset == base
    rig.advance(HOUR_MS)
    assert len(rig.delivered()) == 1
    fill(rig)
    assert clean(rig) == 0, "a power cut may lose the delivery"
    assert rig.persist()
    assert clean(rig) > 0


def test_files_with_records_not_yet_enqueued_are_kept(rig: TimerRig) -> None:
    rig.timers.reconfigure(replace(rig.config, stop_enqueue=True))
    due_ms = rig.clock.now_ms() + HOUR_MS
    batch = rig.put(due_ms)
    fill(rig)
    rig.persist()
    assert rig.timers.counts.total == 0
    assert rig.timers.first_pending_offset == int(batch.rows[0]["phys_offset"])
    assert clean(rig) == 0
    rig.timers.reconfigure(rig.config)
    rig.advance(HOUR_MS)
    assert [record.store_ms for record in rig.delivered()] == [due_ms]
