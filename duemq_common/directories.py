"""Directories: syncs of the names in them, and files that are replaced in them."""

from __future__ import annotations

import os
from pathlib import Path

from duemq_common.disk_errors import naming


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk.

    Raises:
        OSError: The directory cannot be opened or synced.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file, and wait until its bytes are on the disk.

    Raises:
        OSError: It cannot be written; a part of it may exist.
    """
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader finds the former one or this one, also after a crash.

    Raises:
        OSError: It cannot be written, and the former one remains; or it is replaced, but may not be
            durable yet.
    """
    temporary = path.with_name(path.name + ".tmp")
    with naming(path):
        write_synced(temporary, data)
        os.replace(temporary, path)
        sync_directory(path.parent)
