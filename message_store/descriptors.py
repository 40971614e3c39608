"""File descriptors of the process.

    0 ............. connections and files ............. | files only | limit
                                                        ^ `connections_end`

Too many connections exhaust the descriptors (EMFILE; ENFILE for the whole machine). A socket always
gets the lowest free descriptor, so a connection whose descriptor is `connections_end` or higher is
closed: descriptors remain for files. A missing descriptor is not a disk fault, and is tried again.
"""

from __future__ import annotations

import errno
import resource
from typing import Final

HEADROOM_MIN: Final = 1_024  # for files, unless that is more than half of the limit
HEADROOM_MAX: Final = 16_384
QUEUE_FILES_MIN: Final = 768
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


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
    return min(max(HEADROOM_MIN, min(limit // 4, HEADROOM_MAX)), limit // 2)


def queue_files_max(limit: int) -> int:
    """Return the number of queue files that may stay open with `limit` descriptors."""
    return max(QUEUE_FILES_MIN, headroom(limit) * 3 // 4)


def connections_end(limit: int) -> int:
    """Return the lowest descriptor that a connection must not use."""
    return limit - headroom(limit) // 2


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether an open failed because too many files and connections are open."""
    return error.errno in OUT_OF_DESCRIPTORS
