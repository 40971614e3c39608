"""Disk on which timer logs have room for a limited number of units."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from timer_store.layout import UNIT_BYTES
from timer_store.log.timer_log import TimerLog

UNLIMITED = 1 << 40


@contextmanager
def timer_log_room(units: int) -> Iterator[None]:
    """Let timer logs append a number of units; refuse the append that needs more."""
    room = units
    append = TimerLog.append

    def limited(log: TimerLog, data: memoryview) -> int:
        nonlocal room
        count = len(data) // UNIT_BYTES
        if count > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= count
        return append(log, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimerLog, "append", limited)
        yield
