"""Zeroing of a part of a file without changing its size.

Truncating a file and extending it again also zeroes its end, but in two steps: a crash between
them, or a failure of the second, leaves a short file that no broker opens. Earlier versions did
this; therefore a short last file of a log or queue is extended when it is opened.

    punch_hole    one system call that frees the blocks       ext4, xfs, btrfs, tmpfs
    write_zeros   writes only where bytes are not zero        file systems without holes
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
FALLOC_FL_KEEP_SIZE: Final = 1  # linux/falloc.h
FALLOC_FL_PUNCH_HOLE: Final = 2
PIECE_BYTES: Final = 1 << 20
ZEROS: Final = bytes(PIECE_BYTES)
CUT_TAIL_BYTES: Final = 64


def zero_range(fd: int, start: int, end: int) -> None:
    """Zero the bytes start..end of a file; its size does not change.

    Raises:
        OSError: The disk refused it; some of the bytes may be zeros.
    """
    if start >= end:
        return
    try:
        punch_hole(fd, start, end)
    except OSError:
        write_zeros(fd, start, end)


def punch_hole(fd: int, start: int, end: int) -> None:
    """Deallocate the bytes start..end of a file.

    Raises:
        OSError: The file system does not support it, or the disk refused it.
    """
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (AttributeError, OSError) as error:
        raise OSError("this system has no fallocate") from error
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write_zeros(fd: int, start: int, end: int) -> None:
    """Write zeros over the bytes start..end of a file, where they are not zeros.

    Raises:
        OSError: The disk refused it.
    """
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError:  # only holes from here on
            return
        hole = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        block = os.pread(fd, max(min(PIECE_BYTES, hole - start), 0), start)
        if not block:
            return
        if block.strip(b"\0"):
            done = 0
            while done < len(block):
                done += os.pwrite(fd, ZEROS[: len(block) - done], start + done)
        start += len(block)


def restored_size(path: Path, size: int, *, proven: bool) -> int:
    """Return the size of the last file of a log or queue; extend a truncated file.

    A truncated file ends with data; a file of another configured size ends with zeros and
    is not changed.

    Args:
        size: Configured size of the files, bytes.
        proven: Files before it have this size.

    Raises:
        OSError: The disk refused it.
    """
    current_size = path.stat().st_size
    if not 0 < current_size < size:
        return current_size
    fd = os.open(path, os.O_RDWR)
    try:
        tail = os.pread(fd, CUT_TAIL_BYTES, max(current_size - CUT_TAIL_BYTES, 0))
        if not (proven or tail.strip(b"\0")):
            return current_size
        os.ftruncate(fd, size)
    finally:
        os.close(fd)
    log.warning(
        "%s was cut to %d bytes; it has %d again, zeros at its end", path, current_size, size
    )
    return size
