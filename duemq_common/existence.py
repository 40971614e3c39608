"""Existence of files and directories, without hiding errors of the disk.

Since Python 3.14, `Path.exists`, `is_dir` and `is_file` return False for every error, so a file
that the disk cannot read, or that the user may not see, looks absent.
"""

from __future__ import annotations

import errno
from pathlib import Path
from stat import S_ISDIR, S_ISREG

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP})


def exists(path: Path) -> bool:
    """Return whether something is at a path.

    Raises:
        OSError: The path cannot be read.
    """
    return _mode(path) is not None


def is_directory(path: Path) -> bool:
    """Return whether a directory is at a path.

    Raises:
        OSError: The path cannot be read.
    """
    mode = _mode(path)
    return mode is not None and S_ISDIR(mode)


def is_file(path: Path) -> bool:
    """Return whether a regular file is at a path.

    Raises:
        OSError: The path cannot be read.
    """
    mode = _mode(path)
    return mode is not None and S_ISREG(mode)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except ValueError:  # a character that no path has
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise
