"""Timers on a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.full_timer_disk import FullDisk, PinningRig


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@pytest.fixture
def rig(tmp_path: Path, disk: FullDisk) -> Iterator[PinningRig]:
    rig = PinningRig(tmp_path, disk)
    rig.open()
    yield rig
    if rig.is_open:
        rig.close()
