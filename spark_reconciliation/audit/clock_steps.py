"""Clock steps: log offsets at which the broker's clock was set back.

    store_ms   10:00:07  10:00:08 | 09:00:09  09:00:09  09:00:10  09:00:11
                                  ^ set back by an hour: later records continue from there

A few records with an earlier time among others are not a step. A clock that is set forward cannot
be distinguished from an hour without messages.

A step is corroborated if several records before it have the later clock, the records after it have
the earlier one, and not all of these are deliveries. A change of the times of a few records does
not meet these conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_reconciliation.arrays import Rows
from spark_reconciliation.scan.planning import Finding, ScanSegment
from spark_reconciliation.scan.tables import CLOCK_SET_BACK

STEP_MS: Final = 10  # smaller steps are ignored
LOOK_AHEAD: Final = 4  # records after a step that must have times before the step
WITNESSES: Final = 16  # records after a step that must have the earlier clock
BEFORE: Final = 3  # records before a step that must have the later clock
NEXT_BYTES: Final = 1 << 16  # bytes of the next file that contain its first records
STEPS_MAX: Final = 1_000  # maximum steps of one segment


@dataclass(frozen=True, slots=True)
class ClockStep:
    """Attributes:
    before_ms, after_ms: Store times of the records before and after the step.
    corroborated: Whether many records show the step, not only deliveries.
    """

    finding: Finding
    before_ms: int
    after_ms: int
    corroborated: bool = False


class ClockSteps:
    """Search for clock steps in the records of one segment, in order; one use."""

    def __init__(self, segment: ScanSegment) -> None:
        self.steps: list[ClockStep] = []
        self._segment = segment
        self._offsets = np.zeros(0, np.int64)
        self._times = np.zeros(0, np.int64)
        self._puts = np.zeros(0, np.bool_)  # records without an origin
        self._compared = 0  # number of rows that were compared with later records

    def take(self, rows: Rows) -> None:
        """Check the (n,) SCANNED rows that have enough records after them."""
        self._add(rows)
        self._compare_until(self._times.size - WITNESSES)
        kept = max(self._compared - BEFORE, 0)
        self._compared -= kept
        self._offsets, self._times = self._offsets[kept:], self._times[kept:]
        self._puts = self._puts[kept:]

    def take_after(self, rows: Rows) -> None:
        """Check the last rows of the segment, with the records after it."""
        count = self._times.size
        self._add(rows)
        self._compare_until(count)

    def _add(self, rows: Rows) -> None:
        self._offsets = np.concatenate([self._offsets, rows["phys_offset"]])
        self._times = np.concatenate([self._times, rows["store_ms"]])
        self._puts = np.concatenate([self._puts, rows["prepared_offset"] >= 0])

    def _compare_until(self, count: int) -> None:
        """Compare the records up to `count` with the records after them."""
        times, first = self._times, self._compared
        self._compared = max(count, first)
        behind = first + np.flatnonzero(times[first + 1 :] <= times[first:-1] - STEP_MS)
        for index in behind[behind < count].tolist():
            after = times[index + 1 : index + 1 + LOOK_AHEAD]
            if (after < times[index]).all() and len(self.steps) < STEPS_MAX:
                self._add_step(index)

    def _is_corroborated(self, position: int) -> bool:
        """Return whether records other than the two at a step show the same clocks."""
        times = self._times
        before = times[max(position + 1 - BEFORE, 0) : position + 1]
        after = times[position + 1 : position + 1 + WITNESSES]
        return bool(
            before.size == BEFORE
            and (before > times[position + 1]).all()
            and after.size >= LOOK_AHEAD
            and (after < times[position]).all()
            and self._puts[position + 1 : position + 1 + WITNESSES].any()
        )

    def _add_step(self, position: int) -> None:
        offset = int(self._offsets[position + 1])
        before_ms, after_ms = int(self._times[position]), int(self._times[position + 1])
        part = self._segment
        base = part.base + (offset - part.base) // part.size * part.size
        path = f"{part.path.rpartition('/')[0]}/{base:020d}"
        shown = self._is_corroborated(position)
        text = f"the clock was set back by {before_ms - after_ms} ms, from {before_ms}"
        text += "" if shown else "; too few records show it, so it explains no finding"
        finding = Finding(part.store, path, offset - base, 0, CLOCK_SET_BACK, text, base)
        self.steps.append(ClockStep(finding, before_ms, after_ms, shown))
