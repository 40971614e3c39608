"""Configuration key messageDelayLevel."""

from __future__ import annotations

import pytest

from delayed_delivery.level_delays import DEFAULT_LEVELS, LEVELS_MAX, parse_levels
from duemq_common.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        ("1s", [0, 1_000]),
        ("1s 2m 3h 4d", [0, 1_000, 120_000, 10_800_000, 345_600_000]),
        ("0s", [0, 0]),
        ("-5s 1s", [0, 0, 1_000]),
        ("+5s", [0, 5_000]),
        ("10s 1s", [0, 10_000, 1_000]),
        ("1s ", [0, 1_000]),
    ],
)
def test_levels_are_parsed(text: str, delays: list[int]) -> None:
    assert parse_levels(text).tolist() == delays


def test_default_has_18_levels() -> None:
    assert parse_levels(DEFAULT_LEVELS).size == 19


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["token 1", "''"]),
        (" 1s", ["token 1", "''"]),
        ("1s  2s", ["token 2", "single space"]),
        ("1s 2x", ["token 2", "'2x'", "not a unit"]),
        ("1s 2S", ["token 2", "'S'"]),
        ("1s s", ["token 2", "'s'"]),
        ("1.5s", ["token 1", "'1.5'"]),
        ("1s 5s 12", ["token 3", "'12'"]),
        ("999999999999999999999d", ["100 years"]),
        ("40000d", ["100 years"]),
        ("٣s", ["not a whole number"]),
        ("1s " * (LEVELS_MAX + 1), ["at most"]),
    ],
)
def test_an_illegal_token_is_reported_with_its_position(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_levels(text, source="broker.conf:7")
    assert all(word in str(caught.value) for word in [*words, "broker.conf:7"])
