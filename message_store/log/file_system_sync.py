"""Sync of a whole file system: one commit of its journal instead of one for each file.

Linux reports failed writes of any file by syncfs(2), since 5.8. The failed file may be that of
another program, so a caller syncs its own files one by one after a failure.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Final

REPORTS_SINCE: Final = (5, 8)


def sync_file_systems(paths: Iterable[str]) -> bool:
    """Sync the file systems of files and directories; missing ones are ignored.

    Returns:
        Whether all are on the disk; False if a file must be synced by itself.

    Raises:
        OSError: A path is invalid.
    """
    syncfs = syncfs_function()
    if syncfs is None:
        return False
    by_device: dict[int, str] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            by_device.setdefault(os.stat(path).st_dev, path)
    return all(_is_synced(syncfs, path) for path in by_device.values())


def _is_synced(syncfs: Callable[[int], int], path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return syncfs(fd) == 0
    finally:
        os.close(fd)


@cache
def syncfs_function() -> Callable[[int], int] | None:
    """Return syncfs of the C library; None if it is missing, or does not report failures."""
    if kernel_version(os.uname().release) < REPORTS_SINCE:
        return None
    return getattr(ctypes.CDLL(None), "syncfs", None)


def kernel_version(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a kernel's release, such as `6.18.44-generic`."""
    return tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
