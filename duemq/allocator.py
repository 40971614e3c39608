"""The C library's allocator: large blocks go back to the operating system when they are freed.

glibc raises the size from which it maps a block by itself to that of the largest block freed so
far, at most 32 MiB. After the first large frame, later ones come from the heap, where what lies
behind a freed block keeps it resident: 64 MiB of half-sent frames took 155 MiB. A fixed size ends
that. Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
MAPPED_BYTES: Final = 1 << 20  # a block of at least this size has its own mapping
KEPT_BYTES: Final = 32 << 20  # free at the end of the heap, kept for the next small blocks


def return_large_blocks() -> bool:
    """Fix the thresholds of the allocator; return False where the C library has no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
