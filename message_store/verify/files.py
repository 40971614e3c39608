"""Read-only mappings of a store's files; sizes come from the files, not the configuration."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from duemq_common.existence import is_directory
from duemq_common.json_dialect import loads
from message_store.log.file_sequence import NAME_DIGITS
from message_store.log.page_guard import PAGE_BYTES, GuardedMap, page_guard
from message_store.verify.report import Report

OFFSET_MAX = 1 << 62
_T = TypeVar("_T")
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """One of several files of equal size that follow each other.

    Attributes:
        base: Offset of its first byte.
        data: (size,) u1, read-only.
    """

    path: Path
    base: int
    data: Bytes

    @property
    def end(self) -> int:
        """Offset after its last byte."""
        return self.base + self.data.size


def map_file(path: Path) -> Bytes:
    """Map the bytes of a file; unreadable pages are zeros.

    Raises:
        OSError: It cannot be opened.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:  # an empty file has no pages
            return np.empty(0, np.uint8)
        pages = GuardedMap(path, file.fileno(), size)
        pages.forget_file()
    return pages.data


def data_parts(path: Path, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the parts of a file that have blocks on the disk, from `start` on.

    The rest consists of zeros. A page of it that is read through a mapping takes memory.

    Raises:
        OSError: It cannot be opened, or its disk does not know its blocks.
    """
    with path.open("rb") as file:
        while True:
            try:
                start = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data follows
                    return
                raise
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, end
            start = end


def read_progress(path: Path, kind: str, decode: Callable[[Any], _T], report: Report) -> _T | None:
    """Return the contents of a JSON file of progress; report contents that cannot be used.

    None if there are none: a file that cannot be read is reported with the configuration files.

    Args:
        decode: Returns the contents of the parsed file, or raises.
    """
    try:
        value = loads(path.read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return None
    try:
        return decode(value)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        report.add("error", kind, path, 0, f"its offsets cannot be used: {error}")
        return None


def map_files(directory: Path, report: Report, *, multiple: int = 1) -> list[Piece]:
    """Return the files of a commit log or queue in order; report other files.

    Args:
        multiple: Number of bytes that file sizes must be a multiple of.
    """
    files = []
    for path in sorted(directory.iterdir()):
        if is_directory(path):
            report.add("note", "stray-directory", path, 0, "Apache 4.9 does not start with it here")
        elif not is_offset(path.name):
            report.add(
                "warning",
                "stray-file",
                path,
                0,
                "its name is not a 20-digit offset, so no broker starts; move it away",
            )
        else:
            file = _map_piece(path, report)
            if file is not None:
                files.append(file)
    _check_sizes(files, report, multiple)
    return files


def is_offset(name: str) -> bool:
    """Return whether a file name is an offset in the form that brokers write."""
    plain = name.isascii() and name.isdigit() and len(name) == NAME_DIGITS
    return plain and int(name) <= OFFSET_MAX


def _map_piece(path: Path, report: Report) -> Piece | None:
    try:
        data = map_file(path)
    except OSError as error:
        report.add("error", "unreadable-file", path, 0, f"it cannot be read: {error}")
        return None
    if not data.size:
        report.add("warning", "empty-file", path, 0, "it has no bytes; Apache 4.9 does not start")
        return None
    return Piece(path, int(path.name), data)


def report_unreadable(report: Report, pages_before: int) -> None:
    """Report unreadable pages that the guard has found since it had found `pages_before` pages."""
    guard = page_guard()
    guard.update()
    for page in guard.pages[pages_before:]:
        report.add(
            "error",
            "unreadable-sector",
            page.path,
            page.pos,
            f"{PAGE_BYTES} bytes cannot be read: {page.reason}; copy the store to another disk, or "
            f"restore this file from a copy",
        )


def _check_sizes(files: Sequence[Piece], report: Report, multiple: int) -> None:
    size = common_size(files)
    for index, file in enumerate(files):
        if file.data.size != size or size % multiple:
            report.add(
                "error",
                "file-size",
                file.path,
                int(file.data.size),
                f"it has {file.data.size} bytes, its neighbours {size}; no broker starts",
            )
        if index and file.base != files[index - 1].base + size:
            before = files[index - 1].base
            text = f"the file before it starts at {before}: files between them are missing"
            report.add("error", "missing-file", file.path, 0, text)


def common_size(files: Sequence[Piece]) -> int:
    """Return the most common size of files; of equally common ones the larger."""
    sizes = Counter(int(file.data.size) for file in files)
    return max(sizes, key=lambda size: (sizes[size], size), default=0)


def used_bytes(data: Bytes, pos: int) -> int:
    """Return the number of bytes from data[pos] to the last one that is not zero."""
    step = 1 << 24
    end = data.size
    while end > pos:
        start = max(pos, end - step)
        used = np.flatnonzero(data[start:end])
        if used.size:
            return start + int(used[-1]) + 1 - pos
        end = start
    return 0


def overlapping(files: Sequence[Piece], low: int, high: int) -> Iterator[Piece]:
    """Yield the files with an offset in low..high."""
    return (file for file in files if file.base <= high and file.end > low)
