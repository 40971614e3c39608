"""Large arrays of a test process take memory only as they are used.

glibc allocates large blocks as mappings, whose pages are zeros until they are used, but raises the
threshold to the size of the largest freed block, up to 32 MiB. Then it writes the zeros of an array
itself: each store that is opened in a process that has closed another one takes 4 MB, each broker
10 MB, of which a test uses little. Source: mallopt(3)
"""

from __future__ import annotations

import ctypes
from typing import Final

from duemq_common.memory.allocator import (
    KEPT_BYTES,
    M_ARENA_MAX,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
)

MAPPED_BYTES: Final = 1 << 17  # the default, which is fixed by setting it


def map_large_arrays() -> None:
    """Fix the threshold, and keep the free memory of the heap, as a broker does."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in (
            (M_MMAP_THRESHOLD, MAPPED_BYTES),
            (M_TRIM_THRESHOLD, KEPT_BYTES),
            (M_ARENA_MAX, 1),
        ):
            mallopt(name, value)
