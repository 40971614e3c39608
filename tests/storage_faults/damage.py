"""Damage to the files of a store: a flipped bit, a misplaced page, an unreadable sector.

The first two preserve size and times of the file, like a disk that returns wrong bytes. Reads of an
unreadable sector fail, including reads through a mapping (`BadDisk`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from message_store.log.page_guard import PAGE_BYTES
from tests.support.bad_disk import BadDisk

KINDS = {
    "commit log": "commitlog/*",
    "consume queue": "consumequeue/*/*/*",
    "index": "index/*",
    "timer log": "timerlog/*",
    "timer wheel": "timerwheel",
    "checkpoint": "checkpoint",
    "duemq.mark": "config/duemq.mark",
    "duemq.timers.json": "config/duemq.timers.json*",
    "timercheck": "config/timercheck",
    "timermetrics": "config/timermetrics*",
    "delayOffset.json": "config/delayOffset.json*",
    "delayLevels.json": "config/delayLevels.json*",
    "consumerOffset.json": "config/consumerOffset.json*",
    "topics.json": "config/topics.json*",
    "subscriptionGroup.json": "config/subscriptionGroup.json*",
    "accounts": "config/duemq.accounts.json",
    "sums": "sums/**/*",
    "abort and lock": "[al][bo][oc][rk]*",
}
"""File patterns relative to the store's root, by kind of file."""
WHOLE_FILES = ("config/", "checkpoint", "abort", "lock")
TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a damage."""

    kind: str
    file: str
    pos: int


@contextmanager
def unchanged_times(path: Path) -> Iterator[None]:
    """Restore the times of a file at the end of the block."""
    before = path.stat()
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def files_of(root: Path, kind: str) -> list[Path]:
    """Return the files of a kind that are not empty."""
    found = [path for path in sorted(root.glob(KINDS[kind])) if path.is_file()]
    return [path for path in found if path.stat().st_size]


def flip(root: Path, kind: str, chance: Random) -> Place | None:
    """Flip one bit at or next to a byte that is not zero."""
    paths = files_of(root, kind)
    used = {path: np.flatnonzero(np.fromfile(path, np.uint8)) for path in paths}
    paths = [path for path in paths if used[path].size]
    if not paths:
        return None
    path = chance.choice(paths)
    pos = int(chance.choice(used[path])) + chance.choice([-1, 0, 0, 0, 1])
    pos = min(max(pos, 0), path.stat().st_size - 1)
    with unchanged_times(path), path.open("r+b") as file:
        file.seek(pos)
        byte = file.read(1)[0]
        file.seek(pos)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))
    return Place(kind, str(path.relative_to(root)), pos)


def misplace(root: Path, kind: str, chance: Random) -> Place | None:
    """Overwrite a page with another page of the same kind of file."""
    pages = [
        (path, pos)
        for path in files_of(root, kind)
        for pos in range(0, path.stat().st_size, PAGE_BYTES)
        if _bytes_at(path, pos, PAGE_BYTES).any()
    ]
    for _ in range(TRIES_MAX if pages else 0):
        (source, source_pos), (path, pos) = chance.choice(pages), chance.choice(pages)
        data, before = (
            _bytes_at(file, at, PAGE_BYTES) for file, at in ((source, source_pos), (path, pos))
        )
        size = min(data.size, before.size)
        if (data[:size] != before[:size]).any():
            with unchanged_times(path), path.open("r+b") as file:
                file.seek(pos)
                file.write(data[:size].tobytes())
            return Place(kind, str(path.relative_to(root)), pos)
    return None


def choose_page(root: Path, kind: str, chance: Random) -> Place | None:
    """Choose a page that is not empty, for `break_sector`."""
    places = [
        Place(kind, str(path.relative_to(root)), pos)
        for path in files_of(root, kind)
        for pos in range(0, path.stat().st_size, PAGE_BYTES)
        if _bytes_at(path, pos, PAGE_BYTES).any()
    ]
    return chance.choice(places) if places else None


def break_sector(disk: BadDisk, root: Path, place: Place) -> None:
    """Make a page unreadable, or the whole file if it is read as a whole."""
    disk.break_page(root / place.file, place.pos)
    if place.file.startswith(WHOLE_FILES):
        disk.break_file(root / place.file)


def _bytes_at(path: Path, pos: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.fromfile(path, np.uint8, count=count, offset=pos)
