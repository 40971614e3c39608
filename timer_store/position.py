"""Position of the timer store in time, in the timer queue and in the ownership journal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timer_store.layout import Mask, Offsets, Rows

Key = tuple[int, int]  # (due_ms, phys_offset): the order of delivery


@dataclass(slots=True)
class Position:
    """Cursors of a timer store; `read_ms` and `staged_ms` are start times of slots.

    Attributes:
        read_ms: The first slot that is not completely delivered.
        staged_ms: Slots before it are loaded into the near stage; at least `read_ms`.
        part: The slot at `staged_ms` is loaded up to this timer.
        rolled_ms: Slots before it may have been rolled by the last run.
        queue_offset: The next unit of the timer queue to enqueue.
        handover_offset: The next transfer of the ownership journal to enqueue.
        handover_unit: Units of that transfer before this queue offset of its level are enqueued.
    """

    read_ms: int
    staged_ms: int
    queue_offset: int = 0
    rolled_ms: int = -1
    part: Key | None = None
    handover_offset: int = 0
    handover_unit: int = 0

    @property
    def loaded_ms(self) -> int:
        """Time up to which slots are loaded, or were loaded by the last run."""
        return max(self.staged_ms, self.rolled_ms)

    def is_loaded(self, rows: Rows, slot_ms: Offsets, precision_ms: int) -> Mask:
        """Return which timers are loaded into the near stage.

        Args:
            rows: (n,) with `due_ms` and `phys_offset`.
            slot_ms: (n,) a time within the slot of each row.
        """
        loaded = slot_ms < self.staged_ms
        if self.part is not None:
            in_part = slot_ms < self.staged_ms + precision_ms
            loaded |= in_part & ~is_after(rows, self.part)
        return np.asarray(loaded)


def is_after(rows: Rows, key: Key) -> Mask:
    """Return which rows, (n,) with `due_ms` and `phys_offset`, are delivered after a timer."""
    due_ms, phys_offset = key
    later = rows["due_ms"] > due_ms
    return np.asarray(later | ((rows["due_ms"] == due_ms) & (rows["phys_offset"] > phys_offset)))
