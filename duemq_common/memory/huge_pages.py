"""Huge pages for the heap: fewer accesses wait for the translation of their address.

A broker with 42,000 held pulls has 350 MB of small objects, of which each request reads some. With
pages of 4 KiB most of these reads walk the page tables, in a virtual machine those of the host,
too. Linux provides huge pages without a request only where it is set so (`always`), and neither the
allocator of Python nor that of the C library requests them.

A block of 2 MiB becomes one huge page when 31 of 32 of its pages are in use: of an arena of Python,
63 of 64 are. Source: madvise(2), MADV_COLLAPSE, since Linux 6.1
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import mmap
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from duemq_common.clock import Clock

log = logging.getLogger(__name__)
SETTINGS: Final = Path("/sys/kernel/mm/transparent_hugepage")
MADV_COLLAPSE: Final = 25
ROUND_MS: Final = 10_000  # between two searches
PAUSE_MS: Final = 20  # between two blocks; accesses to a block wait while it is copied
BLOCKS_READ: Final = 64  # blocks whose pages are examined together
ENTRY_BYTES: Final = 8  # of /proc/self/pagemap
PRESENT: Final = np.uint64(1 << 63)  # the highest bit of an entry
USED_SHARE_MIN: Final = 31 / 32
NO_MEMORY: Final = frozenset({errno.EBUSY, errno.ENOMEM})


def block_bytes() -> int:
    """Return the size of a huge page; 0 if the system has none or forbids them (`never`)."""
    with suppress(OSError, ValueError):
        if "[never]" not in (SETTINGS / "enabled").read_text():
            return int((SETTINGS / "hpage_pmd_size").read_text())
    return 0


class HeapBlocks:
    """Blocks of this process's memory that can become huge pages.

    Args:
        size: Bytes of a block, see `block_bytes`.
        madvise: The system call, as that of the C library: address, size, advice; sets `errno`.
    Attributes:
        collapsed_count: Number of blocks that became huge pages.
    """

    def __init__(self, size: int, madvise: Callable[[int, int, int], int] | None = None) -> None:
        self._size, self.collapsed_count = size, 0
        self._madvise = madvise or _madvise_of_library()
        self._examined = set[int]()  # collapsed, or refused by the system

    def candidates(self) -> list[int]:
        """Return the addresses of blocks that are in use and were not examined yet."""
        used = [address for span in _anonymous_spans() for address in self._used(*span)]
        self._examined.intersection_update(used)
        return [address for address in used if address not in self._examined]

    def _used(self, start: int, end: int) -> Iterator[int]:
        size = self._size
        first = -(-start // size) * size
        with open("/proc/self/pagemap", "rb", buffering=0) as page_map:
            for begin in range(first, end - size + 1, BLOCKS_READ * size):
                count = min(BLOCKS_READ, (end - begin) // size)
                entries = self._entries(page_map.fileno(), begin, count)
                is_used = (entries >= PRESENT).mean(axis=1) >= USED_SHARE_MIN
                yield from (begin + size * int(index) for index in np.flatnonzero(is_used))

    def _entries(self, fd: int, begin: int, count: int) -> npt.NDArray[np.uint64]:
        """Return the entries of the pages of `count` blocks, (count, pages of a block)."""
        pages = self._size // mmap.PAGESIZE
        read_bytes = count * pages * ENTRY_BYTES
        data = os.pread(fd, read_bytes, begin // mmap.PAGESIZE * ENTRY_BYTES)
        return np.frombuffer(data.ljust(read_bytes, b"\0"), np.uint64).reshape(count, pages)

    def collapse(self, address: int) -> bool:
        """Make a block a huge page, if it can be one; return False without memory for it.

        A block with a page that is in use by the system is a candidate again.
        """
        is_collapsed = self._madvise(address, self._size, MADV_COLLAPSE) == 0
        reason = 0 if is_collapsed else ctypes.get_errno()
        if reason not in NO_MEMORY and reason != errno.EAGAIN:
            self._examined.add(address)
        self.collapsed_count += is_collapsed
        return reason not in NO_MEMORY


def _madvise_of_library() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return cast("Callable[[int, int, int], int]", function)


def _anonymous_spans() -> Iterator[tuple[int, int]]:
    """Yield the ranges of private writable memory that are no file and no stack."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, access, _, _, inode, *name = line.split(maxsplit=5)
            if access == "rw-p" and inode == "0" and not "".join(name).startswith("[stack"):
                start, end = span.split("-")
                yield int(start, 16), int(end, 16)


@asynccontextmanager
async def huge_pages(clock: Clock) -> AsyncIterator[None]:
    """Collapse the blocks of the heap, new ones every `ROUND_MS`, while the context is open."""
    stopped = asyncio.Event()
    size = block_bytes()
    rounds = asyncio.create_task(
        collapse_rounds(HeapBlocks(size), clock, stopped) if size else stopped.wait(),
        name="huge pages",
    )
    try:
        yield
    finally:
        stopped.set()
        await rounds


async def collapse_rounds(blocks: HeapBlocks, clock: Clock, stopped: asyncio.Event) -> None:
    """Collapse the candidates every `ROUND_MS` until `stopped` is set."""
    while not stopped.is_set():
        await clock.wait(stopped, until_ms=clock.now_ms() + ROUND_MS)
        try:
            addresses = [] if stopped.is_set() else await asyncio.to_thread(blocks.candidates)
        except OSError as error:
            log.info("the heap has no huge pages: %s", error)
            return
        for address in addresses:
            if stopped.is_set() or not await asyncio.to_thread(blocks.collapse, address):
                break
            await clock.wait(stopped, until_ms=clock.now_ms() + PAUSE_MS)
