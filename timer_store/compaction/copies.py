"""Copies of pending timers: new records in the timer queue replace old ones.

    timerRollMode=message   on the way of a long timer, as an Apache broker does it
    compaction              out of log files that are to go

The copy names the old record as its origin, so one append does both: it settles the old timer and
holds the new one. It keeps all that the client said, and the exact time.
"""

from __future__ import annotations

import numpy as np

from timer_store import layout
from timer_store.layout import Mask, Rows
from timer_store.pending.decision_records import DecidingRecords
from timer_store.pending.records import RecordReader


class TimerCopies:
    """Copies waiting timers of one store. Belongs to the event loop's thread."""

    def __init__(self, records: RecordReader, deciding: DecidingRecords) -> None:
        self._records, self._deciding = records, deciding

    def put(self, rows: Rows, now_ms: int) -> tuple[Rows, Mask]:
        """Append a copy of each timer; the caller settles those that have one.

        Args:
            rows: (n,) `layout.STAGED`, each of another record.

        Returns:
            Their records, (n,) `layout.TIMED`, and which have a copy now. The rest is damaged or
            too long for one more property, or the store refuses writes.
        """
        timed = self._records.read(np.ascontiguousarray(rows["phys_offset"]))
        taken = timed["kind"] == layout.TIMED_PLAIN
        taken &= timed["record_size"] == rows["record_size"]
        whole = np.flatnonzero(taken)
        due_ms = np.ascontiguousarray(rows["due_ms"][whole])
        refused = self._deciding.put_again(timed[whole], due_ms, now_ms)
        taken[whole[list(refused)]] = False
        return timed, taken
