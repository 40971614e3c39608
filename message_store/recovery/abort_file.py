"""Abort file, `<root>/abort`: exists while a store is open, or after an unclean stop.

It contains the process id, as in Apache's broker, and the device and inode of the file itself. A
copy of the directory of a running store has another inode. Its files were read one after the other,
so they are of different times: a start treats them as after a power cut.
"""

from __future__ import annotations

import os
from pathlib import Path

from duemq_common.directories import sync_directory
from duemq_common.existence import exists


class AbortFile:
    """The abort file of one store, as Apache's brokers write it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "abort"

    @property
    def exists(self) -> bool:
        """Whether a broker runs on the store or did not stop cleanly."""
        return exists(self.path)

    @property
    def is_copied(self) -> bool:
        """Whether the file, and so the store, is a copy of another directory."""
        try:
            words = self.path.read_text().split()
        except (OSError, ValueError):
            return False
        return len(words) == 3 and words[1:] != self._file_identity()

    def _file_identity(self) -> list[str]:
        status = self.path.stat()
        return [str(status.st_dev), str(status.st_ino)]

    def write(self) -> None:
        """Create and sync the file.

        Raises:
            OSError: The disk refused it.
        """
        with self.path.open("w") as file:
            file.write(" ".join([str(os.getpid()), *self._file_identity()]))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Remove the file after the store was synced.

        Raises:
            OSError: The disk refused it.
        """
        self.path.unlink(missing_ok=True)
