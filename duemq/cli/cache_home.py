"""Kernel cache directory when the default directory is not writable.

    DUEMQ_KERNEL_CACHE, else $XDG_CACHE_HOME/duemq/kernels, else ~/.cache/duemq/kernels
        |  not writable: a service account without a home, a read-only image
        v
    a private directory of this user below the temporary directory

Machine code from the directory is executed, so it must belong to this user and not be writable by
others; otherwise a new directory is created.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "DUEMQ_KERNEL_CACHE"  # as in message_store.kernels, which reads it
XDG_VARIABLE: Final = "XDG_CACHE_HOME"


def use_writable_cache() -> str:
    """Set the environment to a writable cache directory; return a notice if it is not the default.

    Call it before `message_store.kernels` is imported.
    """
    directory = _usual_directory()
    fault = _fault(directory) if directory is not None else "this user has no home directory"
    if not fault:
        return ""
    own = _own_directory()
    os.environ[CACHE_VARIABLE] = str(own)
    if directory is None:
        os.environ[XDG_VARIABLE] = str(own)  # for libraries that need a cache directory
    return (
        f"{fault}; compiled code is stored in {own}. Set {CACHE_VARIABLE} to a permanent directory "
        "to avoid compiling again"
    )


def _usual_directory() -> Path | None:
    """Return the default directory of `message_store.kernels`; None without a home directory."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    cache = user_cache()
    return cache / "kernels" if cache is not None else None


def user_cache() -> Path | None:
    """Return DueMQ's cache directory of this user; None without a home directory."""
    try:
        return Path(os.environ.get(XDG_VARIABLE) or Path.home() / ".cache") / "duemq"
    except RuntimeError:
        return None


def _fault(directory: Path) -> str:
    """Return the reason why a directory cannot be used; empty: it can be used."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return f"{directory} cannot be written: {error.strerror}"


def _own_directory() -> Path:
    """Return a private directory below the temporary directory.

    Raises:
        OSError: No directory can be created.
    """
    path = Path(tempfile.gettempdir()) / f"duemq-kernels-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="duemq-kernels-"))
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_own or status.st_mode & 0o022 or _fault(path):
        return Path(tempfile.mkdtemp(prefix="duemq-kernels-"))
    return path
