"""Commit log files: fixed size, named by their first offset, appended with pwritev.

    commitlog/00000000000000000000   [record][record]...[blank]
    commitlog/00000000001073741824   [record]...            <- recovery finds the write position

Reads go through a shared mapping of each file, which shows the bytes of pwritev at once. Unreadable
pages are zero there, and listed (`page_guard`, `unreadable`).
"""

from __future__ import annotations

import bisect
import os
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from duemq_common.errors import CorruptStore, RecordUnreadable
from message_store.layout import BLANK_RECORD, MAGIC_BLANK, packer
from message_store.log.block_sums import DIRECTORY as SUMS
from message_store.log.block_sums import BlockSums
from message_store.log.page_guard import GuardedMap
from message_store.log.unreadable import UnreadableRanges
from message_store.log.zeroing import restored_size, zero_range

NAME_DIGITS = 20
BLANK = packer(BLANK_RECORD)


class LogFile:
    """One file of the log.

    Attributes:
        base: Log offset of its first byte.
        pages: The mapped file.
        data: (size,) u1, read-only: its bytes; unreadable pages are zero.
    """

    def __init__(self, path: Path, base: int, size: int, *, create: bool) -> None:
        self.path, self.base, self.size = path, base, size
        self._named = False  # whether the name of the file is on the disk
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        self.fd = os.open(path, flags, 0o644)
        try:
            if create:
                os.ftruncate(self.fd, size)
            self.pages = GuardedMap(path, self.fd, size)
        except OSError:
            os.close(self.fd)
            if create:
                path.unlink(missing_ok=True)
            raise
        self.data: npt.NDArray[np.uint8] = self.pages.data

    def write(self, pos: int, data: memoryview | bytes) -> None:
        """Write all of `data` at file position `pos`.

        Raises:
            OSError: Part of it may be written; write again at `pos`.
        """
        done = os.pwritev(self.fd, (data,), pos)
        while done < len(data):
            done += os.pwritev(self.fd, (memoryview(data)[done:],), pos + done)
        if self.pages.replaced[0]:
            self.pages.written(pos, len(data))

    def sync(self) -> None:
        """Wait until the file's data and its name are on the disk."""
        os.fdatasync(self.fd)
        if not self._named:
            sync_directory(self.path.parent)
            self._named = True

    def zero_from(self, pos: int) -> None:
        """Zero the file from position `pos` on without changing its size.

        Raises:
            OSError: The disk refused it; some of the bytes may be zeros.
        """
        zero_range(self.fd, pos, self.size)

    def has_data(self, pos: int, end: int) -> bool:
        """Return whether any byte in pos..end is not zero; holes are not read."""
        end = min(end, self.size)
        while pos < end:
            try:
                pos = os.lseek(self.fd, pos, os.SEEK_DATA)
            except OSError:  # only holes from here on
                return False
            hole = min(os.lseek(self.fd, pos, os.SEEK_HOLE), end)
            if self.data[pos:hole].any():
                return True
            pos = max(hole, pos)
        return False

    def modified_s(self) -> float:
        """Return the time of the last modification, in seconds since the epoch."""
        return os.fstat(self.fd).st_mtime

    def close(self) -> None:
        """Close the descriptor; the mapping exists as long as a view of it."""
        self.pages.forget_file()
        os.close(self.fd)

    def erase(self) -> None:
        """Remove the file. Slow if it is large; any thread may call it."""
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.close()


def erase_files(files: list[LogFile]) -> None:
    """Remove files, oldest first. Empty the list: the last reference to a file frees its blocks.

    Raises:
        OSError: A file cannot be removed; this and later files exist again at the next start.
    """
    try:
        while files:
            files.pop(0).erase()
    finally:
        for file in files:
            file.close()
        files.clear()


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


File = TypeVar("File", bound=LogFile)


