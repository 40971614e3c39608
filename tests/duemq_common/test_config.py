"""Configuration options and sections."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from duemq_common.config import Properties, errors_name_sources, from_properties, option, options
from duemq_common.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    count: int = option(3, key="count", doc="How many.", minimum=1, maximum=9, unit="things")
    big: int = option(0, key="big", doc="A Java int.")
    share: float = option(0.5, key="share", doc="A share.", minimum=0, maximum=1)
    on: bool = option(False, key="on", doc="On.")
    word: str = option("a", key="word", doc="A word.", choices=("a", "b"))
    hidden: int = 7


@pytest.mark.parametrize(
    ("properties", "field", "value"),
    [
        ({}, "count", 3),
        ({"count": "9"}, "count", 9),
        ({"count": " 4 "}, "count", 4),
        ({"on": "TRUE"}, "on", True),
        ({"on": "false"}, "on", False),
        ({"share": "0.25"}, "share", 0.25),
        ({"word": "b"}, "word", "b"),
        ({"other": "1"}, "count", 3),
    ],
)
def test_values_are_parsed(properties: dict[str, str], field: str, value: object) -> None:
    assert getattr(from_properties(Sample, properties), field) == value


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("count", "x", "a whole number"),
        ("count", "", "a whole number"),
        ("count", "1.5", "a whole number"),
        ("count", "0", "from 1 to 9"),
        ("count", "10", "from 1 to 9"),
        ("count", "1_0", "a whole number"),
        ("count", "9" * 5_000, "a whole number"),
        ("big", "2147483648", "from -2147483648 to 2147483647"),
        ("share", "nan", "from 0 to 1"),
        ("share", "one", "a number"),
        ("on", "yes", "true or false"),
        ("word", "c", "one of a, b"),
    ],
)
def test_a_bad_value_reports_position_value_and_reason(key: str, value: str, why: str) -> None:
    properties = Properties({key: value}, {key: "broker.conf line 7"})
    with pytest.raises(ConfigError, match=why) as caught:
        from_properties(Sample, properties)
    assert f"{key}={value} (broker.conf line 7): must be" in str(caught.value)


def test_options_lists_declared_keys_only() -> None:
    assert [item.key for item in options(Sample)] == ["count", "big", "share", "on", "word"]


def test_errors_keep_the_source_that_they_name() -> None:
    properties = Properties({"count": "1"}, {"count": "broker.conf line 3"})
    for source, shown in (("", "broker.conf line 3"), ("request 25", "request 25")):
        with pytest.raises(ConfigError) as raised, errors_name_sources(properties):
            raise ConfigError("count", "1", "is invalid", source=source)
        assert raised.value.source == shown
