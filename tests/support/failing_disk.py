"""Simulated disk that fails at a chosen step: process end, torn write, or full disk.

Steps are changes of files of the timer store and of the commit log. For each file the simulation
keeps the old content of the 512-byte sectors written since its last sync, so that a simulated power
cut can lose any of them.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store.layout import CQ_UNIT
from message_store.log import zeroing

SECTOR_BYTES = 512
CALLS = ("pwrite", "pwritev", "fdatasync", "fsync", "ftruncate", "replace", "link", "unlink")
COUNTED = (
    "timerlog/",
    "timerwheel",
    "config/duemq.timers",
    "config/timer",
    "commitlog/",
    "config/delayOffset",
)


class SimulatedCrash(BaseException):
    """Simulated end of the process."""


class Disk:
    """Replacement of the functions of `os` that change files below one directory.

    Attributes:
        steps_left: Number of steps until the crash; None: no crash.
        torn: Bytes of the interrupted write that reach the disk.
        full: Prefixes of the names of files whose writes fail.
        ignored: Prefixes of the names of files whose changes do not count as steps.
        steps: Number of steps so far.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, root: Path, *, counted: tuple[str, ...] = COUNTED
    ) -> None:
        self.root, self._counted = root, counted
        self.steps_left: int | None = None
        self.torn = 0
        self.full: tuple[str, ...] = ()
        self.ignored: tuple[str, ...] = ()
        self.steps = 0
        self.crashed = False
        self._sectors: dict[Path, dict[int, bytes]] = {}  # sectors in the state of the last sync
        self._replaced: dict[Path, bytes | None] = {}  # changed names that are not synced
        self._real: dict[str, Callable[..., Any]] = {}
        for name in CALLS:
            self._real[name] = getattr(os, name)
            patch.setattr(os, name, getattr(self, name))
        self._punch_hole = zeroing.punch_hole
        patch.setattr(zeroing, "punch_hole", self.punch_hole)

    def restart(self) -> None:
        """Continue as a new process."""
        self.steps_left, self.torn, self.crashed, self.ignored = None, 0, False, ()

    # -- replaced functions ---------------------------------------------------------------------

    def pwrite(self, fd: int, data: Any, pos: int) -> int:
        return self._write("pwrite", fd, memoryview(data).cast("B"), pos)

    def pwritev(self, fd: int, buffers: list[Any], pos: int) -> int:
        [data] = buffers
        return self._write("pwritev", fd, memoryview(data).cast("B"), pos)

    def _write(self, name: str, fd: int, data: memoryview, pos: int) -> int:
        path = self._path(fd)
        if path is None:
            return int(self._real[name](fd, data if name == "pwrite" else [data], pos))
        torn = self.torn
        try:
            self._step(path)
        except SimulatedCrash:
            if torn > 0:
                self.torn = 0
                self._keep(path, fd, pos, min(torn, len(data)))
                self._real["pwrite"](fd, data[:torn], pos)
            raise
        self._keep(path, fd, pos, len(data))
        return int(self._real["pwrite"](fd, data, pos))

    def ftruncate(self, fd: int, size: int) -> None:
        path = self._path(fd)
        if path is not None:
            self._step(path)
            old = os.fstat(fd).st_size
            if size < old <= 1 << 20:
                self._keep(path, fd, size, old - size)
        self._real["ftruncate"](fd, size)

    def punch_hole(self, fd: int, start: int, end: int) -> None:
        path = self._path(fd)
        if path is not None:
            self._step(path)
            if end - start <= 1 << 20:
                self._keep(path, fd, start, end - start)
        self._punch_hole(fd, start, end)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _sync(self, name: str, fd: int) -> None:
        path = self._path(fd)
        if path is not None and not self._is_log(path):  # synced by another thread
            self._step(path, room=False)
        target = Path(os.readlink(f"/proc/self/fd/{fd}"))
        self._real[name](fd)
        self._sectors.pop(target, None)
        for moved in [moved for moved in self._replaced if moved.parent == target]:
            del self._replaced[moved]

    def replace(self, source: Any, target: Any) -> None:
        path = Path(target)
        if self._counts(path):
            self._step(path, room=False)
            self._replaced.setdefault(path, path.read_bytes() if path.exists() else None)
        self._real["replace"](source, target)

    def link(self, source: Any, target: Any) -> None:
        if self._counts(Path(target)):
            self._step(Path(target))
        self._real["link"](source, target)

    def unlink(self, target: Any, **more: Any) -> None:
        if self._counts(Path(target)):
            self._step(Path(target), room=False)
        self._real["unlink"](target, **more)

    # -- helpers --------------------------------------------------------------------------------

    def _path(self, fd: int) -> Path | None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return path if self._counts(path) else None

    def _counts(self, path: Path) -> bool:
        return path.is_relative_to(self.root) and str(path.relative_to(self.root)).startswith(
            self._counted
        )

    def _step(self, path: Path, *, room: bool = True) -> None:
        """Count a step; raise the crash or the error that is due at it."""
        if str(path.relative_to(self.root)).startswith(self.ignored or ("?",)):
            return
        self.steps += 1
        if self.steps_left is not None:
            self.steps_left -= 1
            self.crashed = self.crashed or self.steps_left < 0
        if self.crashed:
            raise SimulatedCrash(f"at {path}")
        if room and str(path.relative_to(self.root)).startswith(self.full or ("?",)):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def _keep(self, path: Path, fd: int, pos: int, size: int) -> None:
        sectors = self._sectors.setdefault(path, {})
        for sector in range(pos // SECTOR_BYTES, -(-(pos + size) // SECTOR_BYTES)):
            if sector not in sectors:
                sectors[sector] = os.pread(fd, SECTOR_BYTES, sector * SECTOR_BYTES)

    # -- a power cut ----------------------------------------------------------------------------

    def lose_unsynced(self, chance: random.Random) -> None:
        """Restore random sectors and names that were not synced, except those of the commit log."""
        for path, sectors in self._sectors.items():
            if path.exists() and not self._is_log(path):
                self._restore(path, sectors, chance)
        for path, old in self._replaced.items():
            if chance.random() < 0.5:
                path.unlink() if old is None else path.write_bytes(old)
        self.mark_synced()

    def mark_synced(self) -> None:
        """Treat everything written so far as synced."""
        self._sectors.clear()
        self._replaced.clear()

    def _is_log(self, path: Path) -> bool:
        return path.is_relative_to(self.root / "commitlog")

    def _restore(self, path: Path, sectors: dict[int, bytes], chance: random.Random) -> None:
        share = chance.choice([0.0, 0.3, 1.0])
        with path.open("r+b") as file:
            for sector, old in sectors.items():
                if chance.random() < share:
                    file.seek(sector * SECTOR_BYTES)
                    file.write(old)


def cut_log(root: Path, cut: int) -> None:
    """Truncate the commit log at a log offset, as after a power cut."""
    for path in sorted((root / "commitlog").iterdir()):
        base, size = int(path.name), path.stat().st_size
        if base + size > cut:
            with path.open("r+b") as file:
                file.truncate(max(cut - base, 0))
                file.truncate(size)


def lose_units(root: Path, synced: int) -> None:
    """Clear the queue units of records at and after a log offset."""
    for path in (root / "consumequeue").glob("*/*/*"):
        units = np.fromfile(path, CQ_UNIT)
        units[units["phys_offset"] >= synced] = 0
        units.tofile(path)
