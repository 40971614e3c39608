"""State of a store after a power cut: all synced data and a part of the unsynced data."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from message_store.layout import CQ_UNIT
from tests.support.failing_disk import cut_log
from tests.support.sparse_files import copy_used

PAGE_BYTES = 512  # of the simulated disk, small like the log


@dataclass(frozen=True, slots=True)
class Loss:
    """Ranges of a store that a power cut can destroy.

    Attributes:
        synced: Log offset up to which the log is synced.
        end: End offset of the log.
        units_synced: Log offset up to which the queue units of the records are synced.
    """

    synced: int
    end: int
    units_synced: int

    @classmethod
    def of(cls, store: Any, synced: int) -> Self | None:
        """Return what a power cut can destroy now; None: the store is closed and synced.

        Args:
            synced: Log offset up to which any process has synced the log.
        """
        if store is None:
            return None
        marks = store.mark.read()
        return cls(synced, store.max_offset, marks.durable if marks else 0)


def copy_files(source: Path, target: Path) -> None:
    """Copy the current files of a store, without incomplete temporary files."""
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns("*.tmp", "*.old"), copy_function=copy_used
    )


def lose(root: Path, loss: Loss, chance: random.Random, *, any_page: bool = False) -> None:
    """Remove a part of the unsynced data.

    Args:
        any_page: Whether any unsynced pages can be lost; False: only the end of the log.
    """
    assert loss.synced <= loss.end
    if not any_page or chance.random() < 0.5:
        cut_log(root, chance.randint(loss.synced, loss.end))
    else:
        _lose_pages(root, loss, chance)
    _lose_units(root, loss.units_synced, chance)


def _lose_pages(root: Path, loss: Loss, chance: random.Random) -> None:
    """Lose random unsynced pages, since a disk writes pages in any order."""
    for path in sorted((root / "commitlog").iterdir()):
        base, size = int(path.name), path.stat().st_size
        with path.open("r+b") as file:
            for page in range(0, size, PAGE_BYTES):
                first, stop = max(base + page, loss.synced), min(base + page + PAGE_BYTES, loss.end)
                if first < stop and chance.random() < 0.5:
                    file.seek(first - base)
                    file.write(bytes(stop - first))


def _lose_units(root: Path, synced: int, chance: random.Random) -> None:
    """Lose unsynced units of records after `synced`."""
    share = chance.choice([0.0, 0.5, 1.0])
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        units = np.fromfile(path, CQ_UNIT)
        chosen = np.array([chance.random() < share for _ in range(units.size)])
        units[chosen & (units["phys_offset"] >= synced)] = 0
        units.tofile(path)
