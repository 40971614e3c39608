"""Kernel cache directory when the default directory is not writable.

    DUEMQ_KERNEL_CACHE, else $XDG_CACHE_HOME/duemq/kernels, else ~/.cache/duemq/kernels
        |  not writable, and not complete: a service account without a home
        v
    a private directory of this user below the temporary directory

A directory that cannot be written is used if it contains all kernels of this version for this
processor: the read-only cache of an image.

Machine code from the directory is executed, so it must belong to this user and not be writable by
others; otherwise a new directory is created.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from duemq_common.config import expanded
from duemq_common.errors import UsageError

CACHE_VARIABLE: Final = "DUEMQ_KERNEL_CACHE"  # as in message_store.kernels, which reads it
XDG_VARIABLE: Final = "XDG_CACHE_HOME"
COMPLETE: Final = "complete-*"  # marks of `message_store.kernels.registry`


def use_writable_cache() -> str:
    """Set the environment to a writable cache directory; return a notice if it is not the default.

    A read-only directory that is complete for some version or processor stays; see
    `replace_read_only_cache`.
    """
    directory = _usual_directory()
    fault = _fault(directory) if directory is not None else "this user has no home directory"
    if not fault or (directory is not None and any(directory.glob(COMPLETE))):
        return ""
    return _use_own(directory, fault)


def replace_read_only_cache() -> str:
    """Replace a read-only cache that lacks kernels; return a notice if it was replaced.

    Raises:
        UsageError: No directory can be written.
    """
    directory = _usual_directory()
    fault = _fault(directory) if directory is not None else ""
    return _use_own(directory, fault, required=True) if fault else ""


def _use_own(directory: Path | None, fault: str, *, required: bool = False) -> str:
    try:
        own = _own_directory()
    except OSError:
        if not required:
            return ""  # a command without kernels
        reason = f"{fault}, and no temporary directory can be written"
        remedy = f"set {CACHE_VARIABLE} to a directory for compiled code"
        raise UsageError(f"{reason}: {remedy}") from None
    os.environ[CACHE_VARIABLE] = str(own)
    if directory is None:
        os.environ[XDG_VARIABLE] = str(own)  # for libraries that need a cache directory
    return (
        f"{fault}; compiled code is stored in {own}. Set {CACHE_VARIABLE} to a permanent directory "
        "to avoid compiling again"
    )


def _usual_directory() -> Path | None:
    """Return the default directory of `message_store.kernels`; None without a home directory.

    Raises:
        ConfigError: The variable begins with `~`, and there is no such home directory.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return expanded(CACHE_VARIABLE, named)
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
