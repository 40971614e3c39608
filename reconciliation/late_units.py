"""Timers that were taken in when their slot had gone by: they wait in the slot of then.

    own slot     read time of the checkpoint
    ----|--------------|---------------------->
        due            ^ the unit's slot: it waits, although its own slot was delivered

Such a unit was written when the timers had come about as far as the checkpoint says, so the timer
log is read backward from its end until units are older than that.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from message_store.layout import native_columns
from reconciliation.files import Entry, Root
from reconciliation.planning import row_of_files
from timer_store.layout import MAGIC_DELETE, MAGIC_MAX, TIMER_UNIT, UNIT_BYTES

Offsets = npt.NDArray[np.int64]
BLOCK_UNITS: Final = 65_536
LEAD_MS: Final = 60_000  # the write time is rounded, and clocks are set back a little
NOTHING: Final = np.empty(0, np.int64)


def find_late_units(root: Root, read_ms: int) -> Offsets:
    """Return the log offsets of timers whose time is before a slot and that wait in it or later.

    Args:
        read_ms: the first slot that was not delivered completely, of the checkpoint.
    Returns:
        (n,) i8, sorted, each once.
    Raises:
        OSError: The timer log cannot be read.
    """
    found = []
    files, _ = row_of_files(root.url, root.files("timerlog"))
    for entry in reversed(files):
        for end in range(entry.size // UNIT_BYTES, 0, -BLOCK_UNITS):
            rows = _units(root, entry, max(end - BLOCK_UNITS, 0), end)
            slot_ms = rows["write_ms"] + rows["delay_ms"]
            waits = (slot_ms >= read_ms) & (rows["due_ms"] <= read_ms) & (rows["due_ms"] > 0)
            found.append(rows["phys_offset"][waits])
            if rows.size and int(rows["write_ms"].max()) < read_ms - LEAD_MS:
                return np.unique(np.concatenate(found))
    return np.unique(np.concatenate(found)) if found else NOTHING


def _units(root: Root, entry: Entry, first: int, end: int) -> npt.NDArray[np.void]:
    """Return those of a piece of a file that are units of timers, not of markers."""
    data = root.read(entry.path, first * UNIT_BYTES, end * UNIT_BYTES)
    rows = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], TIMER_UNIT)
    rows = native_columns(rows[(rows["size"] == UNIT_BYTES) & (rows["magic"] <= MAGIC_MAX)])
    return np.asarray(rows[(rows["magic"] > 0) & (rows["magic"] & MAGIC_DELETE == 0)])
