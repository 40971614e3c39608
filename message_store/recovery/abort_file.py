"""Abort file, `<root>/abort`: exists while a store is open, or after an unclean stop."""

from __future__ import annotations

import os
from pathlib import Path

from message_store.log.commit_log import sync_directory


class AbortFile:
    """The abort file of one store, as Apache's brokers write it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "abort"

    @property
    def exists(self) -> bool:
        """Whether a broker runs on the store or did not stop cleanly."""
        return self.path.exists()

    def write(self) -> None:
        """Create and sync the file.

        Raises:
            OSError: The disk refused it.
        """
        with self.path.open("w") as file:
            file.write(str(os.getpid()))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Remove the file after the store was synced.

        Raises:
            OSError: The disk refused it.
        """
        self.path.unlink(missing_ok=True)
