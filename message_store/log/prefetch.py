"""Prefetch of records that are spread over the log, before the event loop reads them.

A page that is not in the page cache is read when the event loop touches it. Linux reads up to
`read_ahead_kb` around it, up to 8 MiB on some machines: 10 ms for each of the records that were
stored hours ago and are due within one second. Prefetching reads only their pages, all at once.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import numpy.typing as npt

from message_store.log.commit_log import CommitLog

Offsets = npt.NDArray[np.int64]
RECENT_BYTES: Final = 64 << 20  # the end of the log, which is in the page cache
GAP_BYTES: Final = 16_384  # records with smaller gaps between them are read together
RECORD_BYTES_MAX: Final = 1 << 20
RANGES_MAX: Final = 8_192  # of one call; the disk needs up to 0.1 ms for each


def prefetch(log: CommitLog, offsets: Offsets, sizes: Offsets | int) -> int:
    """Begin to read records into the page cache; return the number of ranges. Any thread.

    Offsets and sizes may come from damaged units: what cannot be in the log is skipped.

    Args:
        offsets: (n,) log offsets, most urgent first.
        sizes: (n,) bytes of each record, or of all.
    """
    is_old = (offsets >= 0) & (offsets < log.end - RECENT_BYTES)
    if not is_old.any():
        return 0
    starts = offsets[is_old][:RANGES_MAX]
    lengths = np.broadcast_to(sizes, offsets.shape)[is_old][:RANGES_MAX]
    ends = starts + lengths.clip(1, RECORD_BYTES_MAX)
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    firsts = np.flatnonzero(np.diff(starts, prepend=-GAP_BYTES - 1) > GAP_BYTES)
    lasts = np.append(firsts[1:], starts.size) - 1
    for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
        file = log.find_file(start)
        if file is not None:  # else retention has removed it
            _advise(file.fd, start - file.base, end - start)
    return int(firsts.size)


def _advise(fd: int, position: int, size: int) -> None:
    try:
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)
    except OSError:
        return  # the file was closed meanwhile, or its file system takes no advice
