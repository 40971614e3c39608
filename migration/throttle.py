"""How much a migration may do: lateness first, rate second. Pure; moments are handed in.

Lateness. After each interval the throttle is told the p99 of the deliveries of that interval. Those
of intervals without a step say how late deliveries are by themselves; while something is delivered
there is one every LISTEN_EVERY_MS, for LISTEN_MS no step is taken. The target is what an operator
set, or less: `factor` times what deliveries are late by themselves. Above the target it gives way
at once: the batch is halved, far above it (SEVERE times) it falls to the smallest; with the
smallest batch it doubles the pause between two steps. At most three quarters of the target it comes
back: the pause shrinks by a quarter; then the batch doubles until half of where it was late the
last time, and grows by an eighth from there. As lateness follows the batch, growing by an eighth
from three quarters does not miss the target. Between these two it stays. It never stops altogether:
after the longest pause the smallest batch goes on, for what is late for another reason must not
hold it for ever.

While something is delivered a step takes at most BATCH_BUSY: about a ms, which few notice; and at
least PAUSE_BUSY_MS pass behind it: who never sleeps comes last when processors are handed out.
Where nothing is, nobody waits: the batch grows by IDLE_GROWTH at a time, up to the largest.

Rate. A bucket that holds a quarter of a second of the rate, filled by the clock.

    next(now) --> Turn(units_max, wait until)      a step takes at most units_max, not before then
    pace(now) --> the same for work that moves nothing (counting): the rate is not asked
    took(units, now)                               after the step
    observe(p99)                                   after each interval
    change(limits)                                 whenever an operator says so
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from message_store.errors import UsageError
from message_store.histogram import BOUNDS_MS

BATCH_MIN: Final = 256
BATCH_FIRST: Final = 1_024
BATCH_BUSY: Final = 2_048
BATCH_MAX: Final = 32_768
IDLE_GROWTH: Final = 8
PAUSE_BUSY_MS: Final = 2
PAUSE_FIRST_MS: Final = 5
PAUSE_MS_MAX: Final = 100
SEVERE: Final = 4
CALM_SHARE: Final = 0.75
GROWTH_PART: Final = 8
BURST_MS: Final = 250
LISTEN_EVERY_MS: Final = 2_500
LISTEN_MS: Final = 250  # an interval of observation fits in, whenever it begins
LISTEN_STEP_MS: Final = 50
USUAL_INTERVALS: Final = 32
USUAL_MS_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an operator asks for; both may be changed while it runs.

    Attributes:
        target_p99_ms: lateness of deliveries that is still good; 0: do not look at it.
        factor: how many times later than without a migration is still good; 0: do not ask.
        rate_per_s: messages a second, 0: as fast as lateness allows.
    """

    target_p99_ms: int = 20
    factor: int = 2
    rate_per_s: int = 0

    def __post_init__(self) -> None:
        for name in ("target_p99_ms", "factor", "rate_per_s"):
            value = getattr(self, name)
            if value < 0:
                raise UsageError(f"{name}={value}: it must be 0 or more")


@dataclass(frozen=True, slots=True)
class Turn:
    """What is allowed next.

    Attributes:
        units: at most so many in one step; 0: nothing yet, ask again at `at_ms`.
        at_ms: not before this moment.
    """

    units: int
    at_ms: int


