"""The file of accounts: round trip, and files that stop the start."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from duemq.auth import accounts_file, secret_file
from duemq.auth.accounts_file import open_accounts, read_accounts, write_accounts
from duemq.auth.model import (
    Acl,
    Action,
    Decision,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    User,
    UserType,
)
from duemq.auth.secret_file import NotSynced
from duemq_common.errors import CorruptStore

TOPIC = Resource(ResourceType.TOPIC, "orders")
ENTRY = PolicyEntry(TOPIC, (Action.PUB, Action.SUB), Decision.ALLOW, ("10.0.0.0/8",))
USERS = {"root": User("root", "é\n", UserType.SUPER), "alice": User("alice", "secret")}
ACLS = {"alice": Acl((ENTRY,), (ENTRY,))}


def whole(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.json"
    write_accounts(path, USERS, ACLS)
    return path


def test_what_was_written_is_read_and_only_the_owner_may(tmp_path: Path) -> None:
    path = whole(tmp_path)
    assert read_accounts(path) == (USERS, ACLS)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == [path.name, "sums"]


def test_without_a_file_there_are_no_accounts(tmp_path: Path) -> None:
    assert read_accounts(tmp_path / "none") == ({}, {})


def test_every_change_is_on_the_disk_before_it_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = open_accounts(tmp_path / "accounts.json")
    accounts.create_user(User("bob", "secret"))
    accounts.merge_acl("bob", {PolicyType.CUSTOM: [ENTRY]})
    again = open_accounts(tmp_path / "accounts.json")
    assert (again.user("bob"), again.acl("bob")) == (User("bob", "secret"), Acl((ENTRY,)))

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(secret_file.os, "fsync", full)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="No space"):
        accounts.delete_user("bob")
    assert accounts.user("bob") is not None
    assert open_accounts(tmp_path / "accounts.json").user("bob") is not None


def fails_for_directories(descriptor: int) -> None:
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EIO, "Input/output error")


def test_a_change_without_a_sync_of_the_directory_is_in_force_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the change: a deleted user must not seem to exist until the restart."""
    accounts = open_accounts(tmp_path / "accounts.json")
    accounts.create_user(User("bob", "secret"))
    monkeypatch.setattr(os, "fsync", fails_for_directories)
    version = accounts.version
    with pytest.raises(NotSynced, match="Input/output error"):
        accounts.delete_user("bob")
    assert open_accounts(tmp_path / "accounts.json").user("bob") is None
    assert (accounts.user("bob"), accounts.version) == (None, version + 1)


def test_a_file_keeps_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may recover access; the broker's user must be able to read the result."""
    path = whole(tmp_path)
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(os, "fchown", lambda descriptor, *ids: owners.append(ids))
    write_accounts(path, USERS, ACLS)
    assert (path.stat().st_uid, -1) in owners


def test_a_torn_file_stops_the_start_wherever_it_was_cut(tmp_path: Path) -> None:
    path = whole(tmp_path)
    data = path.read_bytes()
    for size in range(len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptStore, match="Repair it"):
            read_accounts(path)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o666, 0o644])
def test_a_file_that_others_may_use_stops_the_start(tmp_path: Path, mode: int) -> None:
    path = whole(tmp_path)
    path.chmod(mode)
    with pytest.raises(CorruptStore, match=f"chmod 600 {path}"):
        read_accounts(path)


def test_what_is_no_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(CorruptStore, match="cannot be read"):
        read_accounts(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(CorruptStore, match="not a regular file"):
        read_accounts(pipe)


def edited(change: Any) -> bytes:
    value = json.loads(accounts_file.encode(USERS, ACLS))
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: v.update(format=2), "format 2"),
        (lambda v: v.pop("acls"), "acls is missing"),
        (lambda v: v.update(extra=1), "extra is unknown"),
        (lambda v: v["users"].append(v["users"][0]), "twice"),
        (lambda v: v["users"][0].pop("userStatus"), "userStatus is missing"),
        (lambda v: v["users"][0].update(userType="Sup"), "userType is 'Sup'"),
        (lambda v: v["users"][0].update(password=" "), "password is blank"),
        (lambda v: v["users"][0].update(username=""), "blank"),
        (lambda v: v["users"].append("alice"), "user 3 is not an object"),
        (lambda v: v.update(users={}), "users is not a list"),
        (lambda v: v["acls"].append(v["acls"][0]), "twice"),
        (lambda v: v["acls"][0].update(subject="User:eve"), "eve is not a user"),
        (lambda v: v["acls"][0].update(subject="alice"), "subject is invalid"),
        (lambda v: v["acls"][0]["policies"][0].update(policyType="x"), "policyType"),
        (lambda v: entry_of(v).update(actions=["Pub", "Sbu"]), "normal form"),
        (lambda v: entry_of(v).update(actions=[]), "actions is empty"),
        (lambda v: entry_of(v).update(decision="Alow"), "decision"),
        (lambda v: entry_of(v).update(sourceIps=["10.0.0.0/99"]), "source ip is invalid"),
        (lambda v: entry_of(v).update(sourceIps="10.0.0.1"), "not a list"),
        (lambda v: entry_of(v).update(resource="Tpoic:orders"), "resource"),
    ],
)
def test_a_half_edited_file_stops_the_start(tmp_path: Path, change: Any, why: str) -> None:
    path = whole(tmp_path)
    path.write_bytes(edited(change))
    with pytest.raises(CorruptStore, match=why):
        read_accounts(path)


def entry_of(value: Any) -> Any:
    return value["acls"][0]["policies"][0]["entries"][0]


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"format":1,"format":1}', b"[" * 100_000])
def test_what_is_no_json_object_stops_the_start(tmp_path: Path, data: bytes) -> None:
    path = whole(tmp_path)
    path.write_bytes(data)
    with pytest.raises(CorruptStore):
        read_accounts(path)
