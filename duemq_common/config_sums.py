"""Checksums of configuration files, to detect contents that a disk has changed.

    config/topics.json        Apache's bytes, which have no checksum
    config/sums/topics.json   CRC, size and modification time of the file as it was written

A file with another modification time was written since, by an operator or an Apache broker, and is
not checked. A file with the same time and other contents was damaged on the disk; its `.bak` is
used instead, which is checked in the same way.

Checksums are not synced: without a valid checksum, a file is not checked.
"""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from duemq_common.existence import exists

DIRECTORY: Final = "sums"
DAMAGED: Final = "its contents are not as they were written: the disk has changed them"


def record(path: Path, data: bytes, *, previous: Path | None = None) -> None:
    """Record the checksum of a file that was just written; errors of the disk are ignored.

    Args:
        previous: Path to which the file's previous contents were moved, with their times.
    """
    sum_path = path.parent / DIRECTORY / path.name
    with suppress(OSError):
        sum_path.parent.mkdir(exist_ok=True)
        if previous is not None and exists(sum_path):
            os.replace(sum_path, sum_path.with_name(previous.name))
        status = path.stat()
        text = f"{zlib.crc32(data):08x} {len(data)} {status.st_mtime_ns}"
        temporary = sum_path.with_name(sum_path.name + ".tmp")
        temporary.unlink(missing_ok=True)
        mode = stat.S_IMODE(status.st_mode)  # the checksum of a secret file is secret, too
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(f"{text} {zlib.crc32(text.encode()):08x}\n".encode())
        os.replace(temporary, sum_path)


def is_damaged(path: Path, data: bytes) -> bool:
    """Return whether the bytes of a file differ from those that were written."""
    recorded = _read_sum(path)
    if recorded is None or recorded[2] != _modified_ns(path):
        return False
    return recorded[:2] != (zlib.crc32(data), len(data))


def checked(path: Path, data: bytes) -> bytes:
    """Return the bytes of a file.

    Raises:
        ValueError: The disk has changed them.
    """
    if is_damaged(path, data):
        raise ValueError(DAMAGED)
    return data


def _read_sum(path: Path) -> tuple[int, int, int] | None:
    """Return CRC, size and modification time as written, None if they are unknown."""
    try:
        text = (path.parent / DIRECTORY / path.name).read_bytes().decode("ascii")
        body, _, own_crc = text.rstrip("\n").rpartition(" ")
        if int(own_crc, 16) != zlib.crc32(body.encode()):
            return None
        crc, size, modified_ns = body.split(" ")
        return int(crc, 16), int(size), int(modified_ns)
    except (OSError, ValueError):
        return None


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1