class NumberedLog(Generic[File]):
    """Files of one size in order, each named after the offset of its first byte.

    Attributes:
        files: In order; only the last one grows.
        end: Offset of the next byte to be written.
    """

    def __init__(self, directory: Path, file_bytes: int, file_type: type[File]) -> None:
        self.directory, self.file_bytes, self.file_type = directory, file_bytes, file_type
        self.files: list[File] = []
        self.end = 0

    @property
    def file_at_end(self) -> File | None:
        """The file that contains `end`, None if it does not exist yet."""
        if self.files and self.end < self.files[-1].base + self.file_bytes:
            return self.files[-1]
        return None

    def open_file(self, path: Path, *, create: bool = False) -> File:
        """Open the file that comes next, and add it."""
        self.files.append(self.file_type(path, int(path.name), self.file_bytes, create=create))
        return self.files[-1]

    def writable_file(self) -> File:
        """Return the file that contains `end`; create it if it does not exist."""
        file = self.file_at_end
        if file is not None:
            return file
        base = self.end - self.end % self.file_bytes
        assert not self.files or base == self.files[-1].base + self.file_bytes
        return self.open_file(self.directory / f"{base:0{NAME_DIGITS}d}", create=True)

    def truncate(self, end: int, *, files_min: int = 0) -> None:
        """Remove all bytes from `end` on: zero the rest of the file, remove later files.

        Args:
            files_min: Minimum number of files to keep, even if they are empty.
        """
        while len(self.files) > files_min and self.files[-1].base >= end:
            self.files.pop().erase()
        self.end = end
        if self.files and end < self.files[-1].base + self.file_bytes:
            self.files[-1].zero_from(end - self.files[-1].base)

    def detach_first(self) -> File:
        """Detach the oldest file from the log; the caller erases it. The last file stays."""
        assert len(self.files) > 1
        return self.files.pop(0)

    def remove_first(self) -> None:
        """Remove the oldest file, but not the last one."""
        self.detach_first().erase()

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
        self.files.clear()


class CommitLog(NumberedLog[LogFile]):
    """Commit log: the files in order, the write position, and views of the written bytes."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        super().__init__(directory, file_bytes, LogFile)
        self.unreadable = UnreadableRanges(self)
        self.sums = BlockSums(directory.parent / SUMS, lambda: self.files)

    def load(self, *, synced: int = 0) -> None:
        """Open every file; set `end` to the end of the last one.

        Args:
            synced: Log offset up to which the log was synced. A last file that ends before it has
                lost messages; it is reported, not extended.
        Raises:
            CorruptStore: A file has a wrong size or name, or a file is missing in between.
        """
        paths = numbered_files(self.directory)
        for path in paths:
            self._check(path, last=path == paths[-1], synced=synced)
            self.open_file(path)
        if self.files:
            self.end = self.files[-1].base + self.file_bytes

    def _check(self, path: Path, *, last: bool, synced: int) -> None:
        if not (path.name.isdigit() and len(path.name) == NAME_DIGITS):
            raise CorruptStore(
                path, 0, "its name is not a 20-digit log offset", "Move it out of this directory."
            )
        proven = bool(self.files)
        size = path.stat().st_size
        if last and int(path.name) + size >= synced:
            size = restored_size(path, self.file_bytes, proven=proven)
        if size != self.file_bytes:
            raise CorruptStore(
                path,
                0,
                f"it has {size} bytes, mappedFileSizeCommitLog is {self.file_bytes}",
                f"Set mappedFileSizeCommitLog to the size with which it was written. If that is "
                f"{self.file_bytes}, restore this file from a copy.",
            )
        if self.files and int(path.name) != self.files[-1].base + self.file_bytes:
            raise CorruptStore(
                path,
                0,
                f"the file before it starts at {self.files[-1].base}",
                "Restore the missing file from a copy, or move the later files away.",
            )

    @property
    def min_offset(self) -> int:
        """First log offset that still exists."""
        return self.files[0].base if self.files else 0

    def file_of(self, offset: int) -> LogFile:
        """Return the file that holds `offset`.

        Raises:
            RecordUnreadable: The offset is outside of the log.
        """
        position = bisect.bisect_right(self.files, offset, key=lambda f: f.base) - 1
        if position < 0 or offset >= self.end:
            raise RecordUnreadable(offset, f"outside of the log ({self.min_offset}..{self.end})")
        return self.files[position]

    def view(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes at `offset`, without a copy. They must be in one file.

        Raises:
            RecordUnreadable: Part of it is outside of the log.
        """
        file = self.file_of(offset)
        pos = offset - file.base
        if size < 0 or pos + size > file.size or offset + size > self.end:
            raise RecordUnreadable(offset, f"{size} bytes from here reach past the log's end")
        return file.data[pos : pos + size]

    def close_file(self) -> None:
        """Write the blank record that ends the current file; the next append opens a new one."""
        file = self.writable_file()
        pos = self.end - file.base
        file.write(pos, BLANK.pack(file.size - pos, MAGIC_BLANK))
        self.end = file.base + file.size

    def truncate(self, end: int, *, files_min: int = 1) -> None:
        """Remove all bytes from `end` on; keep one file, because its name defines the offset."""
        self.sums.withdraw(end)
        super().truncate(end, files_min=files_min)


def numbered_files(directory: Path) -> list[Path]:
    """Return the files of a log in order; remove an empty last file."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = sorted(path for path in directory.iterdir() if not path.is_dir())
    if paths and paths[-1].stat().st_size == 0:
        paths.pop().unlink()
    return paths
