"""File descriptors of the process, and a reserve of them for the store.

    0 ............. connections and files ............. | files only | limit
                                                        ^ `connections_end`

Too many connections exhaust the descriptors (EMFILE; ENFILE for the whole machine). This is not a
disk fault: the store closes descriptors of its reserve and retries. A socket always gets the
lowest free descriptor, so a connection whose descriptor is `connections_end` or higher is closed.
Descriptors therefore remain for the store, and the reserve is filled again.
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
TRIES_MAX: Final = 4  # another thread may take the descriptors that were closed
HEADROOM_MAX: Final = 1_024  # for files: more than the cache of queue files opens
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

T = TypeVar("T")


def descriptor_limit() -> int:
    """Return the maximum number of open descriptors of this process."""
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
    """Return the number of descriptors out of `limit` that are reserved for files."""
    return min(HEADROOM_MAX, limit // 2)


def connections_end(limit: int) -> int:
    """Return the lowest descriptor that a connection must not use."""
    return limit - headroom(limit) // 2


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether an open failed because too many files and connections are open."""
    return error.errno in OUT_OF_DESCRIPTORS


class DescriptorReserve:
    """Reserve of open descriptors, which are closed when the store needs one.

    They are opened at the first use. Any thread may use the reserve.
    """

    def __init__(self, count: int = RESERVED) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._open: list[int] = []
        self._closed = False
        weakref.finalize(self, _close_all, self._open)

    def __len__(self) -> int:
        return len(self._open)

    def run(self, work: Callable[[], T]) -> T:
        """Call `work`; without a free descriptor, call it again with the reserve closed.

        `work` must be safe to call again after a failure.

        Raises:
            OSError: `work` failed; after EMFILE or ENFILE, also with the reserve closed.
        """
        if len(self._open) < self._count:
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
            self._release()
            try:
                return work()
            except OSError as error:
                if not is_out_of_descriptors(error):
                    raise
            self._fill()  # another thread took the descriptors
        return work()

    def close(self) -> None:
        """Close the reserve."""
        with self._lock:
            self._closed = True
        self._release()

    def _release(self) -> None:
        with self._lock:
            _close_all(self._open)

    def _fill(self) -> None:
        with self._lock:
            try:
                while not self._closed and len(self._open) < self._count:
                    self._open.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # a later call fills it


def _close_all(open_fds: list[int]) -> None:
    """Close descriptors and empty their list."""
    while open_fds:
        os.close(open_fds.pop())
