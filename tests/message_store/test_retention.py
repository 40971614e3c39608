"""What retention may remove, and that a pending message's file is never among it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from message_store.batch import PutBatch
from message_store.clock import FakeClock
from message_store.retention import FileFacts, plan_removal
from tests.store_help import add_message, open_store, small_config

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
OLD, NEW = NOW_MS - 73 * HOUR_MS, NOW_MS - HOUR_MS


@pytest.mark.parametrize(
    ("rule", "ages", "hour", "disk", "pinned", "durable", "remove"),
    [
        ("nothing outside the hour", [OLD, OLD, OLD], 5, 10, None, 900, 0),
        ("old files at the hour, never the last", [OLD, OLD, OLD], 4, 10, None, 900, 2),
        ("young files stay", [OLD, NEW, NEW], 4, 10, None, 900, 1),
        ("old files at any hour above 75 %", [OLD, NEW, NEW], 5, 76, None, 900, 1),
        ("any file above 85 %", [NEW, NEW, NEW], 5, 86, None, 900, 2),
        ("a pinned file stays at the hour", [OLD, OLD, OLD], 4, 10, 150, 900, 1),
        ("a pinned file stays above 85 %", [NEW, NEW, NEW], 5, 99, 0, 900, 0),
        ("a file that is not on the disk stays", [OLD, OLD, OLD], 4, 10, None, 150, 1),
    ],
)
def test_plan(rule, ages, hour, disk, pinned, durable, remove):
    files = [FileFacts(end=(i + 1) * 100, modified_ms=age) for i, age in enumerate(ages)]
    plan = plan_removal(
        files,
        small_config(Path("/x")),
        now_ms=NOW_MS,
        hour=hour,
        disk_percent=disk,
        pinned_from=pinned,
        durable=durable,
    )
    assert plan.remove == remove, rule


def test_files_go_queues_follow_and_pinned_ones_stay(tmp_path):
    clock = FakeClock()
    with open_store(
        tmp_path, clock, delete_when_hours=";".join(f"{h:02d}" for h in range(24))
    ) as s:
        batch = PutBatch()
        for _ in range(1_500):
            add_message(s, batch, "T", 0, b"x" * 80)
        s.put(batch)
        s.flush()
        for file in s.log.files:
            os.utime(file.path, (OLD / 1_000, OLD / 1_000))
        clock.set_ms(NOW_MS)
        pinned = s.log.files[1].base + 10
        s.retention.add_pin(lambda: pinned)
        assert s.retention.clean() == 1
        assert s.min_offset == s.log.files[0].base <= pinned
        assert s.retention.pinned
        first, end = s.queue_bounds("T", 0)
        assert 0 < first < end == 1_500
        assert int(s.units("T", 0, first, 1)[0]["phys_offset"]) >= s.min_offset
        pinned = 1 << 60
        assert s.retention.clean() > 0
        assert len(s.log.files) == 1
    with open_store(tmp_path, clock) as s:
        assert s.queue_bounds("T", 0)[1] == 1_500
        assert s.queue_bounds("T", 0)[0] > first
