"""Simulated disk: synced data survives a power cut, other data can be lost."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.volatile_disk import BOOT_ID, PAGE_BYTES, VolatileDisk

SYNCED, LATER = b"a" * (3 * PAGE_BYTES), b"b" * (2 * PAGE_BYTES)


@pytest.mark.parametrize("seed", range(8))
def test_synced_data_survives(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "store"
    (root / "log").mkdir(parents=True)
    disk, path = VolatileDisk(root, tmp_path / "disk"), root / "log" / "0"
    disk.adopt()
    with path.open("wb") as file:
        file.write(SYNCED)
        file.flush()
        disk.sync(file.fileno())
        os.pwrite(file.fileno(), LATER, len(SYNCED))
    (root / "log" / "1").write_bytes(LATER)
    disk.cut(random.Random(seed))
    left = path.read_bytes()
    assert left[: len(SYNCED)] == SYNCED
    assert set(left[len(SYNCED) :]) <= {0, ord("b")}
    assert (tmp_path / "disk" / BOOT_ID).read_text() == "boot 1"


def test_unsynced_data_can_be_lost(tmp_path: Path) -> None:
    lengths = set()
    for seed in range(12):
        root = tmp_path / str(seed) / "store"
        root.mkdir(parents=True)
        disk = VolatileDisk(root, tmp_path / str(seed) / "disk")
        disk.adopt()
        (root / "new").write_bytes(LATER)
        disk.cut(random.Random(seed))
        found = (root / "new").read_bytes() if (root / "new").exists() else b""
        lengths.add(found.count(b"b"))
    assert {0, len(LATER)} <= lengths
