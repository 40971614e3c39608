"""Sync of a whole file system: one commit of its journal instead of one for each file.

Linux reports a failed write by syncfs(2), since 5.8, once to each descriptor that was open when the
write failed. The failed file may be that of another program, so a caller syncs its own files one by
one after a failure.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

REPORTS_SINCE: Final = (5, 8)


class FileSystem:
    """File system of a directory; until `open` is called, nothing is synced."""

    def __init__(self) -> None:
        self._fd = -1
        self._device = 0

    def open(self, directory: Path) -> None:
        """Receive the failures of writes from now on."""
        if self._fd < 0:
            self._fd = os.open(directory, os.O_RDONLY)
            self._device = os.fstat(self._fd).st_dev

    def contains(self, fd: int) -> bool:
        """Return whether an open file is in this file system."""
        return self._fd >= 0 and os.fstat(fd).st_dev == self._device

    def sync(self) -> bool:
        """Sync the file system.

        Returns:
            Whether all files are on the disk; False if each must be synced by itself.
        """
        syncfs = syncfs_function()
        return syncfs is not None and self._fd >= 0 and syncfs(self._fd) == 0

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@cache
def syncfs_function() -> Callable[[int], int] | None:
    """Return syncfs of the C library; None if it is missing, or does not report failures."""
    if kernel_version(os.uname().release) < REPORTS_SINCE:
        return None
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "syncfs", None)
    return function


def kernel_version(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a kernel's release, such as `6.18.44-generic`."""
    return tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
