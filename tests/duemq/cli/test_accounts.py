"""`duemq accounts` on a stopped store, and commands with an account on a running broker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duemq.auth.accounts_file import ACCOUNTS_FILE, read_accounts, write_accounts
from duemq.auth.model import (
    Acl,
    Action,
    Decision,
    PolicyEntry,
    Resource,
    ResourceType,
    User,
    UserStatus,
    UserType,
)
from duemq.cli.app import app
from duemq.cli.exits import Exit
from duemq.cli.options import Target
from duemq.client import Admin
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError, UsageError
from message_store.recovery.store_lock import StoreLock
from tests.support.accounts import KEYS
from tests.support.running_broker import running, small

ENTRY = PolicyEntry(Resource(ResourceType.TOPIC, "T"), (Action.PUB,), Decision.ALLOW)
OLD = {"root": User("root", "lost", UserType.NORMAL, UserStatus.DISABLE), "a": User("a", "b")}
ACLS = {"a": Acl((ENTRY,))}


def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    (root / "config").mkdir(parents=True)
    write_accounts(root / "config" / ACCOUNTS_FILE, OLD, ACLS)
    return root


def run(root: Path, *words: str, secret: str = "new\n") -> tuple[int, str]:
    where = ("--set", f"storePathRootDir={root}")
    result = CliRunner().invoke(app, ["accounts", *words, *where], input=secret)
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["root", "second"])
def test_a_super_user_is_created_or_restored(tmp_path: Path, name: str) -> None:
    root = store(tmp_path)
    code, output = run(root, "set", name)
    assert code == 0, output
    users, acls = read_accounts(root / "config" / ACCOUNTS_FILE)
    assert users == OLD | {name: User(name, "new", UserType.SUPER)}
    assert acls == ACLS


def test_users_are_listed_without_secrets(tmp_path: Path) -> None:
    code, output = run(store(tmp_path), "list", "--json")
    assert code == 0
    rows = json.loads(output)
    assert [(row["user"], row["type"], row["has an ACL"]) for row in rows] == [
        ("a", "Normal", True),
        ("root", "Normal", False),
    ]
    assert "lost" not in output


@pytest.mark.parametrize(
    ("name", "secret", "code"), [("root", "", Exit.USAGE), (" ", "x", Exit.USAGE)]
)
def test_invalid_input_changes_nothing(tmp_path: Path, name: str, secret: str, code: int) -> None:
    root = store(tmp_path)
    assert run(root, "set", name, secret=secret)[0] == code
    assert read_accounts(root / "config" / ACCOUNTS_FILE) == (OLD, ACLS)


def test_a_running_broker_keeps_its_accounts(tmp_path: Path) -> None:
    root = store(tmp_path)
    lock = StoreLock(root)
    try:
        assert run(root, "set", "root")[0] == Exit.STORE
    finally:
        lock.release()
    assert read_accounts(root / "config" / ACCOUNTS_FILE) == (OLD, ACLS)


def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert run(tmp_path / "none", "set", "root")[0] == Exit.USAGE
    assert os.listdir(tmp_path) == []


def run_on_name_server(tmp_path: Path, port: int, *words: str) -> tuple[int, str]:
    keys = (f"kvConfigPath={tmp_path / 'namesrv' / 'kvConfig.json'}", f"listenPort={port}")
    where = ["--name-server", *(word for key in keys for word in ("--set", key))]
    result = CliRunner().invoke(app, ["accounts", *words, *where], input="new\n")
    return result.exit_code, result.output


def test_the_accounts_of_a_name_server_are_restored(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / ACCOUNTS_FILE
    path.parent.mkdir()
    write_accounts(path, OLD, ACLS)
    code, output = run_on_name_server(tmp_path, 0, "set", "root")
    assert code == 0, output
    assert read_accounts(path) == (OLD | {"root": User("root", "new", UserType.SUPER)}, ACLS)
    code, output = run_on_name_server(tmp_path, 0, "list", "--json")
    assert [row["type"] for row in json.loads(output)] == ["Normal", "Super"]


def test_a_running_name_server_keeps_its_accounts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as running_server:
        port = running_server.getsockname()[1]
        code, output = run_on_name_server(tmp_path, port, "set", "root")
    assert (code, "stop the name server" in output) == (Exit.USAGE, True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("keys", "code", "text"),
    [
        (("aclEnable=true", "rocketmqHome=/opt/rmq"), Exit.USAGE, "/opt/rmq/conf/plain_acl.yml"),
        ((), 0, "accounts have no effect"),
        (("authenticationEnabled=true",), 0, "is an enabled super user"),
    ],
)
def test_accounts_that_are_not_in_use_are_reported(
    tmp_path: Path, keys: tuple[str, ...], code: int, text: str
) -> None:
    options = [word for key in keys for word in ("--set", key)]
    found, output = run(store(tmp_path), "set", "root", *options)
    assert found == code
    assert text in " ".join(output.split())


def test_commands_sign_with_the_account_that_is_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root-secret\n")
    first = json.dumps({"username": "root", "password": "root-secret"})
    keys = {"authenticationEnabled": "true", "authorizationEnabled": "true"}

    async def config_of(admin: Admin, address: str) -> dict[str, str]:
        async with admin:
            return await admin.broker_config(address)

    async def main() -> None:
        properties = small(tmp_path, initAuthenticationUser=first, **keys)
        async with running(properties) as (broker, _):
            at = broker.address
            known = Target(broker=at, access_key="root", secret_file=secret)
            assert await config_of(known.admin(), at)
            with pytest.raises(RequestError, match="username cannot be null"):
                await config_of(Target(broker=at).admin(), at)

    asyncio.run(main())


def test_a_name_server_that_refuses_is_not_one_without_the_topic(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    name_server = {"embeddedNamesrvEnable": "true", "embeddedNamesrvPort": "0"}

    async def refusals(target: Target) -> set[str]:
        async with target.admin() as admin:
            found = set()
            for work in (admin.client.route("T"), admin.client.masters(), admin.members()):
                with pytest.raises(RequestError) as refused:
                    await work
                assert refused.value.code == ResponseCode.NO_PERMISSION
                found.add(refused.value.remark)
            return found

    async def main() -> None:
        async with running(small(tmp_path, **KEYS, **name_server)) as (broker, _):
            at = broker.namesrv_address
            assert await refusals(Target(namesrv=at)) == {
                "username cannot be null. The requests are not signed: give credentials "
                "(--access-key, --secret-file)"
            }
            named = Target(namesrv=at, access_key="root", secret_file=secret)
            assert await refusals(named) == {"check signature failed."}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("user", "file", "why"),
    [
        ("root", None, "give both"),
        ("", "secret", "give both"),
        ("root", "none", "No such file"),
        ("root", "empty", "is empty"),
    ],
)
def test_half_an_account_is_refused(tmp_path: Path, user: str, file: str | None, why: str) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "empty").write_text("\n")
    path = tmp_path / file if file else None
    with pytest.raises(UsageError, match=why):
        Target(access_key=user, secret_file=path).credentials()
