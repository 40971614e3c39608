"""Where a broker's clock was set back, as its log shows it.

    store_ms   10:00:07  10:00:08 | 09:00:09  09:00:09  09:00:10  09:00:11
                                  ^ set back by an hour: what follows goes on from there

A few records with an earlier time among others are no step: the clock went on. Set forward looks
like an hour without messages, and cannot be told from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reconciliation.planning import Finding, Segment
from reconciliation.tables import CLOCK_SET_BACK

Rows = npt.NDArray[Any]
STEP_MS: Final = 10  # of less an audit takes no notice
LOOK_AHEAD: Final = 4  # records that must be behind the clock of before
NEXT_BYTES: Final = 1 << 16  # of the next file, to see its first records
STEPS_MAX: Final = 1_000  # of one segment


@dataclass(frozen=True, slots=True)
class Step:
    """Attributes:
    before_ms, after_ms: when the records before and at the place were stored.
    """

    finding: Finding
    before_ms: int
    after_ms: int


class ClockSteps:
    """Looks at the records of one segment, in order; one use."""

    def __init__(self, segment: Segment) -> None:
        self.steps: list[Step] = []
        self._segment = segment
        self._offsets = np.zeros(0, np.int64)
        self._times = np.zeros(0, np.int64)

    def take(self, rows: Rows) -> None:
        """Look at (n,) SCANNED rows, those that have followers enough."""
        self._add(rows)
        self._look(self._times.size - LOOK_AHEAD)
        self._offsets = self._offsets[-LOOK_AHEAD:]
        self._times = self._times[-LOOK_AHEAD:]

    def take_after(self, rows: Rows) -> None:
        """Look at the last rows of the segment, with what follows behind it."""
        count = self._times.size
        self._add(rows)
        self._look(count)

    def _add(self, rows: Rows) -> None:
        self._offsets = np.concatenate([self._offsets, rows["phys_offset"]])
        self._times = np.concatenate([self._times, rows["store_ms"]])

    def _look(self, count: int) -> None:
        """Compare the first `count` records with their followers."""
        times = self._times
        behind = np.flatnonzero(times[1:] <= times[:-1] - STEP_MS)
        for at in behind[behind < count].tolist():
            after = times[at + 1 : at + 1 + LOOK_AHEAD]
            if (after < times[at]).all() and len(self.steps) < STEPS_MAX:
                self._note(int(self._offsets[at + 1]), int(times[at]), int(times[at + 1]))

    def _note(self, offset: int, before_ms: int, after_ms: int) -> None:
        part = self._segment
        base = part.base if offset < part.base + part.size else part.base + part.size
        path = f"{part.path.rpartition('/')[0]}/{base:020d}"
        text = f"the clock was set back by {before_ms - after_ms} ms, from {before_ms}"
        found = Finding(part.store, path, offset - base, 0, CLOCK_SET_BACK, text, base)
        self.steps.append(Step(found, before_ms, after_ms))
