"""Timers on a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.full_timer_disk import FullDisk, PinningRig


@pytest.fixture
def disk(monkeypatch):
    return FullDisk(monkeypatch)


@pytest.fixture
def rig(tmp_path: Path, disk: FullDisk):
    rig = PinningRig(tmp_path, disk)
    rig.open()
    yield rig
    if rig.is_open:
        rig.close()
