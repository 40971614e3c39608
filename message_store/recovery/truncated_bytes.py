"""Bytes that are removed from the end of a log, kept in files below `truncated/`.

truncated/00000000000000004096     bytes after log offset 4096 in its log file
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from duemq_common.existence import exists
from message_store.log.commit_log import CommitLog, LogFile

TAIL_BYTES_MAX = 64 << 20


def save_tail(log: CommitLog, end: int, suffix: str = "") -> list[tuple[Path, int]]:
    """Copy the log after `end`, at most TAIL_BYTES_MAX, to a file for each log file.

    Zeros at the end of each are left out.

    Args:
        suffix: End of the files' names, after the log offset of the first byte. A file that exists
            with a suffix stays as it is.
    Returns:
        Paths and sizes of the written files.
    Raises:
        OSError: The disk refused it; some may be written.
    """
    directory = log.directory.parent / "truncated"
    kept, left = [], TAIL_BYTES_MAX
    for file in log.files:
        start = max(end, file.base)
        if file.base + file.size <= end or left <= 0:
            continue
        path = directory / f"{start:020d}{suffix}"
        data = _used(file, start - file.base, left)
        left -= len(data)
        if data and not (suffix and exists(path)):
            directory.mkdir(exist_ok=True)
            _write(path, data)
            kept.append((path, len(data)))
    return kept


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _used(file: LogFile, pos: int, size: int) -> bytes:
    """Return the bytes of a file from `pos` on, without zeros at the end."""
    if not file.has_data(pos, pos + size):
        return b""
    data = file.data[pos : pos + size]
    used = np.flatnonzero(data)
    return data[: int(used[-1]) + 1].tobytes() if used.size else b""
