"""The configuration section of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.config import from_properties, options, to_properties
from duemq_common.errors import ConfigError
from message_store.config import StoreConfig

BEYOND_A_FRAME = pytest.mark.finding("E5")  # a frame of this size cannot be sent


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
