"""Copies and archives of stores with holes: a timer wheel has 38 MB, and few pages have data."""

from __future__ import annotations

import os
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

SPARSE_BYTES: Final = 1 << 24  # smaller files are copied with their zeros
BLOCK_BYTES: Final = 1 << 16


def copy_used(source: str, target: str) -> None:
    """Copy a file unless the broker has just removed it; preserve the holes of large files."""
    with suppress(FileNotFoundError):
        _copy(source, target)


def _copy(source: str, target: str) -> None:
    if os.path.getsize(source) < SPARSE_BYTES:
        shutil.copy2(source, target)
        return
    with open(source, "rb") as old, open(target, "wb") as new:
        new.truncate(os.path.getsize(source))
        pos = 0
        while (start := _seek(old.fileno(), pos, os.SEEK_DATA)) >= 0:
            pos = _seek(old.fileno(), start, os.SEEK_HOLE)
            os.pwrite(new.fileno(), os.pread(old.fileno(), pos - start, start), start)


def _seek(fd: int, pos: int, whence: int) -> int:
    try:
        return os.lseek(fd, pos, whence)
    except OSError:
        return -1


def unpack(path: Path, target: Path) -> None:
    """Unpack an archive; large files get holes in place of blocks of zeros."""
    with tarfile.open(path) as archive:
        for member in archive:
            large = archive.extractfile(member) if member.size >= SPARSE_BYTES else None
            if large is None:
                archive.extract(member, target, filter="data")
            else:
                _write_sparse(target / member.name, large)


def _write_sparse(path: Path, source: IO[bytes]) -> None:
    """Write a file with holes in place of blocks of zeros."""
    with path.open("wb") as file:
        while block := source.read(BLOCK_BYTES):
            if block.strip(b"\0"):
                file.write(block)
            else:
                file.seek(len(block), os.SEEK_CUR)
        file.truncate()
