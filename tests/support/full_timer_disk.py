"""Timer store on a simulated disk with adjustable free space."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from message_store.write_gate import WriteGate
from tests.support.timer_rig import TimerRig
from timer_store.compaction.compactor import PIN_OWNER
from timer_store.compaction.request import handle_compact

FILE_BYTES = 16_384
DAY_MS = 86_400_000


class FullDisk:
    """Simulated disk usage; the disk has space for 1,000 files."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.percent = 50.0
        patch.setattr(WriteGate, "disk_bytes", property(lambda _: self.bytes))

    @property
    def bytes(self) -> tuple[int, int]:
        whole = 1_000 * FILE_BYTES
        used = int(whole * self.percent / 100)
        return used, whole - used


class PinningRig(TimerRig):
    """Timer rig whose pending timers exclude commit log files from retention, as in a broker."""

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
        """Register the timer store with retention."""
        timers = self.timers
        self.store.retention.add_pin(lambda: timers.first_pending_offset, owner=PIN_OWNER)

    def fill(self, files: float = 1) -> None:
        """Fill commit log files with ordinary messages."""
        for _ in range(round(files * 16)):
            self.put_many([(1, "U", 0, b"x" * 900)])

    def compact(self, *, by_hand: bool = False) -> None:
        """Run compaction until there is no work."""
        compaction = self.timers.compaction
        if by_hand:
            asyncio.run(handle_compact(self.timers, Request(RequestCode.COMPACT_TIMERS, {})))
        else:
            compaction.begin_if_needed()
        for _ in range(10_000):
            if not compaction.running:
                return
            self.advance(max(compaction.next_piece_ms - self.clock.now_ms(), 0))
            self.timers.turn(self.clock.now_ms())
        raise AssertionError("compaction does not finish")

    def clean(self) -> int:
        """Run retention; return the number of deleted files."""
        self.store.flush()
        return sum(self.store.retention.clean() for _ in range(5))
