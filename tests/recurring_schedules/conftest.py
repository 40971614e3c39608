"""A store with timers and schedules, on a fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recurring_schedules.rig import ScheduleRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ScheduleRig]:
    """A rig whose store is not open yet."""
    rig = ScheduleRig(tmp_path)
    yield rig
    if rig.is_open:
        rig.close()
