"""Files with secrets: rejected if other users of the machine have access, replaced atomically."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from duemq_common.directories import sync_directory
from duemq_common.disk_errors import naming
from duemq_common.errors import CorruptStore

MODE: Final = 0o600
REPAIR: Final = "Repair it, or restore it from a copy"


class NotSynced(OSError):
    """Failed sync of a directory after a file in it was replaced.

    The new file is in place, but a power failure may restore the old one.
    """


def read_secrets(path: Path, bytes_max: int, remedy: str = REPAIR) -> bytes:
    """Return the contents of a file.

    Args:
        remedy: Advice in the error for an unreadable file.

    Raises:
        FileNotFoundError: The file does not exist.
        CorruptStore: Other users have access, or the file is too long or unreadable.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            _check_mode(path, status.st_mode)
            if status.st_size > bytes_max:
                raise CorruptStore(path, 0, f"longer than {bytes_max} bytes", REPAIR)
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptStore(path, 0, f"it cannot be read: {error.strerror}", remedy) from error


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a named pipe has no end to wait for and is rejected by its mode."""
    return os.open(path, flags | os.O_NONBLOCK)


def write_secrets(path: Path, data: bytes) -> None:
    """Replace a file atomically and sync it.

    Group and mode of an existing file are kept, and its owner if this process may set it; a new
    file is accessible to its owner only.

    Raises:
        OSError: The write failed; the old file is unchanged.
        NotSynced: The file was replaced.
    """
    path = path.resolve()  # keep a symbolic link
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    with naming(path), open(descriptor, "wb") as file:
        _take_over(path, file.fileno())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise NotSynced(error.errno, error.strerror, str(path.parent)) from error


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise CorruptStore(path, 0, "it is not a regular file", REPAIR)
    if mode & stat.S_IRWXO:
        reason = f"every user of this machine has access (mode {stat.S_IMODE(mode):04o})"
        remedy = f"Run `chmod 600 {path}`, and change its passwords if others have accounts here"
        raise CorruptStore(path, 0, reason, remedy)


def _take_over(path: Path, descriptor: int) -> None:
    """Copy owner, group and mode of the old file to the new one."""
    try:
        old = path.stat()
    except FileNotFoundError:
        return
    if old.st_uid != os.geteuid():
        with suppress(PermissionError):  # only root may set the owner
            os.fchown(descriptor, old.st_uid, -1)
    with suppress(PermissionError):  # the user is not a member of the group
        os.fchown(descriptor, -1, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & ~stat.S_IRWXO)
