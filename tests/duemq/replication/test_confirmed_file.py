"""The offset that a member has confirmed, in a file next to its store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duemq.replication.confirmed_file import ConfirmedFile
from duemq.replication.controller.identity import MemberIdentity
from tests.support.group_host import GROUP

ME = MemberIdentity(GROUP, 1)


@pytest.mark.finding("3D8")
def test_a_log_that_ends_earlier_is_an_old_copy(tmp_path: Path) -> None:
    root = tmp_path / "store"
    file = ConfirmedFile(root, ME)
    assert file.refusal(None) == file.refusal(0) == ""
    file.record(ME, 500)
    file.record(ME, 400)  # the offset never decreases
    found = ConfirmedFile(root, ME)
    assert found.offset == 500
    assert "not open" in found.refusal(None)
    assert "ends at 499" in found.refusal(499)
    assert "store.confirmed" in found.refusal(499)
    assert found.refusal(500) == found.refusal(501) == ""
    found.truncate(ME, 450)
    assert ConfirmedFile(root, ME).refusal(450) == ""
    assert ConfirmedFile(root, ME).refusal(449)


@pytest.mark.parametrize("identity", [None, replace(ME, broker_id=2)])
def test_the_file_of_another_member_is_ignored(
    tmp_path: Path, identity: MemberIdentity | None
) -> None:
    root = tmp_path / "store"
    ConfirmedFile(root, ME).record(ME, 500)
    assert ConfirmedFile(root, identity).refusal(0) == ""


@pytest.mark.parametrize(
    "text", ["", "x", "DefaultCluster#broker-a#1#-5", "DefaultCluster#broker-a#1#" + "9" * 30]
)
def test_a_malformed_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "store.confirmed").write_text(text)
    assert ConfirmedFile(tmp_path / "store", ME).offset == 0


def test_a_directory_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = ConfirmedFile(tmp_path / "absent" / "store", ME)
    file.record(ME, 5)
    file.record(ME, 6)
    assert caplog.text.count("cannot be written") == 1
    assert file.offset == 0
