"""A timer store on a disk of chosen fullness."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from delivery.plugin import Request
from message_store.clock import FakeClock
from message_store.write_gate import WriteGate
from tests.support.timer_rig import TimerRig
from timer_store.compaction.compactor import PIN_OWNER
from timer_store.compaction.request import COMPACT_TIMERS, answer_compact

FILE_BYTES = 16_384
DAY_MS = 86_400_000


class FullDisk:
    """Disk usage as the stores see it; the disk holds 1,000 files."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.percent = 50.0
        patch.setattr(WriteGate, "disk_bytes", property(lambda _: self.bytes))

    @property
    def bytes(self) -> tuple[int, int]:
        whole = 1_000 * FILE_BYTES
        used = int(whole * self.percent / 100)
        return used, whole - used


class PinningRig(TimerRig):
    """A rig in which pending timers keep commit log files, as in a broker."""

    def __init__(
        self, root: Path, disk: FullDisk, clock: FakeClock | None = None, **config: Any
    ) -> None:
        super().__init__(root, clock, **{"stage_lead_ms": 0, "max_delay_s": 10**8} | config)
        self.disk = disk
        self.store_changes = {"commitlog_file_bytes": FILE_BYTES, "delete_when_hours": "03"}

    def open(self) -> TimerRig:
        super().open()
        self.pin()
        return self

    def pin(self) -> None:
        """Register the timers with retention."""
        timers = self.timers
        self.store.retention.add_pin(lambda: timers.first_pending_offset, owner=PIN_OWNER)

    def fill(self, files: float = 1) -> None:
        """Write files of messages that are no timers."""
        for _ in range(round(files * 16)):
            self.put_many([(1, "U", 0, b"x" * 900)])

    def compact(self, *, by_hand: bool = False) -> None:
        """Run compaction until it has nothing to do."""
        compaction = self.timers.compaction
        if by_hand:
            asyncio.run(answer_compact(self.timers, Request(COMPACT_TIMERS, {})))
        else:
            compaction.look()
        for _ in range(10_000):
            if not compaction.running:
                return
            self.advance(max(compaction.next_piece_ms - self.clock.now_ms(), 0))
            self.timers.turn(self.clock.now_ms())
        raise AssertionError("it does not come to an end")

    def clean(self) -> int:
        """Run retention; return the number of deleted files."""
        self.store.flush()
        return sum(self.store.retention.clean() for _ in range(5))
