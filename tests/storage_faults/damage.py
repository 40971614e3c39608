"""Damage to the files of a store: one flipped bit, or a page that was written at another place.

Both leave size and times of a file as they were: a disk that returns wrong bytes changes neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

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
"""File patterns below the root, by kind of file."""
NEAR_BYTES = 8
TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file was damaged."""

    kind: str
    file: str
    pos: int


Damage = Callable[[Path, str, Random], Place | None]
"""Damages a file of one kind below a root; None: there is none that it can damage."""


@contextmanager
def unchanged_times(path: Path) -> Iterator[None]:
    """Keep the times of a file."""
    before = path.stat()
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def files_of(root: Path, kind: str) -> list[Path]:
    """Return the files of a kind that have bytes."""
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


def misplace(page_bytes: int) -> Damage:
    """Return the damage of one page that was written over another one of the same kind of file."""

    def damage(root: Path, kind: str, chance: Random) -> Place | None:
        paths = files_of(root, kind)
        pages = [
            (path, pos) for path in paths for pos in range(0, path.stat().st_size, page_bytes)
            if _bytes_at(path, pos, page_bytes).any()
        ]  # fmt: skip
        for _ in range(TRIES_MAX if pages else 0):
            (source, source_pos), (path, pos) = chance.choice(pages), chance.choice(pages)
            data = _bytes_at(source, source_pos, page_bytes)
            before = _bytes_at(path, pos, page_bytes)
            size = min(data.size, before.size)
            if (data[:size] != before[:size]).any():
                with unchanged_times(path), path.open("r+b") as file:
                    file.seek(pos)
                    file.write(data[:size].tobytes())
                return Place(kind, str(path.relative_to(root)), pos)
        return None

    return damage


def _bytes_at(path: Path, pos: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.fromfile(path, np.uint8, count=count, offset=pos)
