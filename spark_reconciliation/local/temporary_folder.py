"""Folder for temporary files of one session. A killed process leaves it; the next start removes it.

Each process locks its folder, so a folder without a lock belongs to no process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Final
from weakref import finalize

from duemq_common.existence import exists

PREFIX: Final = "duemq-audit-"


class TemporaryFolder:
    """Folder that exists until `remove`, or the end of the process.

    Attributes:
        path: Its path; it is empty.
    Raises:
        OSError: The folder cannot be made; the text has the remedy.
    """

    def __init__(self) -> None:
        with naming_folder():
            remove_abandoned(Path(gettempdir()))
            self.path, descriptor = _locked_folder()
        self._remove = finalize(self, _remove, self.path, descriptor)

    def remove(self) -> None:
        """Remove the folder with its files."""
        self._remove()


@contextmanager
def naming_folder() -> Iterator[None]:
    """Name the directory of temporary files, and the remedy, in errors of the block.

    Raises:
        OSError: One of the block.
    """
    try:
        yield
    except OSError as error:
        text = f"{error}: set TMPDIR to a directory with space for 40 bytes for each record"
        raise OSError(f"temporary file in {gettempdir()}: {text}") from error


def _locked_folder() -> tuple[Path, int]:
    """Return a new folder, and the descriptor that holds its lock."""
    while True:
        path = Path(mkdtemp(prefix=PREFIX))
        # another process may remove it before it is locked
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if exists(path):
                return path, descriptor
            os.close(descriptor)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders whose processes have ended."""
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # of another user, locked, or removed already
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)


def _remove(path: Path, descriptor: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)
