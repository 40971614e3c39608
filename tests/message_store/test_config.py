"""Configuration options, sections, and the section of the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from message_store.config import (
    Properties,
    StoreConfig,
    from_properties,
    option,
    options,
    to_properties,
)
from message_store.errors import ConfigError

BEYOND_A_FRAME = pytest.mark.finding("E5")  # a frame of this size cannot be sent


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


def test_a_section_round_trips_as_properties() -> None:
    config = from_properties(StoreConfig, {"deleteWhen": "04;16", "messageIndexEnable": "false"})
    assert from_properties(StoreConfig, to_properties(config)) == config


def test_queue_files_hold_whole_units() -> None:
    assert (
        from_properties(StoreConfig, {"mappedFileSizeConsumeQueue": "1001"}).queue_file_bytes
        == 1020
    )


def test_the_commit_log_lies_below_the_root() -> None:
    config = StoreConfig(root_text="/x/store")
    assert config.commitlog_dir == Path("/x/store/commitlog")
    assert StoreConfig(commitlog_text="/y").commitlog_dir == Path("/y")


@pytest.mark.parametrize(("text", "hours"), [("04", (4,)), ("4;16", (4, 16)), ("00; 23", (0, 23))])
def test_hours_of_deletion(text: str, hours: tuple[int, ...]) -> None:
    assert StoreConfig(delete_when_hours=text).clean_hours == hours


@pytest.mark.parametrize(
    "properties",
    [
        {"deleteWhen": "24"},
        {"deleteWhen": "four"},
        {"storePathCommitLog": "/a,/b"},
        {"flushDiskType": "SYNC"},
        {"mappedFileSizeCommitLog": "4294967296"},
        pytest.param({"maxTransferBytesOnMessageInMemory": "16711681"}, marks=BEYOND_A_FRAME),
    ],
)
def test_illegal_store_values(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        from_properties(StoreConfig, properties)


def test_every_option_is_described() -> None:
    for item in options(StoreConfig):
        assert item.doc.endswith(".")
        assert item.kind in (int, float, bool, str)
        assert isinstance(item.default, item.kind)
