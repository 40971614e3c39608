"""The throttle against a simulated broker, whose deliveries wait while a step runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.outcome import BOUNDS_MS, Lateness
from duemq_common.errors import UsageError
from duemq_migration.steps.throttle import (
    BASELINE_MS_MIN,
    BATCH_BUSY,
    BATCH_FIRST,
    BATCH_MAX,
    BATCH_MIN,
    BURST_MS,
    IDLE_INTERVALS,
    PAUSE_BUSY_MS,
    PAUSE_FIRST_MS,
    PAUSE_MS_MAX,
    QUIET_EVERY_MS,
    QUIET_MS,
    SEVERE,
    SEVERE_INTERVALS,
    WINDOW_INTERVALS,
    Interval,
    Limits,
    StepPermit,
    Throttle,
)
from tests.migration.lateness import delivered, since

START_MS = 1_795_278_600_000
INTERVAL_MS = 100
ALONE = Limits(factor=0)  # only the target counts


@dataclass
class SimulatedBroker:
    """A delivery is due every millisecond; one that is due during a step waits for its end.

    Attributes:
        unit_us: time to transfer one message.
        other_late_ms: lateness of every delivery for another reason.
        deliver: whether anything is delivered.
    """

    throttle: Throttle
    unit_us: float = 1.0
    other_late_ms: int = 0
    deliver: bool = True
    now_ms: int = START_MS
    end_ms: int = START_MS
    moved: int = 0
    p99s: list[int] = field(default_factory=list)

    def run(self, seconds: int) -> list[int]:
        """Let time pass; return the p99 of each interval."""
        self.p99s = []
        for _ in range(seconds * 1_000 // INTERVAL_MS):
            self._interval()
        return self.p99s

    def step_ms(self, units: int) -> int:
        """Return how long a step holds the event loop."""
        return max(round(units * self.unit_us / 1_000), 1)

    def _interval(self) -> None:
        late: list[int] = []
        self.end_ms += INTERVAL_MS
        while self.now_ms < self.end_ms:
            turn = self.throttle.next(self.now_ms)
            if not turn.units:
                late += [0] * (turn.at_ms - self.now_ms)
                self.now_ms = turn.at_ms
                continue
            step_ms = self.step_ms(turn.units)
            late += range(step_ms)
            self.now_ms += step_ms
            self.moved += turn.units
            self.throttle.count_step(turn.units, self.now_ms - step_ms, self.now_ms)
        late = [each + self.other_late_ms for each in late or [0]]
        self.p99s.append(int(np.quantile(late, 0.99)))
        self.throttle.observe(since(late if self.deliver else ()))


def simulated(limits: Limits | None = None, **how: object) -> SimulatedBroker:
    throttle = Throttle(limits or ALONE, now_ms=START_MS)
    return SimulatedBroker(throttle, **how)


def test_an_idle_broker_is_soon_at_full_speed() -> None:
    broker = simulated(deliver=False)
    assert broker.throttle.batch == BATCH_FIRST
    broker.run(2)
    assert broker.throttle.batch == BATCH_MAX
    assert broker.throttle.pause_ms == 0


def test_the_first_delivery_makes_steps_short() -> None:
    broker = simulated(deliver=False)
    broker.run(5)
    broker.throttle.observe(delivered(0))
    assert (broker.throttle.batch, broker.throttle.pause_ms) == (BATCH_BUSY, PAUSE_FIRST_MS)
    broker.deliver = True
    broker.run(60)
    assert broker.throttle.batch == BATCH_BUSY


def test_without_a_target_steps_are_the_largest_from_the_start() -> None:
    broker = simulated(Limits(factor=0, target_p99_ms=0), other_late_ms=10_000)
    assert broker.throttle.batch == BATCH_MAX
    broker.run(5)
    assert broker.throttle.batch == BATCH_MAX


@pytest.mark.sampled
@pytest.mark.parametrize("unit_us", [0.3, 1, 5, 50], ids=lambda us: f"{us} us a message")
def test_lateness_keeps_its_target_and_work_continues(unit_us: float) -> None:
    broker = simulated(unit_us=unit_us)
    broker.run(60)
    before, since_ms = broker.moved, broker.now_ms
    p99s = broker.run(60)
    target_ms = broker.throttle.limits.target_p99_ms
    assert max(p99s) <= 2 * target_ms
    assert sum(p99 > target_ms for p99 in p99s) <= len(p99s) * 0.05
    step = min(BATCH_BUSY, int(0.75 * target_ms * 1_000 / unit_us))  # steps grow up to this size
    wanted_per_ms = step / (broker.step_ms(step) + PAUSE_BUSY_MS)  # with the pause after each step
    assert (broker.moved - before) / (broker.now_ms - since_ms) >= 0.8 * wanted_per_ms


@pytest.mark.sampled
@pytest.mark.parametrize("baseline_ms", [0, 3, 8, 30])
@pytest.mark.parametrize("unit_us", [1, 5, 20], ids=lambda us: f"{us} us a message")
def test_deliveries_are_at_most_twice_as_late_as_without_it(
    unit_us: float, baseline_ms: int
) -> None:
    broker = simulated(Limits(), unit_us=unit_us, other_late_ms=baseline_ms)
    broker.run(60)
    before = broker.moved
    p99s = broker.run(120)
    expected = min(20, 2 * max(baseline_ms, BASELINE_MS_MIN))
    assert broker.throttle.target_ms == expected
    if unit_us * BATCH_MIN <= (expected - baseline_ms) * 1_000:
        assert sum(p99 > expected for p99 in p99s) <= len(p99s) * 0.1
        assert (broker.moved - before) / 120 > 0.03 * 1e6 / unit_us
    assert broker.moved - before >= 100 * BATCH_MIN


def test_lateness_counts_only_during_deliveries() -> None:
    throttle, now_ms, pauses = Throttle(Limits(), now_ms=START_MS), START_MS, []
    for interval in (delivered(), delivered(3)):
        throttle.observe(interval)
        throttle.pause_ms = 0
        pauses.append(0)
        for at_ms in range(now_ms + 1, now_ms + 4 * QUIET_EVERY_MS):
            turn = throttle.next(at_ms)
            pauses[-1] += not turn.units
            if turn.units:
                throttle.count_step(turn.units, at_ms, at_ms - PAUSE_BUSY_MS)
        now_ms += 4 * QUIET_EVERY_MS
    assert pauses[0] == 0
    assert 3 * QUIET_MS <= pauses[1] <= 4 * QUIET_MS


def observed(throttle: Throttle, p99_ms: int, *, intervals: int, step_ms: int = 1) -> None:
    """Let the throttle observe equal intervals with a step in each."""
    for _ in range(intervals):
        throttle.count_step(1, START_MS, START_MS + step_ms)
        throttle.observe(delivered(p99_ms))


def test_a_large_lateness_slows_down_at_once() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    observed(throttle, 20 * SEVERE + 30, intervals=SEVERE_INTERVALS - 1)
    assert throttle.pause_ms == PAUSE_FIRST_MS
    observed(throttle, 20 * SEVERE + 30, intervals=1)
    assert throttle.pause_ms == 2 * PAUSE_FIRST_MS


def test_a_single_late_interval_costs_seconds() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    observed(throttle, 10, intervals=WINDOW_INTERVALS // 2)
    observed(throttle, 500, intervals=1)
    observed(throttle, 10, intervals=WINDOW_INTERVALS - WINDOW_INTERVALS // 2 - 1)
    assert (throttle.batch, throttle.pause_ms) == (BATCH_BUSY, 2 * PAUSE_FIRST_MS)
    observed(throttle, 10, intervals=6 * WINDOW_INTERVALS)
    assert throttle.batch == BATCH_BUSY
    assert throttle.pause_ms <= PAUSE_FIRST_MS


def test_periodic_lateness_of_another_cause_counts_less() -> None:
    """A machine that stops for some time every second does so without a migration, too."""
    throttle = Throttle(Limits(target_p99_ms=1_000), now_ms=START_MS)
    for _ in range(4):
        rested(throttle, 2, intervals=7)
        rested(throttle, 60, intervals=1)
    assert throttle.target_ms >= 2 * 60
    for _ in range(WINDOW_INTERVALS // 8):
        observed(throttle, 2, intervals=7)
        observed(throttle, 60, intervals=1)
    assert throttle.pause_ms < PAUSE_FIRST_MS, "it did not give way"


def test_lateness_of_another_cause_below_the_target_does_not_slow_down() -> None:
    throttle = Throttle(Limits(target_p99_ms=20), now_ms=START_MS)
    rested(throttle, 20, intervals=8)
    assert throttle.target_ms == 20
    observed(throttle, 20, intervals=12 * WINDOW_INTERVALS)
    assert throttle.pause_ms == PAUSE_FIRST_MS


def rested(throttle: Throttle, p99_ms: int, *, intervals: int) -> None:
    """Let the throttle observe intervals without a step."""
    for _ in range(intervals):
        throttle.observe(delivered(p99_ms))


def test_it_speeds_up_slowly() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    observed(throttle, 1_000, intervals=5 * SEVERE_INTERVALS)
    assert (throttle.batch, throttle.pause_ms) == (BATCH_BUSY, PAUSE_MS_MAX)
    pauses = [PAUSE_MS_MAX]
    while throttle.pause_ms:
        observed(throttle, 0, intervals=WINDOW_INTERVALS)
        pauses.append(throttle.pause_ms)
    assert all(0.7 * before <= after < before for before, after in pairwise(pauses) if before > 4)
    assert len(pauses) > 2 * 5  # it speeds up slower than it slowed down


def test_another_kind_of_work_starts_slowly_during_deliveries() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    throttle.begin()
    assert throttle.pause_ms == 0
    observed(throttle, 0, intervals=1)
    throttle.pause_ms = 3
    throttle.begin()
    assert throttle.pause_ms == PAUSE_FIRST_MS
    throttle.pause_ms = 70
    throttle.begin()
    assert throttle.pause_ms == 70


def test_work_that_begins_with_the_first_pause_keeps_the_observations() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    observed(throttle, 0, intervals=WINDOW_INTERVALS - 1)
    assert (throttle.batch, throttle.pause_ms) == (BATCH_BUSY, PAUSE_FIRST_MS)
    throttle.begin()
    observed(throttle, 0, intervals=1)
    assert throttle.pause_ms < PAUSE_FIRST_MS


def test_a_short_time_without_deliveries_is_not_idleness() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    observed(throttle, 0, intervals=1)
    for _ in range(IDLE_INTERVALS - 1):
        throttle.observe(delivered())
        assert throttle.batch == BATCH_BUSY
    throttle.observe(delivered())
    assert (throttle.batch, throttle.pause_ms) == (8 * BATCH_BUSY, 0)


def test_lateness_of_another_cause_does_not_stop_it() -> None:
    broker = simulated(other_late_ms=10_000)
    broker.run(60)
    before = broker.moved
    broker.run(60)
    assert broker.throttle.pause_ms == PAUSE_MS_MAX
    assert broker.moved - before >= 50 * BATCH_MIN


@pytest.mark.parametrize(
    ("p99_ms", "step_ms", "pause_ms", "after"),
    [
        (15, 15, 39, (576, 39)),
        (15, 16, 39, (512, 30)),
        (15, 16, 0, (512, 0)),
        (20, 10, 39, (512, 78)),
        (25, 20, 39, (512, 78)),
        (25, 20, 1, (512, 4)),
        (25, 20, 0, (512, 4)),
        (25, 21, 39, (256, 39)),
        (70, 5, 1, (512, 4)),
        (25, 20, 80, (512, 100)),
    ],
)
def test_one_interval(p99_ms: int, step_ms: int, pause_ms: int, after: tuple[int, int]) -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    observed(throttle, p99_ms, intervals=WINDOW_INTERVALS - 1, step_ms=step_ms)
    throttle.batch, throttle.pause_ms = 512, pause_ms
    observed(throttle, p99_ms, intervals=1, step_ms=step_ms)
    assert (throttle.batch, throttle.pause_ms) == after


def test_the_pause_shrinks_by_an_eighth_near_the_last_late_one() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    observed(throttle, 0, intervals=1)
    throttle.pause_ms = 32
    observed(throttle, 25, intervals=2 * WINDOW_INTERVALS - 1)
    assert throttle.pause_ms == PAUSE_MS_MAX
    pauses = []
    for _ in range(4):
        observed(throttle, 0, intervals=WINDOW_INTERVALS)
        pauses.append(throttle.pause_ms)
    assert pauses == [88, 77, 68, 60]


def test_lateness_before_the_first_step_does_not_count() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    for _ in range(3 * WINDOW_INTERVALS):
        throttle.observe(delivered(500))
    assert throttle.pause_ms == PAUSE_FIRST_MS


def test_a_pause_begins_after_the_step() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS)
    throttle.pause_ms = 400
    throttle.count_step(10, START_MS, START_MS)
    assert throttle.next(START_MS) == StepPermit(0, START_MS + 400)
    throttle.pause_ms = 300
    assert throttle.next(START_MS + 10) == StepPermit(0, START_MS + 300)
    assert throttle.next(START_MS + 300).units == BATCH_FIRST


@given(
    rate=st.integers(1, 2_000_000),
    pauses=st.lists(st.integers(0, 2_000), min_size=1, max_size=200),
    batch=st.integers(BATCH_MIN, BATCH_MAX),
)
def test_the_rate_is_kept_over_any_period(rate: int, pauses: list[int], batch: int) -> None:
    throttle = Throttle(Limits(factor=0, target_p99_ms=0, rate_per_s=rate), now_ms=START_MS)
    throttle.batch = batch
    now, moves = START_MS, [(START_MS, 0)]
    for wait in pauses:
        turn = throttle.next(now)
        if turn.units:
            moves.append((now, turn.units))
            throttle.count_step(turn.units, now, now)
        else:
            assert turn.at_ms > now
            now = turn.at_ms
            assert throttle.next(now).units, "there are units at the time that it named"
        now += wait
    burst = max(rate * BURST_MS / 1_000, 1)
    for first in range(0, len(moves), 7):
        total = sum(units for _, units in moves[first:])
        passed_ms = moves[-1][0] - moves[first][0]
        assert total <= rate * passed_ms / 1_000 + burst + 1e-6


def test_a_rate_is_reached() -> None:
    broker = simulated(Limits(factor=0, rate_per_s=50_000), deliver=False)
    broker.run(20)
    before, since_ms = broker.moved, broker.now_ms
    broker.run(20)
    expected = (broker.now_ms - since_ms) * 50
    assert broker.moved - before == pytest.approx(expected, rel=0.02)


def test_limits_are_changed_while_it_runs() -> None:
    broker = simulated(unit_us=1)
    broker.run(60)
    fast = broker.moved
    broker.throttle.change(Limits(factor=0, target_p99_ms=5))
    broker.run(10)
    p99s = broker.run(50)
    assert sum(p99 > 5 for p99 in p99s) <= len(p99s) * 0.1
    broker.throttle.change(Limits(factor=0, target_p99_ms=5, rate_per_s=1_000))
    before = broker.moved
    broker.run(60)
    assert broker.moved - before <= 60_000 + 250
    broker.throttle.change(ALONE)
    before = broker.moved
    broker.run(60)
    assert broker.moved - before > fast / 2
    broker.throttle.change(Limits(factor=0, target_p99_ms=0))
    assert broker.throttle.next(broker.now_ms) == StepPermit(BATCH_MAX, broker.now_ms)


@pytest.mark.parametrize("back_ms", [1, 10_000, 86_400_000])
@pytest.mark.parametrize(
    "limits", [ALONE, Limits(factor=0, rate_per_s=1_000)], ids=["late", "rate"]
)
def test_a_clock_step_back_does_not_stop_it(back_ms: int, limits: Limits) -> None:
    throttle = Throttle(limits, now_ms=START_MS)
    throttle.pause_ms = 100
    throttle.count_step(1, START_MS, START_MS)
    now = START_MS - back_ms
    turns = 0
    while not throttle.next(now).units:
        now, turns = throttle.next(now).at_ms, turns + 1
        assert turns < 5
    assert now <= START_MS - back_ms + 1_000


@pytest.mark.parametrize("wrong", [{"target_p99_ms": -1}, {"rate_per_s": -5}, {"factor": -2}])
def test_negative_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be 0 or more"):
        Limits(**wrong)


def test_a_small_largest_step_is_kept() -> None:
    throttle = Throttle(ALONE, now_ms=START_MS, batch_max=10)
    for interval in (delivered(), delivered(1_000), delivered(), delivered()):
        throttle.observe(interval)
        assert 1 <= throttle.batch <= 10


def test_an_interval_contains_the_deliveries_since_the_last_one() -> None:
    late = Lateness()
    late.record(np.zeros(50, np.int64), np.full(50, 5_000))
    interval = Interval(late.buckets)
    assert interval.advance(late.buckets).quantile_ms(0.99) is None
    late.record(np.zeros(100, np.int64), np.arange(100) // 10)
    found = interval.advance(late.buckets)
    assert found.delivered == 100
    assert (found.quantile_ms(0.5), found.quantile_ms(0.99)) == (4, 10)
    late.record(np.zeros(1, np.int64), np.full(1, BOUNDS_MS[-1] + 1))
    assert interval.advance(late.buckets).quantile_ms(0.99) == BOUNDS_MS[-1]
    assert interval.advance(np.zeros_like(late.buckets)).delivered == 0
