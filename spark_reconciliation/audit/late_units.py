"""Timers whose TIMER_OUT_MS is before the read time and whose slot is later.

    due slot     read time of the checkpoint
    ----|--------------|---------------------->
        delivered      ^ slot of the unit: the timer is still pending

A timer that is enqueued after its due slot was delivered is put into the slot that is read then. If
the clock advances between the put hook and the append, TIMER_OUT_MS can also be one slot before
that of the exact due time: Apache puts a message that is due in the first millisecond of a slot
into the previous slot.

Such a unit was written when the timers had nearly reached the slot of the checkpoint. Therefore the
search reads the timer log backward from its end, until units are older than that slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from spark_reconciliation.arrays import Numbers, Rows
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import files_of_row
from timer_store.layout import MAGIC_DELETE, MAGIC_MAX, TIMER_UNIT, UNIT_BYTES

BLOCK_UNITS: Final = 65_536
LEAD_MS: Final = 60_000  # tolerance: the write time is rounded, and clocks step back a little
OUT_MS_LAG: Final = 2_000  # TIMER_OUT_MS is less than two slots before the exact due time
NOTHING: Final = np.empty(0, np.int64)


def find_late_units(root: Root, read_ms: int) -> Numbers:
    """Return the log offsets of timers in slots from `read_ms` on that may be due before it.

    Args:
        read_ms: Start of the first slot that is not completely delivered, by the checkpoint.
    Returns:
        (n,) i8, sorted, without repetitions.
    Raises:
        OSError: The timer log cannot be read.
    """
    offsets = [NOTHING]
    for _, rows in _backward(root):
        late = (rows["due_ms"] <= read_ms + OUT_MS_LAG) & (rows["due_ms"] > 0)
        near = rows[late]
        offsets.append(near["phys_offset"][_slots_ms(near) >= read_ms].astype(np.int64))
        if rows.size and int(rows["write_ms"].max()) < read_ms - LEAD_MS:
            break
    return np.unique(np.concatenate(offsets))


def any_pending(root: Root, read_ms: int, end: int) -> bool:
    """Return whether a unit before a position of the timer log is pending from slot `read_ms` on.

    Raises:
        OSError: The timer log cannot be read.
    """
    for pos, rows in _backward(root):
        pending = (pos < end) & (rows["due_ms"] >= 0) & (_slots_ms(rows) >= read_ms)
        if pending.any():
            return True
    return False


def _slots_ms(rows: Rows) -> Numbers:
    return np.asarray(rows["write_ms"] + rows["delay_ms"])


def _backward(root: Root) -> Iterator[tuple[Numbers, Rows]]:
    """Yield positions and units of timers as in the file, without markers, in pieces from the end
    backward.
    """
    for entry in reversed(files_of_row(root, "timerlog")):
        for end in range(entry.size // UNIT_BYTES, 0, -BLOCK_UNITS):
            first = max(end - BLOCK_UNITS, 0)
            data = root.read(entry.path, first * UNIT_BYTES, end * UNIT_BYTES)
            rows = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], TIMER_UNIT)
            sound = (rows["size"] == UNIT_BYTES) & (rows["magic"] > 0)
            sound &= (rows["magic"] <= MAGIC_MAX) & (rows["magic"] & MAGIC_DELETE == 0)
            here = np.flatnonzero(sound)
            pos = int(entry.name) + (first + here) * UNIT_BYTES
            yield pos, rows if sound.all() else rows[sound]
