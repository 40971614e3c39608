"""Remedies for errors of files and directories."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

FULL: Final = "Free disk space"
_READ_ONLY: Final = "Let the broker's user write to its directory"
_FILES: Final = "Raise the limit of open files (LimitNOFILE, ulimit -n) and restart the broker"
_ABSENT: Final = "Restore its directory"
REMEDIES: Final[Mapping[int, str]] = MappingProxyType(
    {
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), FULL),
        **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _READ_ONLY),
        **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
        **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), _ABSENT),
    }
)


def remedy_of(error: OSError) -> str:
    """Return what an operator can do about a failed write, as the start of a sentence."""
    return REMEDIES.get(error.errno or 0, "Check the disk")


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let an error of a write in the block name its file.

    Raises:
        OSError: With the file, as the errors of `open`.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
