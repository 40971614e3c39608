"""A broker with accounts: sends, administration of accounts, restarts, configuration."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from duemq.auth import secret_file
from duemq.auth.accounts_file import ACCOUNTS_FILE
from duemq.auth.gate import Gate
from duemq.auth.signature import Credentials
from duemq.configuration.settings import settings_from
from duemq.net.bound_socket import bind as bind_port
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import ConfigError, CorruptStore
from duemq_common.request import Response
from tests.support.running_broker import BrokerClient, connected, running, small

ROOT = Credentials("root", "root-secret")
ALICE = Credentials("alice", "alice-secret")
FIRST = json.dumps({"username": "root", "password": "root-secret"})
ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": FIRST,
    "embeddedNamesrvEnable": "true",
    "embeddedNamesrvPort": "0",
}
DENIED = ResponseCode.NO_PERMISSION


def policy(resource: str, *actions: str) -> bytes:
    entry = {"resource": resource, "actions": actions, "decision": "Allow"}
    return json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()


def user(**values: str) -> bytes:
    return json.dumps(values).encode()


async def grant(root: BrokerClient) -> None:
    made = await root.call(3001, {"username": "alice"}, user(password="alice-secret"))
    assert made.code == 0, made.remark
    for body in (policy("Topic:T", "Pub", "Sub"), policy("Group:g", "Sub")):
        assert (await root.call(3006, {"subject": "User:alice"}, body)).code == 0


def body_of(response: Response) -> Any:
    return json.loads(bytes(response.body)) if response.body else None


def test_accounts_send_and_consume_what_they_may_also_after_a_restart(tmp_path: Path) -> None:
    async def use(address: str) -> None:
        async with connected(address, ALICE) as alice, connected(address) as stranger:
            assert (await alice.send("T", b"one")).code == 0
            assert (await alice.send("T", b"two")).code == 0
            assert (await alice.send("U", b"no")).code == DENIED
            assert (await alice.pull("T", 0)).code == 0
            assert (await alice.pull("T", 0, group="h")).code == DENIED
            assert (await stranger.send("T", b"no")).code == DENIED
            assert (await stranger.call(RequestCode.GET_BROKER_CONFIG)).code == DENIED
        async with connected(address, Credentials("alice", "wrong")) as liar:
            assert (await liar.send("T", b"no")).remark == "check signature failed."

    async def main() -> None:
        async with running(small(tmp_path, **ON)) as (broker, _):
            async with connected(broker.address, ROOT) as root:
                await grant(root)
            await use(broker.address)
        without_first = {key: ON[key] for key in ON if key != "initAuthenticationUser"}
        async with running(small(tmp_path, **without_first)) as (broker, _):
            await use(broker.address)

    asyncio.run(main())


def test_the_embedded_name_server_checks_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **ON)) as (broker, _):
            route = {"topic": "TBW102"}
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            async with connected(broker.namesrv_address) as stranger:
                assert (await stranger.call(code, route)).code == DENIED
                assert (await stranger.call(RequestCode.REGISTER_BROKER)).code == DENIED
            async with connected(broker.namesrv_address, ROOT) as root:
                assert (await root.call(code, route)).code == 0

    asyncio.run(main())


def test_changes_of_accounts_are_in_force_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, **ON)) as (broker, _),
            connected(broker.address, ROOT) as root,
            connected(broker.address, ALICE) as alice,
        ):
            await grant(root)
            assert (await alice.send("T", b"1")).code == 0
            one = {"subject": "User:alice", "resource": "Topic:T"}
            assert (await root.call(3008, one)).code == 0
            assert (await alice.send("T", b"1")).code == DENIED
            subject = {"subject": "User:alice"}
            await root.call(3007, subject, policy("Topic:*", "Pub"))
            assert (await alice.send("T", b"1")).code == 0
            await root.call(3002, {"username": "alice"}, user(userStatus="disable"))
            assert (await alice.send("T", b"1")).remark == "User:alice is disabled."
            await root.call(3002, {"username": "alice"}, user(userStatus="enable", password="new"))
            assert (await alice.send("T", b"1")).remark == "check signature failed."
            await root.call(3003, {"username": "alice"})
            assert (await alice.send("T", b"1")).remark == "User:alice is not found."

    asyncio.run(main())


def test_the_kernel_takes_sends_after_the_first_until_the_accounts_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, **ON)) as (broker, _),
            connected(broker.address, ROOT) as root,
            connected(broker.address, ALICE) as alice,
        ):
            await grant(root)
            assert (await alice.send("T", b"1", UNIQ_KEY="7F00")).code == 0
            decide = Gate.__call__
            with patch.object(Gate, "__call__", autospec=True, side_effect=decide) as decided:
                for _ in range(3):
                    assert (await alice.send("T", b"1", UNIQ_KEY="7F00")).code == 0
                assert decided.call_count == 0
                await root.call(3007, {"subject": "User:alice"}, policy("Topic:T", "Sub"))
                assert (await alice.send("T", b"1", UNIQ_KEY="7F00")).code == DENIED
                assert decided.call_count == 2

    asyncio.run(main())


BLANK = (ResponseCode.INVALID_PARAMETER, "The username is blank")
CREATE_SUPER = (ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
UPDATE_SUPER = (ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user")
CHANGE_SUPER = (DENIED, "The super user can only be update by super user")


BOUNDED: list[tuple[int, dict[str, str], bytes, tuple[int, str | None]]] = [
    (3001, {}, b"{}", BLANK),
    (3001, {"username": "b"}, user(password="x", userType="Super"), CREATE_SUPER),
    (3001, {"username": "b"}, b"[", (29, "the body is not a JSON object")),
    (3001, {"username": "alice"}, user(password="x"), (DENIED, "The user is existed")),
    (3002, {}, b"{}", BLANK),
    (3002, {"username": "b"}, b"{}", (DENIED, "The user is not exist")),
    (3002, {"username": "alice"}, user(userType="Super"), UPDATE_SUPER),
    (3002, {"username": "root"}, user(password="stolen"), CHANGE_SUPER),
    (3003, {"username": "root"}, b"", CHANGE_SUPER),
    (3004, {"username": " "}, b"", BLANK),
    (3006, {"subject": "alice"}, policy("Topic:T", "Pub"), (DENIED, None)),
    (
        3006,
        {"subject": "User:b"},
        policy("Topic:T", "Pub"),
        (DENIED, "The subject of User:b is not exist."),
    ),
    (3007, {"subject": "User:alice"}, b"{}", (DENIED, "The body of acl is null")),
    (3008, {"subject": "User:b"}, b"", (DENIED, "The subject is not exist.")),
    (3009, {"subject": "User:b"}, b"", (DENIED, "The subject is not exist.")),
]


def test_an_administrator_who_is_no_super_user_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, **ON)) as (broker, _),
            connected(broker.address, ROOT) as root,
            connected(broker.address, ALICE) as alice,
        ):
            await grant(root)
            subject = {"subject": "User:alice"}
            await root.call(3006, subject, policy("Cluster:DefaultCluster", "Update", "Get"))
            for code, fields, body, (expected, remark) in BOUNDED:
                response = await alice.call(code, fields, body)
                assert response.code == expected, (code, fields, response)
                assert remark in (None, response.remark)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "fields", "body", "why"),
    [
        (3001, {"username": "eve"}, user(password="x", userType="Super"), "create by super user"),
        (3002, {"username": "root"}, user(password="x"), "update by super user"),
        (3003, {"username": "root"}, b"", "update by super user"),
        (3007, {"subject": "User:eve"}, policy("Topic:T", "Pub"), "is not exist"),
    ],
)
def test_the_audit_log_has_each_refused_change_of_accounts(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: int,
    fields: dict[str, str],
    body: bytes,
    why: str,
) -> None:
    """The account may change accounts, but not this one."""

    async def main() -> None:
        async with (
            running(small(tmp_path, **ON)) as (broker, _),
            connected(broker.address, ROOT) as root,
            connected(broker.address, ALICE) as alice,
        ):
            await grant(root)
            cluster = policy("Cluster:DefaultCluster", "Update")
            await root.call(3006, {"subject": "User:alice"}, cluster)
            found = await alice.call(code, fields, body)
            assert found.code != 0
            line = json.loads(caplog.records[-1].getMessage())
            assert (line["event"], line["user"], line["code"]) == ("refused", "alice", code)
            assert line["account"] == next(iter(fields.values()))
            assert why in line["why"]
            assert why in (found.remark or "")

    caplog.set_level("INFO", logger="duemq.audit")
    asyncio.run(main())


def test_a_change_that_a_power_failure_may_undo_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, **ON)) as (broker, _),
            connected(broker.address, ROOT) as root,
        ):
            error = OSError(5, "Input/output error")
            with patch.object(secret_file, "sync_directory", side_effect=error):
                made = await root.call(3001, {"username": "alice"}, user(password="alice-secret"))
            assert made.code == ResponseCode.SYSTEM_ERROR
            assert "power failure may undo" in (made.remark or "")
            assert (await root.call(3004, {"username": "alice"})).body

    asyncio.run(main())


def test_secrets_are_shown_to_super_users_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, **ON)) as (broker, _),
            connected(broker.address, ROOT) as root,
            connected(broker.address, ALICE) as alice,
        ):
            await grant(root)
            await root.call(3006, {"subject": "User:alice"}, policy("Cluster:*", "Get"))
            assert body_of(await root.call(3004, {"username": "alice"})) == {
                "password": "alice-secret",
                "userStatus": "enable",
                "userType": "Normal",
                "username": "alice",
            }
            assert body_of(await root.call(3004, {"username": "none"})) is None
            assert [u["username"] for u in body_of(await root.call(3005))] == ["alice", "root"]
            assert body_of(await root.call(3005, {"filter": "zz"})) is None
            shown = [body_of(await alice.call(3004, {"username": "root"}))]
            shown += body_of(await alice.call(3005, {"filter": ""}))
            assert {each["password"] for each in shown} == {""}
            config = bytes((await root.call(RequestCode.GET_BROKER_CONFIG)).body)
            assert b"root-secret" not in config

    asyncio.run(main())


def test_acls_are_listed_and_filtered(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path, **ON)) as (broker, _),
            connected(broker.address, ROOT) as root,
        ):
            await grant(root)
            whole = body_of(await root.call(3009, {"subject": "User:alice"}))
            assert body_of(await root.call(3010)) == [whole]
            assert body_of(await root.call(3010, {"subjectFilter": "zz"})) is None
            [part] = body_of(await root.call(3010, {"resourceFilter": "Group:"}))
            [entry] = part["policies"][0]["entries"]
            assert entry["resource"] == "Group:g"
            assert (await root.call(3008, {"subject": "User:alice"})).code == 0
            assert body_of(await root.call(3009, {"subject": "User:alice"})) is None

    asyncio.run(main())


def test_with_accounts_off_nothing_is_checked_and_no_account_can_be_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (_, stranger):
            assert (await stranger.send("T", b"x")).code == 0
            made = await stranger.call(3001, {"username": "eve"}, user(password="x"))
            assert made.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert not (tmp_path / "store" / "config" / ACCOUNTS_FILE).exists()

    asyncio.run(main())


def test_with_accounts_metrics_are_for_this_machine_only(tmp_path: Path) -> None:
    async def address_of(**keys: str) -> str:
        keys |= {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
        keys |= {"bindAddress": "0.0.0.0"}
        served: list[str] = []

        @contextmanager
        def bind(host: str, *args: object, **more: object) -> Any:
            served.append(host)
            with bind_port("127.0.0.1", 0) as bound:
                yield bound

        with patch("duemq.broker.http_ports.bind", bind):
            async with running(small(tmp_path, **keys)):
                return served[0]

    on = ON | {"metricsPromExporterHost": "0.0.0.0"}
    assert asyncio.run(address_of()) == "0.0.0.0"
    assert asyncio.run(address_of(**ON)) == "127.0.0.1"
    assert asyncio.run(address_of(**on)) == "0.0.0.0"


def test_a_damaged_accounts_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "store" / "config" / ACCOUNTS_FILE
    path.parent.mkdir(parents=True)
    path.write_text("{")
    path.chmod(0o600)

    async def main() -> None:
        async with running(small(tmp_path, **ON)):
            raise AssertionError("it started")

    with pytest.raises(CorruptStore, match="line 1, column 2"):
        asyncio.run(main())
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"authorizationEnabled": "true"}, "authenticationEnabled=true"),
        ({"authenticationWhitelist": "310,x"}, "request codes"),
        ({"authorizationWhitelist": "-1"}, "request codes"),
        ({"initAuthenticationUser": "{"}, "must be"),
        ({"initAuthenticationUser": '{"username":"a"}'}, "must be"),
        ({"initAuthenticationUser": '{"username":"a","password":" "}'}, "must be"),
        ({"innerClientAuthenticationCredentials": '{"accessKey":1,"secretKey":"x"}'}, "must be"),
        ({"aclEnable": "true"}, "rocketmqHome"),
        (
            {"aclEnable": "true", "rocketmqHome": "/", "authenticationEnabled": "true"},
            "only one of them",
        ),
        ({"migrateAuthFromV1Enabled": "true"}, "plain_acl"),
    ],
)
def test_invalid_keys_stop_the_start(keys: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        settings_from(keys)
    assert "password" not in str(caught.value).partition("must be")[0]
