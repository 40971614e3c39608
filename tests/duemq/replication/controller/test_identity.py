"""Files of the id that the controller assigned."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.replication.controller.identity import (
    FILE_BYTES_MAX,
    IdentityFiles,
    MemberIdentity,
    check_group,
)
from duemq.replication.controller.requests import GroupName
from duemq_common.errors import ConfigError, CorruptStore

GROUP = GroupName("DefaultCluster", "broker-a")
APPLIED = MemberIdentity(GROUP, 2, "10.0.0.1:10911;1700000000000")
ASSIGNED = MemberIdentity(GROUP, 2)


@pytest.fixture
def files(tmp_path: Path) -> IdentityFiles:
    return IdentityFiles(tmp_path / "brokerIdentity")


def test_there_is_no_id_at_first(files: IdentityFiles) -> None:
    assert files.load(GROUP) is None


def test_an_application_is_text_of_apache(files: IdentityFiles) -> None:
    files.store(APPLIED)
    text = (files.path.parent / "brokerIdentity-temp").read_text()
    assert text == "DefaultCluster#broker-a#2#10.0.0.1:10911;1700000000000"
    assert files.load(GROUP) == APPLIED
    assert not APPLIED.is_assigned


def test_an_assigned_id_replaces_the_application(files: IdentityFiles) -> None:
    files.store(APPLIED)
    files.store(ASSIGNED)
    assert files.path.read_text() == "DefaultCluster#broker-a#2"
    assert not files.temporary_path.exists()
    assert files.load(GROUP) == ASSIGNED


def test_after_a_crash_between_the_two_steps_the_assigned_id_counts(files: IdentityFiles) -> None:
    files.store(MemberIdentity(GROUP, 3))
    files.store(APPLIED)
    assert files.load(GROUP) == MemberIdentity(GROUP, 3)


def test_an_application_can_be_dropped(files: IdentityFiles) -> None:
    files.store(APPLIED)
    files.drop_application()
    files.drop_application()
    assert files.load(GROUP) is None


@pytest.mark.parametrize("temporary", [False, True], ids=["assigned", "applied"])
def test_a_cut_file_is_an_error_and_never_a_reason_for_a_new_id(
    files: IdentityFiles, temporary: bool
) -> None:
    identity = APPLIED if temporary else MemberIdentity(GROUP, 2)
    files.store(identity)
    path = files.temporary_path if temporary else files.path
    text = path.read_text()
    least = text.rindex("#") + 1  # a shorter check code is one that the controller refuses
    for size in range(least + 1):
        path.write_text(text[:size])
        with pytest.raises(CorruptStore, match=r"brokerIdentity.*cluster#brokerName#brokerId"):
            files.load(GROUP)


@pytest.mark.parametrize(
    "text",
    ["c#n#0", "c#n#-1", "c#n#x", "c#n#1#more", "c##1", "#n#1", "c#n#9223372036854775808", "c#n#²"],
)
def test_what_is_no_id_is_an_error(files: IdentityFiles, text: str) -> None:
    files.path.write_text(text)
    with pytest.raises(CorruptStore):
        files.load(GroupName("c", "n"))


def test_bytes_and_long_files_are_errors(files: IdentityFiles) -> None:
    for data in (b"\xff#\xfe#1", b"c#n#" + b"1" * 5_000):
        files.path.write_bytes(data)
        with pytest.raises(CorruptStore):
            files.load(GroupName("c", "n"))


def test_a_file_of_the_maximum_size_is_read(files: IdentityFiles) -> None:
    group = GroupName("c" * (FILE_BYTES_MAX - 4), "n")
    files.store(MemberIdentity(group, 2))
    assert files.path.stat().st_size == FILE_BYTES_MAX
    assert files.load(group) == MemberIdentity(group, 2)


@pytest.mark.parametrize(
    "other", [GroupName("Other", "broker-a"), GroupName("DefaultCluster", "b")]
)
def test_files_of_another_group_stop_the_start(files: IdentityFiles, other: GroupName) -> None:
    files.store(ASSIGNED)
    with pytest.raises(ConfigError, match=r"belongs to the group DefaultCluster#broker-a"):
        files.load(other)


def test_names_with_the_separator_are_refused() -> None:
    check_group(GROUP)
    for key, group in (
        ("brokerName", GroupName("c", "a#b")),
        ("brokerClusterName", GroupName("c#", "a")),
    ):
        with pytest.raises(ConfigError, match=key):
            check_group(group)
