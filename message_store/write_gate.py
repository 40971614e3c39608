"""Write gate: whether the store accepts writes, and the reason if not."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from duemq_common.disk_errors import remedy_of
from duemq_common.existence import is_directory

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class WriteGate:
    """Gate that is open while messages can be stored.

    Attributes:
        refusal: Reason why writes are refused; empty while the gate is open.
    """

    def __init__(self, root: Path, log_directory: Path, notice: Callable[[str], None]) -> None:
        self._root, self._log_directory, self._notice = root, log_directory, notice
        self.refusal = ""

    def disk_failed(self, error: OSError) -> None:
        """Close the gate until the disk has room again."""
        remedy = remedy_of(error)
        if error.errno == errno.ENOSPC and self._has_no_inodes():
            self.refusal = f"the file system has no free inodes ({self._root})"
            remedy = "Remove files, or use a file system with more inodes"
        else:
            reason = "the disk is full" if error.errno in DISK_FULL else str(error)
            self.refusal = f"{reason} ({self._root}, {self.disk_used_ratio:.0%} used)"
        self._notice(f"writes are refused: {self.refusal}. {remedy}; the broker then continues.")

    def sync_failed(self, error: OSError) -> None:
        """Close the gate until the broker is restarted."""
        self.refusal = f"the store cannot be synced: {error}"
        self._notice(f"writes are refused: {self.refusal}. Check the disk and restart the broker.")

    def _has_no_inodes(self) -> bool:
        """Return whether the file system counts inodes and all of them are in use."""
        status = os.statvfs(self._root)
        return status.f_files > 0 and status.f_favail == 0

    @property
    def disk_used_ratio(self) -> float:
        """Used share of the disk that holds the commit log, 0..1."""
        used, free = self.disk_bytes
        return used / max(used + free, 1)

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Used and free bytes of the disk that holds the commit log."""
        directory = self._log_directory
        usage = shutil.disk_usage(directory if is_directory(directory) else self._root)
        return usage.used, usage.free
