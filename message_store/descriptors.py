"""File descriptors of the process, and a reserve of them for the store.

    0 ............. connections and files ............. | files only | limit
                                                        ^ `connections_end`

A flood of connections takes descriptors until there are none (EMFILE; ENFILE for the whole
machine). That is no fault of the disk: the store gives descriptors of its reserve back and tries
again. A socket always gets the lowest descriptor that is free: a connection whose descriptor is
`connections_end` or more is closed, so that the store finds room, and the reserve fills up again.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

RESERVED: Final = 16
TRIES_MAX: Final = 4  # another thread may take the descriptors that were given up
HEADROOM_MAX: Final = 1_024  # descriptors for files: more than the cache of queue files holds
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

T = TypeVar("T")


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard limit; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a kernel that allows less than its own hard limit
            return descriptor_limit()
    return descriptor_limit()


def headroom(limit: int) -> int:
    """Return how many of `limit` descriptors connections leave to files."""
    return min(HEADROOM_MAX, limit // 2)


def connections_end(limit: int) -> int:
    """Return the lowest descriptor that no connection keeps."""
    return limit - headroom(limit) // 2


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether an open failed because too many files and connections are open."""
    return error.errno in OUT_OF_DESCRIPTORS


class DescriptorReserve:
    """Descriptors that the store holds open for nothing, and gives up when it needs one.

    They are opened at the first use, and closed with the reserve at the latest. Any thread may use
    it.
    """

    def __init__(self, count: int = RESERVED) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._closed = False
        weakref.finalize(self, _close_all, self._held)

    def __len__(self) -> int:
        return len(self._held)

    def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; if it lacks a descriptor, call it again without the reserve.

        `work` must be such that calling it again after a failure does no harm.

        Raises:
            OSError: Any failure of `work`; of EMFILE and ENFILE the last.
        """
        if len(self._held) < self._count:
            self._fill()
        try:
            return work()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
        try:
            return self._run_on_reserve(work)
        finally:
            self._fill()

    def _run_on_reserve(self, work: Callable[[], T]) -> T:
        for _ in range(TRIES_MAX):
            self._give_up()
            try:
                return work()
            except OSError as error:
                if not is_out_of_descriptors(error):
                    raise
            self._fill()  # another thread was faster
        return work()

    def close(self) -> None:
        """Close what is held."""
        with self._lock:
            self._closed = True
        self._give_up()

    def _give_up(self) -> None:
        with self._lock:
            _close_all(self._held)

    def _fill(self) -> None:
        with self._lock:
            try:
                while not self._closed and len(self._held) < self._count:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # filled up by a later call


def _close_all(held: list[int]) -> None:
    """Close descriptors and forget them."""
    while held:
        os.close(held.pop())
