"""The timer section of the configuration: Apache's keys, rounding and limits."""

from __future__ import annotations

import pytest

from duemq_common.config import from_properties
from duemq_common.errors import ConfigError
from timer_store.config import TimerConfig


def test_defaults_are_apaches() -> None:
    config = TimerConfig()
    assert (config.enabled, config.precision_ms, config.roll_window_slots) == (True, 1_000, 172_800)
    assert (config.max_delay_s, config.flush_interval_ms) == (259_200, 1_000)
    assert config.log_file_bytes == 104_857_600
    assert config.window_ms == 2 * 86_400_000
    assert config.max_delay_ms == 3 * 86_400_000


@pytest.mark.parametrize(
    ("requested", "precision_ms"),
    [
        (0, 100),
        (99, 100),
        (100, 100),
        (199, 100),
        (200, 200),
        (499, 200),
        (500, 500),
        (999, 500),
        (1_000, 1_000),
        (60_000, 1_000),
    ],
)
def test_precision_is_rounded_down_as_apache_does(requested: int, precision_ms: int) -> None:
    assert TimerConfig(precision_ms=requested).precision_ms == precision_ms


@pytest.mark.parametrize(
    ("requested", "slots"),
    [(2, 2), (1, 604_740), (-3, 604_740), (604_740, 604_740), (604_741, 604_740)],
)
def test_a_roll_window_beyond_the_wheel_is_reduced(requested: int, slots: int) -> None:
    assert TimerConfig(roll_window_slots=requested).roll_window_slots == slots


def test_delays_of_centuries_are_allowed() -> None:
    config = from_properties(TimerConfig, {"timerMaxDelaySec": "31536000000"})
    assert config.max_delay_ms == 1_000 * 365 * 86_400_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timerMaxDelaySec", "-1"),
        ("timerMaxDelaySec", "1000000000000000"),
        ("mappedFileSizeTimerLog", "67"),
        ("timerStageLeadMs", "soon"),
    ],
)
def test_illegal_values_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        from_properties(TimerConfig, {key: value})
