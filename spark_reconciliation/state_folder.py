"""Directory with saved state: one writer at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
