"""Scan of the records at some log offsets of one file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from message_store.layout import SCANNED
from spark_reconciliation.arrays import Numbers, Rows
from spark_reconciliation.kernels.pointed import read_rows
from spark_reconciliation.scan.planning import ScanSegment
from spark_reconciliation.scan.record_scan import CHUNK_RECORDS, RecordScan


class PointedScan(RecordScan):
    """Reader of records at given log offsets; for one use.

    Args:
        segment: A whole file of the log.
        offsets: (n,) log offsets in it, ascending; those without a record have no rows.
    """

    def __init__(self, segment: ScanSegment, offsets: Numbers) -> None:
        super().__init__(segment)
        self._offsets = offsets

    def chunks(self) -> Iterator[Rows]:
        """Yield (n,) SCANNED rows, each valid until the next; after `open`."""
        inside = self._offsets[self._offsets < self.base + self.data.size]
        for low in range(0, inside.size, CHUNK_RECORDS):
            part = inside[low : low + CHUNK_RECORDS]
            out = np.zeros(part.size, SCANNED)
            count = read_rows(self.data, self.base, part, self.topics.arrays, out)
            if count:
                yield self.named(out[:count])
