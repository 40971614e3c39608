"""Files with secrets: refused if other users of the machine may use them, replaced as a whole."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from message_store.errors import CorruptStore

MODE: Final = 0o600
REPAIR: Final = "Repair it, or restore it from a copy"


def read_secrets(path: Path, bytes_max: int, remedy: str = REPAIR) -> bytes:
    """Return the contents of a file.

    Args:
        remedy: What to do about a file that cannot be read.

    Raises:
        FileNotFoundError: There is none.
        CorruptStore: Other users of the machine may use it, it is too long, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            _check_mode(path, found.st_mode)
            if found.st_size > bytes_max:
                raise CorruptStore(path, 0, f"longer than {bytes_max} bytes", REPAIR)
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptStore(path, 0, f"it cannot be read: {error.strerror}", remedy) from error


def write_secrets(path: Path, data: bytes) -> None:
    """Replace a file; at any time the old or the new one is there, also on the disk.

    Group and mode stay those of the old file; a new one is for its owner only.

    Raises:
        OSError: The disk refused it; the old file is unchanged.
    """
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    with open(descriptor, "wb") as file:
        _take_over(path, file.fileno())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise CorruptStore(path, 0, "it is not a plain file", REPAIR)
    if mode & stat.S_IRWXO:
        why = f"every user of this machine may use it (mode {stat.S_IMODE(mode):04o})"
        remedy = (
            f"Run `chmod 600 {path}`, and change the passwords in it if others have accounts here"
        )
        raise CorruptStore(path, 0, why, remedy)


def _take_over(path: Path, descriptor: int) -> None:
    """Give a new file the group and the mode of the one that it replaces."""
    try:
        old = path.stat()
    except FileNotFoundError:
        return
    with suppress(PermissionError):  # a group that the broker's user is not in
        os.fchown(descriptor, -1, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & ~stat.S_IRWXO)
