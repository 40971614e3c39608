"""Lock of a store directory, between processes and within one.

Like Apache's brokers, DueMQ takes a record lock on `<root>/lock`. Such a lock belongs to the
process: a second store in this process would get it, too, and release it for both. Therefore the
directory itself is locked first, with a lock that belongs to the descriptor.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from duemq_common.errors import StoreLocked

# struct flock: type, whence, start, length, process
_LOCK = struct.Struct("@hhqqi") if sys.platform.startswith("linux") else struct.Struct("@qqihh")
_TYPE = 0 if sys.platform.startswith("linux") else 3


def is_locked(root: Path) -> bool:
    """Return whether the broker of another process, DueMQ's or Apache's, has a store open.

    The question takes no lock. A broker on another machine is not seen.
    """
    query = [0, 0, 0, 0, 0]
    query[_TYPE] = fcntl.F_WRLCK
    try:
        file = os.open(root / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        lock = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, _LOCK.pack(*query)))
    finally:
        os.close(file)
    return bool(lock[_TYPE] != fcntl.F_UNLCK)


class StoreLock:
    """The lock of a store directory, acquired on construction.

    Raises:
        StoreLocked: Another broker has the directory.
    """

    def __init__(self, root: Path) -> None:
        path = root / "lock"
        self._directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self._file = -1
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(self._file, b"lock", 0)
        except OSError as error:
            self.release()
            if not isinstance(error, BlockingIOError):
                raise
            raise StoreLocked(
                f"{path} is locked: another broker uses this store. Stop it, or set "
                f"storePathRootDir to another directory."
            ) from error

    def release(self) -> None:
        """Release the locks."""
        for fd in (self._file, self._directory):
            if fd >= 0:
                os.close(fd)
        self._file = self._directory = -1
