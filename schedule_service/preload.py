"""Preload of the kernels that deliver level messages, in a thread after the start.

Machine code that was compiled before is loaded at its first use; without this the first message
that is due would wait some tens of ms for it.
"""

from __future__ import annotations

import numpy as np

from delivery.kernels.lateness import count_late
from delivery.lateness import BOUNDS_MS
from message_store import layout
from message_store.kernels import encode, scan
from message_store.kernels.kept import load_kept
from message_store.kernels.kernel import entry
from message_store.queues.topic_table import TopicTable
from schedule_service import kernels

NO_BYTES = np.zeros(1, np.uint8)
NO_BYTES.flags.writeable = False  # as a mapped file


def preload_kernels() -> None:
    """Use every kernel of a delivery, with the types of the real thing."""
    load_kept(kernels.redirect, kernels.track)  # of a send
    units, rows = np.zeros(1, layout.UNIT), np.zeros(1, layout.PUT)
    scan.read_units(NO_BYTES[:0], units[:0])
    due_ms = np.zeros(1, np.int64)
    kernels.due_times(units, 0, due_ms)
    kernels.count_due(units, due_ms, 0, 0)
    source, scratch = kernels.Source(0, 0, 0, 0), np.zeros(1, layout.SCANNED)
    arrays = TopicTable().arrays
    kernels.read_due(NO_BYTES, (0, 0), units, arrays, source, scratch, rows)
    kernels.leading_stored(rows, 0)
    entry(encode.prepare, rows, 0, NO_BYTES, arrays, 0, 0)
    entry(encode.encode, rows, (0, 0), NO_BYTES, arrays, np.empty(1, np.uint8), 0, 0, 0)
    count_late(due_ms[:0], due_ms[:0], BOUNDS_MS, due_ms)
