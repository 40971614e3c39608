"""Simulated disk that loses unsynced data at a power cut.

    python -m tests.crash.volatile_disk ARGUMENTS

runs `duemq ARGUMENTS` and records its syncs in these files:

    store/           files as the process sees them, which represent the page cache
    disk/inodes/N    content of inode N at its last sync
    disk/live/N      hard link to inode N, so that its number is not reused
    disk/names.json  directories at their last sync: paths and inode numbers

`cut` writes a possible state of the files after a power cut: for each file the synced content and
a random selection of later pages, and for each directory either the synced or the current names.
`cut` compares pages, and therefore also covers writes through shared mappings. The simulation needs
no device mapper and no FUSE file system. A file replaces the boot ID of the operating system.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4_096
ROOT, DISK, DELAY = "VOLATILE_ROOT", "VOLATILE_DISK", "VOLATILE_DELAY_MS"
BOOT_ID = "boot_id"


class VolatileDisk:
    """Synced state of a directory.

    Args:
        root: Directory of the broker.
        home: Directory of the synced state.
    """

    def __init__(self, root: Path, home: Path) -> None:
        self.root, self.home = root, home
        self._lock = threading.Lock()
        for name in ("inodes", "live"):
            (home / name).mkdir(parents=True, exist_ok=True)
        if not (home / BOOT_ID).exists():
            (home / BOOT_ID).write_text("boot 0")

    # -- in the broker's process ----------------------------------------------------------------

    def adopt(self) -> None:
        """Record all existing files as synced, at the first start."""
        if (self.home / "names.json").exists():
            return
        for path in files_of(self.root):
            with path.open("rb") as file:
                self._keep(file.fileno())
        self._keep_names()

    def sync(self, fd: int) -> None:
        """Record the current state of a file or directory as synced."""
        path, status = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd)
        if not path.startswith(f"{self.root}{os.sep}") and path != str(self.root):
            return
        with self._lock:
            if os.path.isdir(path):
                self._keep_names()
                return
            new = not (self.home / "inodes" / str(status.st_ino)).exists()
            self._keep(fd)
            if new:  # a journaling file system commits the name together with the file
                self._keep_names()

    def _keep(self, fd: int) -> None:
        number = os.fstat(fd).st_ino
        with suppress(FileExistsError, FileNotFoundError):
            os.link(os.readlink(f"/proc/self/fd/{fd}"), self.home / "live" / str(number))
        kept = self.home / "inodes" / str(number)
        temporary = kept.with_suffix(".tmp")
        source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        with temporary.open("wb") as target:
            copy_extents(source, target.fileno())
        os.close(source)
        temporary.replace(kept)

    def _keep_names(self) -> None:
        names: dict[str, int] = {}
        for path in files_of(self.root):
            with suppress(FileNotFoundError):
                number = names[str(path.relative_to(self.root))] = path.stat().st_ino
                with suppress(FileExistsError):
                    os.link(path, self.home / "live" / str(number))
        temporary = self.home / "names.tmp"
        temporary.write_text(json.dumps(names))
        temporary.replace(self.home / "names.json")

    # -- after the process was killed -----------------------------------------------------------

    def cut(self, chance: random.Random) -> None:
        """Replace the directory with a possible state after a power cut."""
        synced = json.loads((self.home / "names.json").read_text())
        self._keep_names()  # also links unsynced files
        seen = json.loads((self.home / "names.json").read_text())
        newest = {place: chance.random() < 0.5 for place in map(_folder, [*synced, *seen])}
        chosen = {path: n for path, n in synced.items() if not newest[_folder(path)]}
        chosen |= {path: n for path, n in seen.items() if newest[_folder(path)]}
        share = chance.choice([0.0, 0.3, 1.0])
        fresh = self.root.with_name(f"{self.root.name}.cut")
        fresh.mkdir()
        for path, number in chosen.items():
            target = fresh / path
            target.parent.mkdir(parents=True, exist_ok=True)
            write_sparse(target, self._remains_of(number, share, chance))
        for folder in (path for path in self.root.rglob("*") if path.is_dir()):
            (fresh / folder.relative_to(self.root)).mkdir(parents=True, exist_ok=True)
        boot = (self.home / BOOT_ID).read_text()
        shutil.rmtree(self.root)
        shutil.rmtree(self.home)
        fresh.rename(self.root)
        VolatileDisk(self.root, self.home)
        (self.home / BOOT_ID).write_text(f"boot {int(boot.split()[1]) + 1}")

    def _remains_of(self, number: int, share: float, chance: random.Random) -> npt.NDArray[Any]:
        """Return the synced content of a file with a share of its unsynced pages."""
        now = pages_of(self.home / "live" / str(number))
        kept = self.home / "inodes" / str(number)
        old = pages_of(kept) if kept.exists() else np.empty(0, np.uint8)
        if share == 0.0:
            return old
        size = now.size
        out = np.zeros(-(-size // PAGE_BYTES) * PAGE_BYTES, np.uint8)
        out[: min(old.size, size)] = old[:size]
        padded = np.zeros_like(out)
        padded[:size] = now
        pages, newer = out.reshape(-1, PAGE_BYTES), padded.reshape(-1, PAGE_BYTES)
        changed = np.flatnonzero((pages != newer).any(axis=1))
        taken = changed[[chance.random() < share for _ in range(changed.size)]]
        pages[taken] = newer[taken]
        return out[:size]


def files_of(root: Path) -> list[Path]:
    """Return the files below a directory; ignore concurrent deletions."""
    return [Path(folder, name) for folder, _, names in os.walk(root) for name in names]


def _folder(path: str) -> str:
    return path.split(os.sep, maxsplit=1)[0] if os.sep in path else ""


def pages_of(path: Path) -> npt.NDArray[np.uint8]:
    """Return the bytes of a file."""
    return np.fromfile(path, np.uint8)


def copy_extents(source: int, target: int) -> None:
    """Copy a sparse file with its holes."""
    size, pos = os.fstat(source).st_size, 0
    os.ftruncate(target, size)
    while pos < size:
        try:
            pos = os.lseek(source, pos, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(source, pos, os.SEEK_HOLE)
        while pos < end:
            pos += os.pwrite(target, os.pread(source, min(end - pos, 1 << 22), pos), pos)


def write_sparse(path: Path, data: npt.NDArray[Any]) -> None:
    """Write a file with holes in place of zeros."""
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), data.size)
        for first in range(0, data.size, 1 << 20):
            piece = data[first : first + (1 << 20)]
            if piece.any():
                os.pwrite(file.fileno(), piece.tobytes(), first)


def watch(disk: VolatileDisk, delay_ms: float) -> None:
    """Redirect all syncs of this process to `disk`; each takes up to `delay_ms`."""
    chance = random.Random(os.getpid())

    def sync(fd: Any) -> None:
        time.sleep(chance.random() * delay_ms / 1_000)
        disk.sync(fd if isinstance(fd, int) else fd.fileno())

    class Map(mmap.mmap):
        """Mapping whose flush syncs its file."""

        def __new__(cls, fd: int, *args: Any, **kwargs: Any) -> Map:
            made = super().__new__(cls, fd, *args, **kwargs)
            made.fd = os.dup(fd) if fd >= 0 else -1  # type: ignore[attr-defined]
            return made

        def flush(self, *args: Any) -> None:
            if self.fd >= 0:  # type: ignore[attr-defined]
                sync(self.fd)  # type: ignore[attr-defined]

    vars(os).update(fsync=sync, fdatasync=sync)
    vars(mmap).update(mmap=Map)


def main() -> None:
    """Run the command line of the broker on the simulated disk."""
    disk = VolatileDisk(Path(os.environ[ROOT]), Path(os.environ[DISK]))
    disk.adopt()
    watch(disk, float(os.environ[DELAY]))
    from duemq.cli import main as command_line
    from message_store.recovery import checkpoint

    vars(checkpoint).update(BOOT_ID_PATH=disk.home / BOOT_ID)
    command_line()


if __name__ == "__main__":
    main()
