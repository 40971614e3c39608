"""Throttle of a migration: lateness first, rate second. Pure; times are arguments.

Lateness. Every interval reports the lateness of its deliveries to the throttle. Those of intervals
without a step say how late deliveries are by themselves; while something is delivered there is one
every LISTEN_EVERY_MS, for LISTEN_MS no step is taken. The target is what an operator set, or less:
`factor` times what deliveries are late by themselves. Both are p99s of many intervals together: at
work of WINDOW_INTERVALS in a row, which is longer than a checkpoint's turn, without a step of the
last USUAL_INTERVALS. So what a machine does now and then weighs the same in both.

    above LATE_SHARE of it, and later than by themselves
                            steps that take longer than it are halved (behind a long pause: than the
                            room up to it), else the pause is doubled: a step costs much that does
                            not depend on its size
    up to CALM_SHARE of it  steps that take at most so much of that grow by an eighth; else the
                            pause shrinks, by a quarter, near where it was late by an eighth
    between the two         it stays

Far above the target (SEVERE times, SEVERE_INTERVALS in a row) it gives way at once. It never stops
altogether: after the longest pause a step goes on, for what is late for another reason must not
hold it for ever.

While something is delivered a step takes at most BATCH_BUSY: about a ms, which few notice; and at
least PAUSE_BUSY_MS pass behind it: a process that never sleeps is scheduled last. Each
kind of work begins with PAUSE_FIRST_MS: a broker that is mostly busy is overloaded by a little.
Where nothing was delivered for IDLE_INTERVALS, steps delay no delivery: they grow by IDLE_GROWTH at
a time, to the largest.

Rate. A bucket that holds a quarter of a second of the rate, filled by the clock.

    begin()                                        another kind of work
    next(now) --> Turn(units_max, wait until)      a step takes at most units_max, not before then
    pace(now) --> the same for work that moves nothing (counting): the rate is not asked
    took(units, began, now)                        after the step
    observe(lateness)                              after each interval
    change(limits)                                 whenever an operator says so
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from delivery.lateness import BOUNDS_MS
from message_store.errors import UsageError

BATCH_MIN: Final = 256
BATCH_FIRST: Final = 1_024
BATCH_BUSY: Final = 1_024
BATCH_MAX: Final = 32_768
IDLE_GROWTH: Final = 8
IDLE_INTERVALS: Final = 50  # well above a tick of timers of whole seconds
PAUSE_BUSY_MS: Final = 2
PAUSE_FIRST_MS: Final = 20
PAUSE_LEAST_MS: Final = 4  # the shortest above none
PAUSE_LONG_MS: Final = 40
PAUSE_MS_MAX: Final = 100
WINDOW_INTERVALS: Final = 16
SEVERE: Final = 4
SEVERE_INTERVALS: Final = 2
LATE_SHARE: Final = 0.9  # so that all deliveries stay below the target, not every other window
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
        self._late_pause_ms = 0
        self._busy, self._silent = False, IDLE_INTERVALS  # intervals without a delivery
        self._usual: deque[LatenessSince] = deque(maxlen=USUAL_INTERVALS)  # without a step
        self._window: list[LatenessSince] = []
        self._steps, self._stepped_ms = 0, 0  # of the window
        self._worked, self._listen_ms = False, now_ms + LISTEN_EVERY_MS
        self._step_end_ms = now_ms
        self._allowance, self._filled_ms = 0.0, now_ms

    @property
    def usual_ms(self) -> int | None:
        """The p99 of deliveries while nothing is migrated; None: not known."""
        return together(self._usual)

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
            self.batch, self.pause_ms = self.batch_max, 0
            self._busy, self._silent = False, IDLE_INTERVALS
            self._forget()

    def begin(self) -> None:
        """Take another kind of work up gently, if something is delivered meanwhile."""
        if self._busy and (self.batch > self.batch_busy or self.pause_ms < PAUSE_FIRST_MS):
            self.batch = min(self.batch, self.batch_busy)
            self.pause_ms = max(self.pause_ms, PAUSE_FIRST_MS)
            self._late_pause_ms = 0
            self._forget()

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

    def took(self, units: int, began_ms: int, now_ms: int) -> None:
        """Count a step that ended now."""
        self._step_end_ms, self._worked = now_ms, True
        self._steps += 1
        self._stepped_ms += max(now_ms - began_ms, 0)
        if self.limits.rate_per_s:
            self._allowance -= units  # of what there was before the step
            self._fill(now_ms)

    def observe(self, since: LatenessSince) -> None:
        """Learn how late deliveries were since the observation before."""
        worked, self._worked = self._worked, False
        if not self.limits.target_p99_ms:
            return
        if not since.delivered:
            self._hear_nothing()
            return
        self._silent = 0
        if not self._busy:
            self._busy = True
            self.begin()
        if not worked:
            self._usual.append(since)
            return
        self._window.append(since)
        self._judge()

    def _hear_nothing(self) -> None:
        self._silent += 1
        if self._silent >= IDLE_INTERVALS:
            self._busy, self.pause_ms = False, 0
            self.batch = min(self.batch * IDLE_GROWTH, self.batch_max)
            self._forget()

    def _judge(self) -> None:
        target_ms, late = self.target_ms, self._window
        if all(_p99_ms(each) > SEVERE * target_ms for each in late[-SEVERE_INTERVALS:]):
            if len(late) >= SEVERE_INTERVALS:
                self._give_way(target_ms, severe=True)
        elif len(late) >= WINDOW_INTERVALS:
            p99_ms = together(late) or 0
            if p99_ms > max(target_ms * LATE_SHARE, self.usual_ms or 0):
                self._give_way(target_ms, severe=False)
            elif p99_ms <= target_ms * CALM_SHARE:
                self._come_back(target_ms)
            self._forget()

    def _forget(self) -> None:
        self._window, self._steps, self._stepped_ms = [], 0, 0

    def _give_way(self, target_ms: int, *, severe: bool) -> None:
        if self._is_long(target_ms) and self.batch > self.batch_min:
            self.batch = max(self.batch // 2, self.batch_min)
        else:
            self._late_pause_ms = self.pause_ms
            least_ms = PAUSE_FIRST_MS if severe else PAUSE_LEAST_MS
            self.pause_ms = min(max(self.pause_ms * 2, least_ms), PAUSE_MS_MAX)
        self._forget()

    def _come_back(self, target_ms: int) -> None:
        if self.batch < self.batch_busy and not self._is_long(target_ms, share=CALM_SHARE):
            self.batch = min(self.batch + max(self.batch // GROWTH_PART, 1), self.batch_busy)
        elif self.pause_ms:
            part = 4 if self.pause_ms > 2 * self._late_pause_ms else GROWTH_PART
            self.pause_ms -= max(self.pause_ms // part, 1)

    def _is_long(self, target_ms: int, *, share: float = 1.0) -> bool:
        """Return whether steps take long; behind a long pause nothing else can be what is late."""
        allowed_ms: float = target_ms
        if self.pause_ms >= PAUSE_LONG_MS:
            allowed_ms = max(target_ms - (self.usual_ms or 0), target_ms / 2)
        return self._stepped_ms > self._steps * allowed_ms * share

    @property
    def _burst(self) -> float:
        return max(self.limits.rate_per_s * BURST_MS / 1_000, 1.0)

    def _fill(self, now_ms: int) -> None:
        passed_ms = max(now_ms - self._filled_ms, 0)  # a clock set back fills nothing
        self._filled_ms = now_ms
        filled = self._allowance + passed_ms * self.limits.rate_per_s / 1_000
        self._allowance = min(filled, self._burst)


class Interval:
    """Lateness since the last look at a histogram that only grows (delivery/lateness.py).

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


def together(intervals: Collection[LatenessSince]) -> int | None:
    """Return the p99 of several intervals as one, ms; None without any."""
    if not intervals:
        return None
    return _p99_ms(LatenessSince(np.sum([each.buckets for each in intervals], axis=0)))


def _p99_ms(since: LatenessSince) -> int:
    return since.quantile_ms(0.99) or 0
