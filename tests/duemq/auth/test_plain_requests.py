"""Requests 50 to 54: what they change in the files, when it is in force, what is refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from duemq.auth import access, secret_file
from duemq.auth.plain_requests import split
from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq_common.request import Response
from tests.support.running_broker import BrokerClient, connected, running, small

TEXT = """
globalWhiteRemoteAddresses: [10.1.1.1]
accounts:
  - {accessKey: admin12, secretKey: admin-secret, admin: true}
  - accessKey: alice12
    secretKey: alice-secret
    defaultTopicPerm: DENY
    topicPerms: [orders=PUB]
  - {accessKey: carol12, secretKey: carol-secret}
"""
ADMIN = Credentials("admin12", "admin-secret")
ALICE = Credentials("alice12", "alice-secret")
BOB = Credentials("bob12345", "bob-secret")
NEW = {"accessKey": BOB.access_key, "secretKey": BOB.secret, "topicPerms": "orders=PUB,x=SUB"}
Work = Callable[[Broker, BrokerClient, Path], Awaitable[None]]


def home_of(tmp_path: Path) -> Path:
    return tmp_path / "rmq" / "conf"


def run(tmp_path: Path, work: Work, *, more: str = "") -> None:
    """Run a broker with the accounts of `TEXT`, and `work` as its administrator."""
    conf = home_of(tmp_path)
    for path, text in ((conf / "plain_acl.yml", TEXT), (conf / "acl" / "more.yml", more)):
        if text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o640)
    keys = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "rmq")}

    async def main() -> None:
        async with (
            running(small(tmp_path, **keys)) as (broker, _),
            connected(broker.address, ADMIN) as admin,
        ):
            await work(broker, admin, conf / "plain_acl.yml")

    asyncio.run(main())


def loaded(path: Path) -> Any:
    return yaml.safe_load(text_in(path))


def text_in(path: Path) -> str:
    return path.read_text()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def code_of_send(broker: Broker, credentials: Credentials) -> int:
    async with connected(broker.address, credentials) as client:
        return (await client.send("orders", b"x")).code


def test_a_new_account_is_in_force_and_in_the_file_at_once(tmp_path: Path) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        assert await code_of_send(broker, BOB) == 1
        assert (await admin.call(50, NEW | {"defaultGroupPerm": "SUB"})).code == 0
        assert await code_of_send(broker, BOB) == 0
        found = loaded(path)
        assert found["accounts"][-1] == {
            "accessKey": "bob12345",
            "secretKey": "bob-secret",
            "admin": False,
            "defaultGroupPerm": "SUB",
            "topicPerms": ["orders=PUB", "x=SUB"],
        }
        [version] = found["dataVersion"]
        assert version["counter"] == 1
        assert mode_of(path) == 0o640
        assert not list(path.parent.glob("*.tmp"))

    run(tmp_path, work)


def test_a_change_keeps_what_it_does_not_name_and_the_account_moves_to_the_end(
    tmp_path: Path,
) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        change = {"accessKey": "alice12", "secretKey": "other-secret", "groupPerms": "g=SUB"}
        assert (await admin.call(50, change)).code == 0
        assert await code_of_send(broker, ALICE) == 1
        assert await code_of_send(broker, Credentials("alice12", "other-secret")) == 0
        found = loaded(path)["accounts"]
        assert [account["accessKey"] for account in found] == ["admin12", "carol12", "alice12"]
        assert found[-1] == {
            "accessKey": "alice12",
            "secretKey": "other-secret",
            "admin": False,
            "defaultTopicPerm": "DENY",
            "topicPerms": ["orders=PUB"],
            "groupPerms": ["g=SUB"],
        }

    run(tmp_path, work)


def test_a_deleted_account_is_refused_at_once_also_on_an_open_connection(tmp_path: Path) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        async with connected(broker.address, ALICE) as alice:
            assert (await alice.send("orders", b"x")).code == 0
            assert (await admin.call(51, {"accessKey": "alice12"})).code == 0
            assert (await alice.send("orders", b"x")).code == 1
        assert "alice12" not in text_in(path)
        again = await admin.call(51, {"accessKey": "alice12"})
        assert (again.code, again.remark) == (
            210,
            "The accesskey[alice12] corresponding to accessConfig has been deleted failed.",
        )

    run(tmp_path, work)


def test_an_account_is_changed_in_the_file_that_has_it(tmp_path: Path) -> None:
    more = "accounts:\n- {accessKey: dave1234, secretKey: dave-secret}\n"

    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        other = path.parent / "acl" / "more.yml"
        before = text_in(path)
        change = {"accessKey": "dave1234", "secretKey": "dave-secret", "topicPerms": "orders=PUB"}
        assert (await admin.call(50, change)).code == 0
        assert text_in(path) == before
        assert loaded(other)["accounts"][0]["topicPerms"] == ["orders=PUB"]
        assert (await admin.call(51, {"accessKey": "dave1234"})).code == 0
        assert loaded(other)["accounts"] == []
        response = await admin.call(52)
        assert response.fields is not None
        versions = json.loads(response.fields["allAclFileVersion"])
        assert {name: v["counter"] for name, v in versions.items()} == {str(other): 2, str(path): 0}
        assert json.loads(response.fields["version"])["counter"] == 0
        assert response.fields["brokerAddr"] == broker.address

    run(tmp_path, work, more=more)


def test_addresses_are_replaced_in_the_named_file(tmp_path: Path) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        async with connected(broker.address) as stranger:
            assert (await stranger.send("orders", b"x")).code == 1
            change = {"globalWhiteAddrs": "127.0.0.*,10.0.0.1", "aclFileFullPath": str(path)}
            assert (await admin.call(53, change)).code == 0
            assert loaded(path)["globalWhiteRemoteAddresses"] == ["127.0.0.*", "10.0.0.1"]
            assert (await stranger.send("orders", b"x")).code == 0
            assert (await admin.call(53, {"globalWhiteAddrs": ""})).code == 0
            assert (await stranger.send("orders", b"x")).code == 1

    run(tmp_path, work)


def test_accounts_are_listed_as_plain_access_configs(tmp_path: Path) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        body = (await admin.call(54)).body
        found = json.loads(bytes(body))
        assert found["globalWhiteAddrs"] == ["10.1.1.1"]
        assert found["plainAccessConfigs"][1] == {
            "accessKey": "alice12",
            "admin": False,
            "defaultTopicPerm": "DENY",
            "secretKey": "alice-secret",
            "topicPerms": ["orders=PUB"],
        }

    run(tmp_path, work)


INVALID: list[tuple[int, dict[str, str], tuple[int, str]]] = [
    (50, {"secretKey": "long-enough"}, (209, "accessKey=null and")),
    (50, {"accessKey": "short", "secretKey": "long-enough"}, (209, "accessKey=short and")),
    (50, {"accessKey": "erin1234", "secretKey": "short"}, (209, "secretKey=short cannot be")),
    (50, {"accessKey": "erin1234"}, (209, "secretKey=null cannot be null")),
    (50, NEW | {"topicPerms": "orders"}, (209, "format error for orders")),
    (50, NEW | {"topicPerms": "orders=PUP"}, (209, "permission error for orders=PUP")),
    (50, NEW | {"groupPerms": ""}, (209, "format error for .")),
    (50, NEW | {"defaultTopicPerm": "ALL"}, (209, "'ALL' is not PUB")),
    (50, NEW | {"whiteRemoteAddress": "10.0.0"}, (209, "not an IP address")),
    (51, {}, (210, "The accesskey[null] corresponding")),
    (53, {}, (211, "The globalWhiteAddresses[null] has been")),
    (53, {"globalWhiteAddrs": "10.0.0"}, (211, "not an IP address")),
    (53, {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/x.yml"}, (211, "updated failed")),
    (
        53,
        {"globalWhiteAddrs": "*", "aclFileFullPath": "{conf}/../evil.yml"},
        (211, "updated failed"),
    ),
    (
        53,
        {"globalWhiteAddrs": "*", "aclFileFullPath": "{conf}/tools.yml"},
        (211, "updated failed"),
    ),
]


def test_an_invalid_change_changes_nothing(tmp_path: Path) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        for name in ("tools.yml", "../evil.yml"):
            write(path.parent / name, "accounts: []\n")
        before, folder = text_in(path), str(path.parent)
        for code, fields, (expected, remark) in INVALID:
            text = {name: value.replace("{conf}", folder) for name, value in fields.items()}
            response = await admin.call(code, text)
            assert response.code == expected, (code, fields, response)
            assert remark in (response.remark or "")
            assert text_in(path) == before
            assert text_in(path.parent / "../evil.yml") == "accounts: []\n"
        assert await code_of_send(broker, BOB) == 1

    run(tmp_path, work)


@pytest.mark.parametrize("code", [50, 51, 52, 53, 54])
def test_only_administrators_manage_accounts(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        before = text_in(path)
        fields = {"accessKey": "alice12", "secretKey": "alice-secret", "admin": "true"}
        fields |= {"globalWhiteAddrs": "*", "aclFileFullPath": str(path)}
        async with connected(broker.address, ALICE) as alice:
            found = await alice.call(code, fields)
        assert found.code == 1
        assert f"Need admin permission for request code={code}" in (found.remark or "")
        assert not found.body
        assert text_in(path) == before

    with caplog.at_level(logging.INFO, logger="duemq.audit"):
        run(tmp_path, work)
    assert '"event":"refused","user":"alice12"' in caplog.text


def test_the_audit_log_names_the_changed_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        await admin.call(50, NEW)

    with caplog.at_level(logging.INFO, logger="duemq.audit"):
        run(tmp_path, work)
    [line] = [json.loads(r.message) for r in caplog.records if r.name == "duemq.audit"]
    assert (line["event"], line["user"], line["code"]) == ("allowed", "admin12", 50)
    assert (line["account"], line["action"]) == ("bob12345", "Update")
    assert "bob-secret" not in caplog.text


def test_a_file_under_an_editor_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "POLL_MS", 3_600_000)  # the test polls

    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        edited = TEXT + "  - {accessKey: half1234, secretKey: half-secret}\n"
        write(path, edited)
        found = await admin.call(50, NEW)
        assert (found.code, "not loaded yet" in (found.remark or "")) == (209, True)
        assert text_in(path) == edited
        assert broker.access is not None
        for _ in range(2):
            await broker.access.poll()
        assert (await admin.call(50, NEW)).code == 0
        assert [a["accessKey"] for a in loaded(path)["accounts"]][-2:] == ["half1234", "bob12345"]

    run(tmp_path, work)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_refuses_changes_nothing(tmp_path: Path, call: str) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        before = text_in(path)
        error = OSError(28, "No space left on device")
        with patch.object(secret_file.os, call, side_effect=error):  # type: ignore[attr-defined]
            found = await admin.call(50, NEW)
        assert (found.code, "No space left" in (found.remark or "")) == (209, True)
        assert text_in(path) == before
        assert await code_of_send(broker, BOB) == 1
        assert (await admin.call(50, NEW)).code == 0

    run(tmp_path, work)


def test_a_change_without_a_sync_of_the_directory_is_in_force_and_reported(tmp_path: Path) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        error = OSError(5, "Input/output error")
        with patch.object(secret_file, "sync_directory", side_effect=error):
            found = await admin.call(50, NEW)
        assert (found.code, "power failure" in (found.remark or "")) == (209, True)
        assert NEW["accessKey"] in text_in(path)
        assert await code_of_send(broker, BOB) == 0

    run(tmp_path, work)


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    async def work(broker: Broker, admin: BrokerClient, path: Path) -> None:
        made = [NEW | {"accessKey": f"user-{number:03}"} for number in range(20)]
        responses: list[Response] = await asyncio.gather(*(admin.call(50, each) for each in made))
        assert {response.code for response in responses} == {0}
        found = {account["accessKey"] for account in loaded(path)["accounts"]}
        assert {each["accessKey"] for each in made} <= found
        assert loaded(path)["dataVersion"][0]["counter"] == 20

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("", [""]), (",", []), ("a", ["a"]), ("a,,", ["a"]), (",a", ["", "a"]), ("a,b", ["a", "b"])],
)
def test_lists_are_split_as_java_splits_them(text: str, parts: list[str]) -> None:
    assert split(text) == parts
