"""Simulated disk with unreadable sectors: mapped pages raise SIGBUS, and pread fails."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from message_store.kernels.bus_error import MAP_FIXED
from message_store.log import page_guard
from message_store.log.page_guard import PAGE_BYTES, GuardedMap


class BadDisk:
    """Sectors that stay unreadable until they are completely overwritten.

    A mapped page is replaced by a page after the end of an empty file, so that the kernel raises a
    real SIGBUS at an access.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._pages: set[tuple[str, int]] = set()
        self._empty = os.memfd_create("empty")
        self._pread, self._pwritev, self._map = os.pread, os.pwritev, GuardedMap.__init__
        patch.setattr(os, "pread", self.pread)
        patch.setattr(os, "pwritev", self.pwritev)
        patch.setattr(GuardedMap, "__init__", self._mapped())
        self._unlink = os.unlink
        patch.setattr(os, "unlink", self.unlink)
        self._pwrite = os.pwrite
        patch.setattr(os, "pwrite", self.pwrite)
        self._files: set[Path] = set()
        for name in ("read_bytes", "read_text"):
            patch.setattr(Path, name, self._refusing(getattr(Path, name)))

    def break_file(self, path: Path) -> None:
        """Make a small file unreadable: every read of the whole file fails."""
        self._files.add(path.resolve())

    def _refusing(self, read: Any) -> Any:
        def read_or_fail(path: Path, *args: Any, **more: Any) -> Any:
            if path.resolve() in self._files:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(path, *args, **more)

        return read_or_fail

    def break_page(self, path: Path, pos: int, *, passing: bool = False) -> None:
        """Make the page at a file position unreadable, also in existing mappings.

        Args:
            passing: Whether only the mapping fails, once, and pread succeeds.
        """
        assert pos % PAGE_BYTES == 0
        if not passing:
            self._pages.add((str(path.resolve()), pos))
        for mapping in list(page_guard.page_guard().mappings.values()):
            if mapping.path.resolve() == path.resolve():
                self._replace(mapping.first + pos, mapping.protection)

    def break_mappings(self, path: Path) -> None:
        """Make each page of the existing mappings of a file fail, once; pread succeeds."""
        for mapping in list(page_guard.page_guard().mappings.values()):
            if mapping.path.resolve() == path.resolve():
                self._replace(mapping.first, mapping.protection, mapping.size)

    def _replace(self, address: int, protection: int, count: int = PAGE_BYTES) -> None:
        library = ctypes.CDLL(None)
        library.mmap.restype = ctypes.c_void_p
        flags = mmap.MAP_SHARED | MAP_FIXED
        where, size = ctypes.c_void_p(address), ctypes.c_size_t(count)
        mapped = library.mmap(where, size, protection, flags, self._empty, ctypes.c_int64(0))
        assert mapped == address

    def _mapped(self) -> Any:
        def initialize(pages: GuardedMap, path: Path, fd: int, size: int, **more: Any) -> None:
            self._map(pages, path, fd, size, **more)
            for name, pos in self._pages:
                if name == str(path.resolve()):
                    self._replace(pages.mapping.first + pos, pages.mapping.protection)

        return initialize

    def unlink(self, path: str | Path, **more: Any) -> None:
        """Remove a file; a new one of this name is readable."""
        name = os.path.realpath(path)
        self._pages = {page for page in self._pages if page[0] != name}
        self._unlink(path, **more)

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        """Read, or fail if a page is unreadable."""
        if self._pages:
            name = os.readlink(f"/proc/self/fd/{fd}")
            for path, page in self._pages:
                if path == name and page < pos + size and pos < page + PAGE_BYTES:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._pread(fd, size, pos)

    def pwritev(self, fd: int, buffers: Any, pos: int) -> int:
        """Write; a completely overwritten page becomes readable, as disks remap sectors."""
        done = self._pwritev(fd, buffers, pos)
        self._heal(fd, done, pos)
        return done

    def pwrite(self, fd: int, data: Any, pos: int) -> int:
        """Write like `pwritev`."""
        done = self._pwrite(fd, data, pos)
        self._heal(fd, done, pos)
        return done

    def _heal(self, fd: int, done: int, pos: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}") if self._pages else ""
        whole = range(-(-pos // PAGE_BYTES) * PAGE_BYTES, pos + done - PAGE_BYTES + 1, PAGE_BYTES)
        self._pages -= {(name, page) for page in whole}

    @property
    def is_sound(self) -> bool:
        """Return whether all sectors are readable again."""
        return not self._pages