class Throttle:
    """Paces one migration.

    Args:
        batch_max: the largest step.
    """

    def __init__(self, limits: Limits, *, now_ms: int, batch_max: int = BATCH_MAX) -> None:
        assert batch_max >= 1
        self.limits = limits
        self.batch_min, self.batch_max = min(BATCH_MIN, batch_max), batch_max
        self.batch_busy = min(BATCH_BUSY, batch_max)
        self.batch = min(BATCH_FIRST, batch_max) if limits.target_p99_ms else batch_max
        self.pause_ms = 0
        self._late_batch = 2 * batch_max  # where it was late the last time
        self._busy = False  # something was delivered when it was last observed
        self._usual: deque[int] = deque(maxlen=USUAL_INTERVALS)  # p99s without a step
        self._worked, self._listen_ms = False, now_ms + LISTEN_EVERY_MS
        self._step_end_ms = now_ms
        self._allowance, self._filled_ms = 0.0, now_ms

    @property
    def held_back(self) -> bool:
        """Whether lateness keeps it below its largest step."""
        return self.pause_ms > 0 or self.batch < self.batch_busy

    @property
    def usual_ms(self) -> float | None:
        """The p99 of deliveries while nothing is migrated, the median of late; None: not known."""
        return median(self._usual) if self._usual else None

    @property
    def target_ms(self) -> int:
        """The p99 that is still good now; 0: any is."""
        wanted, factor, usual = self.limits.target_p99_ms, self.limits.factor, self.usual_ms
        if not factor or usual is None:
            return wanted
        return min(wanted, round(factor * max(usual, USUAL_MS_MIN)))

    def change(self, limits: Limits) -> None:
        """Take new limits; they hold from the next turn on."""
        self.limits = limits
        self._allowance = min(self._allowance, self._burst)
        if limits.target_p99_ms == 0:
            self.batch, self.pause_ms, self._busy = self.batch_max, 0, False
            self._late_batch = 2 * self.batch_max

    def next(self, now_ms: int) -> Turn:
        """Return how much may be done, and when."""
        turn = self.pace(now_ms)
        if not (turn.units and self.limits.rate_per_s):
            return turn
        self._fill(now_ms)
        wanted = max(min(self.batch, int(self._burst)), 1)
        if self._allowance >= wanted:
            return Turn(wanted, now_ms)
        lack_ms = (wanted - self._allowance) * 1_000 / self.limits.rate_per_s
        return Turn(0, now_ms + max(int(lack_ms) + 1, 1))

    def pace(self, now_ms: int) -> Turn:
        """Return how much work that moves nothing may do, and when."""
        self._step_end_ms = min(self._step_end_ms, now_ms)  # a clock may be set back
        if self._listens(now_ms):
            return Turn(0, now_ms + LISTEN_STEP_MS)
        at_ms = self._step_end_ms + max(self.pause_ms, PAUSE_BUSY_MS if self._busy else 0)
        return Turn(self.batch, now_ms) if now_ms >= at_ms else Turn(0, at_ms)

    def _listens(self, now_ms: int) -> bool:
        """Whether no step is taken now, to hear how late deliveries are by themselves."""
        if not (self._busy and self.limits.factor and self.limits.target_p99_ms):
            self._listen_ms = now_ms + LISTEN_EVERY_MS
            return False
        if not self._listen_ms - LISTEN_EVERY_MS <= now_ms < self._listen_ms + LISTEN_MS:
            self._listen_ms = now_ms + LISTEN_EVERY_MS
        return now_ms >= self._listen_ms

    def took(self, units: int, now_ms: int) -> None:
        """Count a step that ended now."""
        self._step_end_ms, self._worked = now_ms, True
        if self.limits.rate_per_s:
            self._allowance -= units  # of what there was before the step
            self._fill(now_ms)

    def observe(self, p99_ms: int | None) -> None:
        """Learn how late deliveries were since the observation before.

        Args:
            p99_ms: None: nothing was delivered, so nothing was late.
        """
        worked, self._worked = self._worked, False
        if not self.limits.target_p99_ms:
            return
        self._busy = p99_ms is not None
        if p99_ms is None:
            self._come_back(IDLE_GROWTH, self.batch_max)
            return
        self.batch = min(self.batch, self.batch_busy)
        if self.limits.factor and not worked:
            self._usual.append(p99_ms)
            return
        target_ms = self.target_ms
        if p99_ms > target_ms:
            self._give_way(severe=p99_ms > SEVERE * target_ms)
        elif p99_ms <= target_ms * CALM_SHARE:
            self._come_back(2, self.batch_busy)

    def _give_way(self, *, severe: bool) -> None:
        if self.batch == self.batch_min:
            self.pause_ms = min(max(self.pause_ms * 2, PAUSE_FIRST_MS), PAUSE_MS_MAX)
        self._late_batch = self.batch
        self.batch = self.batch_min if severe else max(self.batch // 2, self.batch_min)

    def _come_back(self, growth: int, batch_max: int) -> None:
        if self.pause_ms:
            self.pause_ms -= max(self.pause_ms // 4, 1)
            return
        if growth > 2 or self.batch < self._late_batch // 2:
            wanted = self.batch * growth
        else:
            wanted = self.batch + max(self.batch // GROWTH_PART, 1)
        self.batch = min(wanted, batch_max)

    @property
    def _burst(self) -> float:
        return max(self.limits.rate_per_s * BURST_MS / 1_000, 1.0)

    def _fill(self, now_ms: int) -> None:
        passed_ms = max(now_ms - self._filled_ms, 0)  # a clock set back fills nothing
        self._filled_ms = now_ms
        filled = self._allowance + passed_ms * self.limits.rate_per_s / 1_000
        self._allowance = min(filled, self._burst)


class Interval:
    """Lateness since the last look at a histogram that only grows (message_store/histogram.py).

    Args:
        buckets: (len(BOUNDS_MS) + 1,) i8: what was counted before the first interval.
    """

    def __init__(self, buckets: npt.NDArray[np.int64]) -> None:
        self._before = buckets.copy()

    def look(self, buckets: npt.NDArray[np.int64]) -> LatenessSince:
        """Return what was delivered since the look before.

        Args:
            buckets: all deliveries so far; those of several services are added up before.
        """
        since = buckets - self._before
        self._before = buckets.copy()
        return LatenessSince(np.maximum(since, 0))


@dataclass(frozen=True, slots=True, eq=False)
class LatenessSince:
    """Deliveries of one interval by how late they were."""

    buckets: npt.NDArray[np.int64]

    @property
    def delivered(self) -> int:
        """How many."""
        return int(self.buckets.sum())

    def quantile_ms(self, share: float) -> int | None:
        """Return an upper bound of the lateness of `share` of them; None without any."""
        if not self.delivered:
            return None
        at = int(np.searchsorted(np.cumsum(self.buckets), share * self.delivered))
        return int(BOUNDS_MS[min(at, BOUNDS_MS.size - 1)])
