"""Directory with saved state: one writer at a time, files replaced atomically and synced."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duemq_common.directories import sync_directory
from duemq_common.disk_errors import naming
from duemq_common.errors import UsageError


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """Hold the lock of a directory, which is created.

    Args:
        busy: Text of the error if another process holds it.
    Raises:
        UsageError: Another process holds it.
        OSError: The directory cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise UsageError(busy) from error
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically: a reader finds the former one or this one.

    Raises:
        OSError: It cannot be written; the former one remains.
    """
    temporary = path.with_suffix(".new")
    with naming(temporary), temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
