"""`<root>/abort`: exists while a store is open; shows a start that the last stop was not clean."""

from __future__ import annotations

import os
from pathlib import Path

from message_store.log.commit_log import sync_directory


class AbortFile:
    """The file of one store, as Apache's brokers know it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "abort"

    @property
    def exists(self) -> bool:
        """Whether a broker runs on the store, or died."""
        return self.path.exists()

    def write(self) -> None:
        """Make it; on the disk when this returns: a power cut is no clean stop.

        Raises:
            OSError: The disk refused it.
        """
        with self.path.open("w") as file:
            file.write(str(os.getpid()))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Take it away: everything is on the disk.

        Raises:
            OSError: The disk refused it.
        """
        self.path.unlink(missing_ok=True)
