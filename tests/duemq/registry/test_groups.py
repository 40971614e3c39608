"""The group manager: its file, automatic creation, changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.registry.config_file import ConfigFile
from duemq.registry.groups import DEFAULT_GROUPS, GroupConfig, GroupManager
from duemq.registry.table_file import TableFile
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore, RequestError
from tests.support.golden_stores import copy_golden_store
from tests.support.no_journal import group_journal


def manager(root: Path, *, auto_create: bool = True) -> GroupManager:
    file = ConfigFile(root / "subscriptionGroup.json")
    groups = GroupManager(file, FakeClock(), auto_create=auto_create, journal=group_journal())
    groups.load()
    return groups


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_apaches_file_is_read(version: str, tmp_path: Path) -> None:
    groups = manager(copy_golden_store(f"apache-{version}-clean", tmp_path) / "config")
    assert groups.find("golden_consumer") == GroupConfig(name="golden_consumer")
    assert groups.version.counter == 2
    assert {group.name for group in groups} == {*DEFAULT_GROUPS, "golden_consumer", "golden_pull"}


def test_apaches_file_is_written_byte_for_byte(tmp_path: Path) -> None:
    config = copy_golden_store("apache-5.3.3-clean", tmp_path) / "config"
    text = (config / "subscriptionGroup.json").read_text()
    assert json_dialect.dumps(manager(config).to_json()) == text


def test_unknown_members_survive_a_change(tmp_path: Path) -> None:
    data = {
        "forbiddenTable": {"g": {"T": 1}},
        "later": 1,
        "subscriptionGroupTable": {"g": {"groupName": "g", "zone": "z"}},
    }
    path = tmp_path / "subscriptionGroup.json"
    path.write_text(json_dialect.dumps(data))
    asyncio.run(manager(tmp_path).update([GroupConfig(name="g", consume_enable=False)]))
    written = TableFile(ConfigFile(path), "subscriptionGroupTable").load(dict)
    assert written is not None
    assert (written["forbiddenTable"], written["later"]) == ({"g": {"T": 1}}, 1)
    assert written["subscriptionGroupTable"]["g"]["zone"] == "z"
    assert written["subscriptionGroupTable"]["g"]["consumeEnable"] is False


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"subscriptionGroupTable":[1]}',
        '{"subscriptionGroupTable":{"g":5}}',
        '{"subscriptionGroupTable":{"g":{"retryMaxTimes":"many"}}}',
        '{"subscriptionGroupTable":{"g":{"attributes":[1]}}}',
        '{"forbiddenTable":[1]}',
    ],
)
def test_a_file_that_cannot_be_used_stops_the_broker(tmp_path: Path, text: str) -> None:
    (tmp_path / "subscriptionGroup.json").write_text(text)
    with pytest.raises(CorruptStore, match=r"subscriptionGroup\.json"):
        manager(tmp_path)


@pytest.mark.parametrize(
    ("name", "auto_create", "created"),
    [
        ("g", True, True),
        ("g", False, False),
        ("CID_RMQ_SYS_x", False, True),
        ("TOOLS_CONSUMER", False, True),
        ("a b", True, False),
        ("", True, False),
        ("x" * 121, True, False),
    ],
)
def test_use_creates_a_group(tmp_path: Path, name: str, auto_create: bool, created: bool) -> None:
    groups = manager(tmp_path, auto_create=auto_create)
    assert (groups.find_or_create(name) is not None) is created
    assert (groups.find(name) is not None) is created


def test_groups_created_by_use_are_written_by_the_next_save(tmp_path: Path) -> None:
    groups = manager(tmp_path)
    groups.persist()
    groups.find_or_create("g")
    assert manager(tmp_path).find("g") is None
    asyncio.run(groups.save())
    assert manager(tmp_path).find("g") == GroupConfig(name="g")


def test_explicit_changes_are_written_at_once(tmp_path: Path) -> None:
    groups = manager(tmp_path)
    asyncio.run(groups.update([GroupConfig(name="g", retry_times_max=3)]))
    again = manager(tmp_path).find("g")
    assert again == GroupConfig(name="g", retry_times_max=3)
    assert asyncio.run(groups.delete("g")) is True
    assert asyncio.run(groups.delete("g")) is False
    assert manager(tmp_path).find("g") is None


@pytest.mark.parametrize(
    "group",
    [
        GroupConfig(name=""),
        GroupConfig(name="a b"),
        GroupConfig(name="x" * 121),
        GroupConfig(name="g", retry_queues=65_537),
        GroupConfig(name="g", retry_queues=1 << 40),
    ],
)
def test_illegal_groups_are_refused(tmp_path: Path, group: GroupConfig) -> None:
    """A heartbeat creates the retry topic of a group, which has so many queues."""
    groups = manager(tmp_path)
    with pytest.raises(RequestError) as refused:
        asyncio.run(groups.update([GroupConfig(name="good"), group]))
    assert refused.value.code == 29
    assert groups.find("good") is None


def test_every_change_is_a_new_version(tmp_path: Path) -> None:
    groups = manager(tmp_path)
    groups.find_or_create("g")
    groups.find_or_create("g")
    asyncio.run(groups.update([GroupConfig(name="h")]))
    asyncio.run(groups.delete("h"))
    assert groups.version.counter == 3


def test_a_refused_save_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError("full")

    groups = manager(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(json_dialect, "write_config", full)
        with pytest.raises(OSError, match="full"):
            asyncio.run(groups.save())
        with pytest.raises(RequestError, match="full"):
            asyncio.run(groups.update([GroupConfig(name="g")]))
    assert groups.find("g") is None
    asyncio.run(groups.save())
    assert (tmp_path / "subscriptionGroup.json").exists()


@pytest.mark.finding("D5")
def test_unknown_attributes_are_refused_with_code_1(tmp_path: Path) -> None:
    groups = manager(tmp_path)
    with pytest.raises(RequestError, match="there is no attribute") as refused:
        asyncio.run(groups.update([GroupConfig(name="g", attributes={"+priority": "50"})]))
    assert refused.value.code == 1
    assert groups.find("g") is None


@pytest.mark.finding("E8")
def test_an_explicit_change_also_writes_groups_that_were_only_used(tmp_path: Path) -> None:
    groups = manager(tmp_path)
    groups.persist()
    groups.find_or_create("used")
    asyncio.run(groups.update([GroupConfig(name="set")]))
    groups.find_or_create("later")
    asyncio.run(groups.update([GroupConfig(name="set", retry_queues=2)]))
    again = manager(tmp_path)
    assert [again.find(name) for name in ("used", "later")] == [
        GroupConfig(name="used"),
        GroupConfig(name="later"),
    ]
    assert again.find("set") == GroupConfig(name="set", retry_queues=2)
    assert again.version == groups.version


@pytest.mark.finding("E8")
def test_the_number_of_groups_is_bounded_by_its_key(tmp_path: Path) -> None:
    groups = GroupManager(
        ConfigFile(tmp_path / "g.json"), FakeClock(), groups_max=9, journal=group_journal()
    )
    groups.load()
    asyncio.run(groups.update([GroupConfig(name="a")]))
    assert groups.find_or_create("b") is None
    with pytest.raises(RequestError, match="consumerGroupsMax=9"):
        asyncio.run(groups.update([GroupConfig(name="b")]))
