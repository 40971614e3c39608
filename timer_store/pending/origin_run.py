"""Run of records that name origins, at the end of the log.

A move and a fire append two records about each timer: the copy or the delivery, and later in the
same turn a marker for Apache's broker. The log of a replica may end between them, so its checkpoint
may include the first record, and the second one is in the log after it. A start from that
checkpoint must read both, because it would otherwise subtract the timer twice.

    log   | message | copy of a | copy of b | marker of a |        marker of b ...
                    ^ start: all records after it name origins    ^ end of the log: checkpoint
"""

from __future__ import annotations

from typing import Final

import numpy as np

from timer_store.layout import Rows

RUN_BYTES_MAX: Final = 16 << 20  # maximum size of a run that a start reads again


class OriginRun:
    """Start of the records at the end of the scanned log that all name origins."""

    def __init__(self) -> None:
        self._start = self._end = 0

    def begin(self, start: int, end: int) -> None:
        """Begin a scan of the log from `start` to its end."""
        self._start, self._end = start, end

    def add(self, rows: Rows) -> None:
        """Add the next (n,) `SCANNED` rows of the scan, n > 0."""
        ends = rows["phys_offset"] + rows["record_size"]
        others = np.flatnonzero(rows["prepared_offset"] >= 0)
        if others.size:
            self._start = int(ends[others[-1]])

    def scan_from(self, log_end: int) -> int:
        """Return the start of the run, or `log_end` if the log continues after it.

        Also return `log_end` if the run exceeds the limit, as no decisions of one turn do.
        """
        is_last = self._end == log_end and log_end - self._start <= RUN_BYTES_MAX
        return self._start if is_last else log_end
