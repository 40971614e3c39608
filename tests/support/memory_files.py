"""Temporary files in memory, where syncs cost nothing, if the machine has enough of it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
DISK_VARIABLE: Final = "DUEMQ_TESTS_ON_DISK"
GB: Final = 1 << 30
FREE_BYTES_MIN: Final = 4 * GB  # of the file system
AVAILABLE_BYTES_MIN: Final = 8 * GB  # of the machine


def use_memory() -> None:
    """Put temporary files into memory, unless TMPDIR names a directory."""
    os.environ.setdefault(DISK_VARIABLE, tempfile.gettempdir())  # workers inherit it
    if "TMPDIR" not in os.environ and has_room():
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it is read again


def on_disk(prefix: str) -> Path:
    """Create a temporary directory that is not in memory."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ[DISK_VARIABLE]))


def has_room() -> bool:
    """Return whether the memory suffices for the files of all workers."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < FREE_BYTES_MIN:
        return False
    available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return available is not None and int(available[1]) << 10 >= AVAILABLE_BYTES_MIN
