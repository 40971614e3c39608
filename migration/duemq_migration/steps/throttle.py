"""Throttle of a migration: limits lateness and rate. Pure; times are arguments.

Lateness. The lateness of deliveries is reported to the throttle once per interval. Intervals
without steps measure the baseline lateness; during deliveries, QUIET_MS of every QUIET_EVERY_MS
have no steps. The target is the lower of the configured lateness and `factor` times the baseline.
Both lateness values are p99s over many intervals: WINDOW_INTERVALS consecutive ones with steps,
which is longer than a checkpoint takes, and the last BASELINE_INTERVALS without steps. Occasional
delays of the machine therefore have the same weight in both.

    lateness above LATE_SHARE of the target and above the baseline
        Steps that take longer than the target (after a long pause: longer than target minus
        baseline) are halved. Otherwise the pause is doubled, because much of the cost of a step
        does not depend on its size.
    lateness up to CALM_SHARE of the target
        Steps that take at most this share of the target grow by an eighth. Otherwise the pause
        shrinks by a quarter, or by an eighth near the pause at which lateness was too high.
    lateness between these shares of the target
        Nothing changes.

Far above the target (SEVERE times, SEVERE_INTERVALS in a row) the throttle slows down at once.
After the longest pause it allows a step in any case, because lateness with another cause must not
stop the migration.

During deliveries a step takes at most BATCH_BUSY units, about 1 ms, and is followed by a pause of
at least PAUSE_BUSY_MS, because Linux gives a process that never sleeps the lowest priority. Each
kind of work begins with PAUSE_FIRST_MS, because a busy broker has little capacity to spare. If
nothing was delivered for IDLE_INTERVALS, steps delay no delivery, and each grows by IDLE_GROWTH, up
to the maximum.

Rate. A token bucket of a quarter of a second of the rate, filled by the clock.

    begin()                                              another kind of work begins
    next(now) --> StepPermit(units_max, earliest time)   permission for the next step
    pace(now) --> StepPermit                             the same for counts, without the rate
    count_step(units, began, now)                        called after each step
    observe(lateness)                                    called after each interval
    change(limits)                                       called after a command of an operator
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from delayed_delivery.outcome import BOUNDS_MS
from duemq_common.errors import UsageError

BATCH_MIN: Final = 256
BATCH_FIRST: Final = 1_024
BATCH_BUSY: Final = 1_024
BATCH_MAX: Final = 32_768
IDLE_GROWTH: Final = 8
IDLE_INTERVALS: Final = 50  # well above a tick of timers of whole seconds
PAUSE_BUSY_MS: Final = 2
PAUSE_FIRST_MS: Final = 20
PAUSE_LEAST_MS: Final = 4  # the shortest pause above 0
PAUSE_LONG_MS: Final = 40
PAUSE_MS_MAX: Final = 100
WINDOW_INTERVALS: Final = 16
SEVERE: Final = 4
SEVERE_INTERVALS: Final = 2
LATE_SHARE: Final = 0.9  # share of the target; with 1.0 half of the windows would exceed the target
CALM_SHARE: Final = 0.75
GROWTH_PART: Final = 8
BURST_MS: Final = 250
QUIET_EVERY_MS: Final = 2_500
QUIET_MS: Final = 250  # long enough for a whole interval, whenever it begins
QUIET_STEP_MS: Final = 50
BASELINE_INTERVALS: Final = 32
BASELINE_MS_MIN: Final = 2


class Limits(Struct, frozen=True, kw_only=True):
    """Limits set by the operator; they may be changed while a migration runs.

    Attributes:
        target_p99_ms: Maximum lateness of deliveries (p99); 0: no limit.
        factor: Maximum multiple of the lateness without a migration; 0: no limit.
        rate_per_s: Maximum messages per second; 0: as fast as lateness allows.
    """

    target_p99_ms: int = 20
    factor: int = 2
    rate_per_s: int = 0

    def __post_init__(self) -> None:
        for name in ("target_p99_ms", "factor", "rate_per_s"):
            value = getattr(self, name)
            if value < 0:
                raise UsageError(f"{name}={value}: it must be 0 or more")


class StepPermit(Struct, frozen=True):
    """Permission for the next step.

    Attributes:
        units: Maximum units of the step; 0: no step yet, call again at `at_ms`.
        at_ms: Earliest time of the step.
    """

    units: int
    at_ms: int


class Throttle:
    """Throttle of one migration.

    Args:
        batch_max: Units of the largest step.
    """

    def __init__(self, limits: Limits, *, now_ms: int, batch_max: int = BATCH_MAX) -> None:
        assert batch_max >= 1
        self.limits = limits
        self.batch_min, self.batch_max = min(BATCH_MIN, batch_max), batch_max
        self.batch_busy = min(BATCH_BUSY, batch_max)
        self.batch = min(BATCH_FIRST, batch_max) if limits.target_p99_ms else batch_max
        self.pause_ms = 0
        self._late_pause_ms = 0
        self._busy, self._idle_intervals = False, IDLE_INTERVALS
        self._baseline: deque[IntervalLateness] = deque(maxlen=BASELINE_INTERVALS)
        self._window: list[IntervalLateness] = []
        self._steps, self._stepped_ms = 0, 0  # intervals of the window
        self._worked, self._quiet_ms = False, now_ms + QUIET_EVERY_MS
        self._step_end_ms = now_ms
        self._allowance, self._filled_ms = 0.0, now_ms

    @property
    def baseline_ms(self) -> int | None:
        """Lateness (p99) of deliveries without a migration; None if unknown."""
        return together(self._baseline)

    @property
    def target_ms(self) -> int:
        """Current maximum of the lateness (p99); 0: no limit."""
        units, factor, baseline = self.limits.target_p99_ms, self.limits.factor, self.baseline_ms
        if not factor or baseline is None:
            return units
        return min(units, round(factor * max(baseline, BASELINE_MS_MIN)))

    def change(self, limits: Limits) -> None:
        """Apply new limits from the next turn on."""
        self.limits = limits
        self._allowance = min(self._allowance, self._burst)
        if limits.target_p99_ms == 0:
            self.batch, self.pause_ms = self.batch_max, 0
            self._busy, self._idle_intervals = False, IDLE_INTERVALS
            self._forget()

    def begin(self) -> None:
        """Begin another kind of work with a pause, if messages are being delivered."""
        if self._busy and (self.batch > self.batch_busy or self.pause_ms < PAUSE_FIRST_MS):
            self.batch = min(self.batch, self.batch_busy)
            self.pause_ms = max(self.pause_ms, PAUSE_FIRST_MS)
            self._late_pause_ms = 0
            self._forget()

    def next(self, now_ms: int) -> StepPermit:
        """Return the permission for the next step that moves messages."""
        turn = self.pace(now_ms)
        if not (turn.units and self.limits.rate_per_s):
            return turn
        self._fill(now_ms)
        units = max(min(self.batch, int(self._burst)), 1)
        if self._allowance >= units:
            return StepPermit(units, now_ms)
        lack_ms = (units - self._allowance) * 1_000 / self.limits.rate_per_s
        return StepPermit(0, now_ms + max(int(lack_ms) + 1, 1))

    def pace(self, now_ms: int) -> StepPermit:
        """Return the permission for the next step of work that moves no messages."""
        self._step_end_ms = min(self._step_end_ms, now_ms)  # the clock may have been set back
        if self._is_quiet(now_ms):
            return StepPermit(0, now_ms + QUIET_STEP_MS)
        at_ms = self._step_end_ms + max(self.pause_ms, PAUSE_BUSY_MS if self._busy else 0)
        return StepPermit(self.batch, now_ms) if now_ms >= at_ms else StepPermit(0, at_ms)

    def _is_quiet(self, now_ms: int) -> bool:
        """Return whether steps are suspended now to measure the baseline lateness."""
        if not (self._busy and self.limits.factor and self.limits.target_p99_ms):
            self._quiet_ms = now_ms + QUIET_EVERY_MS
            return False
        if not self._quiet_ms - QUIET_EVERY_MS <= now_ms < self._quiet_ms + QUIET_MS:
            self._quiet_ms = now_ms + QUIET_EVERY_MS
        return now_ms >= self._quiet_ms

    def count_step(self, units: int, began_ms: int, now_ms: int) -> None:
        """Count a step that ended now."""
        self._step_end_ms, self._worked = now_ms, True
        self._steps += 1
        self._stepped_ms += max(now_ms - began_ms, 0)
        if self.limits.rate_per_s:
            # The step began with the allowance that the bucket had before.
            self._allowance -= units
            self._fill(now_ms)

    def observe(self, since: IntervalLateness) -> None:
        """Add the lateness of the deliveries since the last observation."""
        worked, self._worked = self._worked, False
        if not self.limits.target_p99_ms:
            return
        if not since.delivered:
            self._record_idle()
            return
        self._idle_intervals = 0
        if not self._busy:
            self._busy = True
            self.begin()
        if not worked:
            self._baseline.append(since)
            return
        self._window.append(since)
        self._adjust()

    def _record_idle(self) -> None:
        self._idle_intervals += 1
        if self._idle_intervals >= IDLE_INTERVALS:
            self._busy, self.pause_ms = False, 0
            self.batch = min(self.batch * IDLE_GROWTH, self.batch_max)
            self._forget()

    def _adjust(self) -> None:
        target_ms, late = self.target_ms, self._window
        if all(_p99_ms(each) > SEVERE * target_ms for each in late[-SEVERE_INTERVALS:]):
            if len(late) >= SEVERE_INTERVALS:
                self._slow_down(target_ms, severe=True)
        elif len(late) >= WINDOW_INTERVALS:
            p99_ms = together(late) or 0
            if p99_ms > max(target_ms * LATE_SHARE, self.baseline_ms or 0):
                self._slow_down(target_ms, severe=False)
            elif p99_ms <= target_ms * CALM_SHARE:
                self._speed_up(target_ms)
            self._forget()

    def _forget(self) -> None:
        self._window, self._steps, self._stepped_ms = [], 0, 0

    def _slow_down(self, target_ms: int, *, severe: bool) -> None:
        if self._is_long(target_ms) and self.batch > self.batch_min:
            self.batch = max(self.batch // 2, self.batch_min)
        else:
            self._late_pause_ms = self.pause_ms
            least_ms = PAUSE_FIRST_MS if severe else PAUSE_LEAST_MS
            self.pause_ms = min(max(self.pause_ms * 2, least_ms), PAUSE_MS_MAX)
        self._forget()

    def _speed_up(self, target_ms: int) -> None:
        if self.batch < self.batch_busy and not self._is_long(target_ms, share=CALM_SHARE):
            self.batch = min(self.batch + max(self.batch // GROWTH_PART, 1), self.batch_busy)
        elif self.pause_ms:
            part = 4 if self.pause_ms > 2 * self._late_pause_ms else GROWTH_PART
            self.pause_ms -= max(self.pause_ms // part, 1)

    def _is_long(self, target_ms: int, *, share: float = 1.0) -> bool:
        """Return whether steps take too long; after a long pause, only the step causes lateness."""
        allowed_ms: float = target_ms
        if self.pause_ms >= PAUSE_LONG_MS:
            allowed_ms = max(target_ms - (self.baseline_ms or 0), target_ms / 2)
        return self._stepped_ms > self._steps * allowed_ms * share

    @property
    def _burst(self) -> float:
        return max(self.limits.rate_per_s * BURST_MS / 1_000, 1.0)

    def _fill(self, now_ms: int) -> None:
        passed_ms = max(now_ms - self._filled_ms, 0)  # a clock that is set back adds nothing
        self._filled_ms = now_ms
        filled = self._allowance + passed_ms * self.limits.rate_per_s / 1_000
        self._allowance = min(filled, self._burst)


class Interval:
    """Difference between two readings of a growing histogram (delayed_delivery/outcome.py).

    Args:
        buckets: (len(BOUNDS_MS) + 1,) i8: counts before the first interval.
    """

    def __init__(self, buckets: npt.NDArray[np.int64]) -> None:
        self._before = buckets.copy()

    def advance(self, buckets: npt.NDArray[np.int64]) -> IntervalLateness:
        """Return the deliveries since the last call.

        Args:
            buckets: All deliveries so far, summed over the services.
        """
        since = buckets - self._before
        self._before = buckets.copy()
        return IntervalLateness(np.maximum(since, 0))


class IntervalLateness(Struct, frozen=True, eq=False):
    """Histogram of the deliveries of one interval by lateness."""

    buckets: npt.NDArray[np.int64]

    @property
    def delivered(self) -> int:
        """Number of deliveries."""
        return int(self.buckets.sum())

    def quantile_ms(self, share: float) -> int | None:
        """Return an upper bound of the lateness of `share` of the deliveries; None without any."""
        if not self.delivered:
            return None
        position = int(np.searchsorted(np.cumsum(self.buckets), share * self.delivered))
        return int(BOUNDS_MS[min(position, BOUNDS_MS.size - 1)])


def together(intervals: Collection[IntervalLateness]) -> int | None:
    """Return the p99 over several intervals, in ms; None without deliveries."""
    if not intervals:
        return None
    return _p99_ms(IntervalLateness(np.sum([each.buckets for each in intervals], axis=0)))


def _p99_ms(since: IntervalLateness) -> int:
    return since.quantile_ms(0.99) or 0
