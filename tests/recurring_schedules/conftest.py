"""A store with timers and schedules, on a fake clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recurring_schedules.rig import ScheduleRig


@pytest.fixture
def rig(tmp_path: Path) -> ScheduleRig:
    """A rig whose store is not open yet."""
    return ScheduleRig(tmp_path)
