"""Guarded mappings: an unreadable page of a mapped file reads as zeros and is recorded.

Access to a page of a mapped file that cannot be loaded ends the process with SIGBUS: the disk
cannot read the sector (EIO), a full tmpfs has no page for a hole, or another process truncated the
file. Kernels read the log through mappings, without a check before each access. Instead a handler
(`kernels.bus_error`) replaces the page with zeros; the interrupted code continues and finds no
record there. `update` then reads the page from the file by pread:

    pread fails, or the file ends before it   the page stays zero and is listed as unreadable
    pread succeeds                            a hole, or a passing error: the file is mapped again

Readers that must not treat zeros as data compare `replaced` before and after, or check
`unreadable`. Writes into a replaced page are lost: the page stays listed, and the owner of a
writable mapping drops the file (`IndexFile`) or treats the record as damaged.

There is one table and one handler per process, because signal handlers are per process.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
import time
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from message_store.kernels import bus_error
from message_store.ranges import Range, minus, plus

PAGE_BYTES = bus_error.PAGE_BYTES
REPLACED = bus_error.REPLACED
CACHED_TOGETHER_BYTES = 4 << 20
PAGES_MAX = 10_000
WAIT_S, WAITS_MAX = 0.0001, 10_000  # for the handler of another thread
CUT = "the file ends before it"
NOT_WRITTEN = "it could not be written"
NOT_MAPPED = "it cannot be mapped again"
MAP_FAILED = ctypes.c_void_p(bus_error.MAP_FAILED).value


class UnreadablePage(NamedTuple):
    """Unreadable page."""

    path: Path
    pos: int
    reason: str


class Mapping:
    """One guarded mapping.

    Args:
        fd: Open until `forget_file`; afterwards the file is opened by its path.
    Attributes:
        unreadable: File positions of pages known to be unreadable, ascending.
        reason: Reason why the last of them cannot be read.
        unmapped: Whether the file is unmapped.
    """

    def __init__(self, path: Path, fd: int, first: int, size: int, protection: int) -> None:
        self.path, self.fd = path, fd
        self.first, self.size, self.protection = first, size, protection
        self.unreadable: list[Range] = []
        self.reason = ""
        self.unmapped = False

    def classify(self, pos: int) -> UnreadablePage | None:
        """Return a replaced page as unreadable, or map the file there again."""
        try:
            fd = self.fd if self.fd >= 0 else os.open(self.path, os.O_RDONLY)
            try:
                reason = "" if self._read(fd, pos) else CUT
                reason = reason or self._map_again(fd, pos)
            finally:
                if fd != self.fd:
                    os.close(fd)
        except OSError as error:
            reason = error.strerror or str(error)
        if not reason:
            return None
        self.reason = reason
        self.unreadable = plus(self.unreadable, [(pos, pos + PAGE_BYTES)])
        return UnreadablePage(self.path, pos, reason)

    def _read(self, fd: int, pos: int) -> bytes:
        """Return a page of the file.

        The page cache reads many pages at once, and one bad sector makes all of them fail, so the
        page is read alone before it counts as unreadable.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return os.pread(fd, PAGE_BYTES, pos)
        except OSError:
            alone = os.open(self.path, os.O_RDONLY)
            try:
                low = max(pos - CACHED_TOGETHER_BYTES, 0)
                os.posix_fadvise(alone, low, 2 * CACHED_TOGETHER_BYTES, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(alone, 0, 0, os.POSIX_FADV_RANDOM)
                return os.pread(alone, PAGE_BYTES, pos)
            finally:
                os.close(alone)

    def _map_again(self, fd: int, pos: int) -> str:
        """Map the file's page again in place of zeros; return the reason if that fails."""
        if self.unmapped:
            return ""
        if self.protection & mmap.PROT_WRITE and any(
            ctypes.string_at(self.first + pos, min(PAGE_BYTES, self.size - pos))
        ):
            return NOT_WRITTEN
        library = ctypes.CDLL(None)
        library.mmap.restype = ctypes.c_void_p
        address = library.mmap(
            ctypes.c_void_p(self.first + pos),
            ctypes.c_size_t(PAGE_BYTES),
            self.protection,
            mmap.MAP_SHARED | bus_error.MAP_FIXED,
            fd,
            ctypes.c_int64(pos),
        )
        return NOT_MAPPED if address == MAP_FAILED else ""


class PageGuard:
    """The guarded mappings of this process, and the pages that the handler replaced.

    Attributes:
        words: The table that the handler reads and writes; see `kernels.bus_error`.
        replaced: (1,): Number of pages replaced so far.
        pages: Unreadable pages, in the order of their discovery; at most PAGES_MAX.
    """

    def __init__(self) -> None:
        self._handler = bus_error.Installed()
        self.words: memoryview[int] = self._handler.table.data
        self.replaced = self.words[REPLACED : REPLACED + 1]
        self.mappings: dict[int, Mapping] = {}
        self._free: list[int] = []
        self._lock = threading.RLock()  # a finalizer may run while it is held
        self._seen = 0
        self.pages: list[UnreadablePage] = []

    def add(self, mapping: Mapping) -> int:
        """Guard a mapping; return its row, for `remove`.

        Raises:
            OSError: There are too many mappings.
        """
        with self._lock:
            in_use = int(self.words[bus_error.IN_USE])
            row = self._free.pop() if self._free else in_use
            if row == bus_error.ROWS_MAX:
                raise OSError(f"more than {bus_error.ROWS_MAX} files are mapped")
            position = bus_error.ROWS + row * bus_error.ROW_WORDS
            self.words[position + 2] = mapping.protection
            self.words[position + 1] = mapping.first + mapping.size
            self.words[position] = mapping.first
            self.words[bus_error.IN_USE] = max(in_use, row + 1)
            self.mappings[row] = mapping
            return row

    def remove(self, row: int) -> None:
        """Stop guarding a mapping that is being unmapped."""
        with self._lock:
            self.mappings[row].unmapped = True
            self.update()
            position = bus_error.ROWS + row * bus_error.ROW_WORDS
            self.words[position] = self.words[position + 1] = 0
            del self.mappings[row]
            self._free.append(row)

    def update(self) -> int:
        """Classify the pages replaced since the last call; return the total of classified pages."""
        with self._lock:
            count = self.replaced[0]
            self._seen = max(self._seen, count - bus_error.RING_SIZE)
            while self._seen < count:
                position = bus_error.RING + self._seen % bus_error.RING_SIZE
                page = self._recorded(position)
                if not page:
                    break
                self.words[position] = 0
                self._seen += 1
                self._classify(page)
            return self._seen

    def _recorded(self, position: int) -> int:
        """Return a replaced page, which another thread may be about to record; 0: it does not.

        While it is awaited, the pages after it are zero, too, and a reader takes zeros for missing
        records after a few readings.
        """
        for _ in range(WAITS_MAX):
            if page := int(self.words[position]):
                return page
            time.sleep(WAIT_S)
        return 0

    def _classify(self, page: int) -> None:
        for mapping in reversed(list(self.mappings.values())):  # the newest owns the address
            if mapping.first <= page < mapping.first + mapping.size:
                unreadable_page = mapping.classify(page - mapping.first)
                if unreadable_page is not None and len(self.pages) < PAGES_MAX:
                    self.pages.append(unreadable_page)
                return


@functools.cache
def page_guard() -> PageGuard:
    """Return the guard of this process; the first call installs the handler."""
    return PageGuard()


class GuardedMap:
    """A shared mapping of a file.

    Args:
        fd: Descriptor of the file; the caller keeps it open until `forget_file`.
    Attributes:
        data: (size,) u1; unreadable pages are zero.
        replaced: (1,): Number of replaced pages of all mappings so far; 0: all data come from the
            files.

    Raises:
        OSError: The file cannot be mapped.
    """

    def __init__(self, path: Path, fd: int, size: int, *, writable: bool = False) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.map = mmap.mmap(fd, size, prot=protection, flags=mmap.MAP_SHARED)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        self.mapping = Mapping(path, fd, int(self.data.ctypes.data), size, protection)
        self._guard = page_guard()
        self.replaced = self._guard.replaced
        row = self._guard.add(self.mapping)
        self._unguard = weakref.finalize(self.map, self._guard.remove, row)
        self._unguard.atexit = False

    def read_at_random(self) -> None:
        """Let a page fault read one page, not the `read_ahead_kb` around it as well."""
        self.map.madvise(mmap.MADV_RANDOM)

    @property
    def unreadable(self) -> list[Range]:
        """File positions of unreadable pages, ascending, as of the last `update`."""
        return self.mapping.unreadable

    @property
    def reason(self) -> str:
        """Reason why the last of them is unreadable."""
        return self.mapping.reason

    def update(self) -> int:
        """Update `unreadable`; return the value of `replaced` up to which it is complete."""
        return self._guard.update()

    def written(self, pos: int, size: int) -> None:
        """Map pages again that were unreadable and were written since.

        Args:
            pos: file position of the bytes that were written.
            size: Number of bytes.
        """
        self.update()
        mapping = self.mapping
        low, high = pos - pos % PAGE_BYTES, pos + size
        for first, end in list(mapping.unreadable):
            for page in range(max(first, low), min(end, high), PAGE_BYTES):
                mapping.unreadable = minus(mapping.unreadable, [(page, page + PAGE_BYTES)])
                mapping.classify(page)

    def close(self) -> None:
        """Unmap the file now; there must be no other view of it."""
        self.data = np.empty(0, np.uint8)
        self._unguard()  # before the address belongs to another mapping
        self.map.close()

    def forget_file(self) -> None:
        """Record that the descriptor is closed; the mapping exists as long as a view of it."""
        self.mapping.fd = -1
