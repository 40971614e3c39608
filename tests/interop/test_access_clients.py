"""Clients with accounts: valid signatures are accepted, wrong secrets refused."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duemq.auth.signature import Credentials
from duemq_common.codes import RequestCode
from tests.interop.checks import assert_accepted, assert_once, series
from tests.interop.programs import CLIENTS, go_program, java_command, python_command
from tests.interop.session import Client, ClientFailed, ClientSession, FreshSessions
from tests.support.accounts import KEYS, ROOT, Step, prepare, user_steps
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.requirements import Missing
from tests.support.server import Server

N = 4
TOPIC, GROUP = "orders", "billing"
CREDENTIALS = Credentials("alice12", "alice-secret")
ADMIN = Credentials("admin12", "admin-secret")
FOREIGN = Credentials(
    "foreign12", "geh\xe4m-\u0441\u0435\u043a\u0440\u0435\u0442-\u5bc6\u7801-\U0001f511"
)
PLAIN_ACL = f"""
accounts:
  - {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret}, admin: true}}
  - accessKey: {CREDENTIALS.access_key}
    secretKey: {CREDENTIALS.secret}
    topicPerms: [{TOPIC}=PUB|SUB]
    groupPerms: [{GROUP}=SUB]
  - accessKey: {FOREIGN.access_key}
    secretKey: "{FOREIGN.secret}"
    topicPerms: [{TOPIC}=PUB|SUB]
    groupPerms: [{GROUP}=SUB]
"""
PERMISSIONS = {f"Topic:{TOPIC}": ["Pub", "Sub"], f"Group:{GROUP}": ["Sub"]}
TOPIC_FIELDS = {
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def topics() -> Iterator[Step]:
    """Yield the requests that create the topics of a test."""
    for name in (TOPIC, f"%RETRY%{GROUP}"):
        yield RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC_FIELDS | {"topic": name}, b""


@pytest.fixture(scope="module", params=["plain_acl", "users"])
def checked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A broker with the accounts of ACL 1.0, then of ACL 2.0."""
    home = tmp_path_factory.mktemp("checked")
    if request.param == "users":
        with DueMQ(home, keys=KEYS) as server:
            users = [
                step
                for credentials in (CREDENTIALS, FOREIGN)
                for step in user_steps(credentials, PERMISSIONS)
            ]
            prepare(server.broker_address, ROOT, [*topics(), *users])
            yield server
        return
    conf = home / "rmq" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(PLAIN_ACL, "utf-8")
    (conf / "plain_acl.yml").chmod(0o600)
    keys = {"aclEnable": "true", "rocketmqHome": str(home / "rmq")}
    with DueMQ(home, keys=keys) as server:
        prepare(server.broker_address, ADMIN, topics())
        yield server


def go(server: Server, home: Path) -> Client:
    """Return rocketmq-client-go."""
    command = [str(go_program(CLIENTS / "go")), "session"]
    return ClientSession("go", command, namesrv=server.namesrv_address, home=home)


def cpp(server: Server, home: Path) -> Client:
    """Return librocketmq."""
    if importlib.util.find_spec("rocketmq") is None:
        raise Missing("the Python package rocketmq (with librocketmq) is not installed")
    command = python_command("cpp_client.py")
    return FreshSessions("cpp", command, namesrv=server.namesrv_address, home=home)


def java_4(server: Server, home: Path) -> Client:
    """Return Apache's client 4.9.7."""
    return _java("4.9.7", server, home)


def java_5(server: Server, home: Path) -> Client:
    """Return Apache's client 5.3.3."""
    return _java("5.3.3", server, home)


def _java(version: str, server: Server, home: Path) -> Client:
    command = java_command(version, home)
    return ClientSession("java", command, namesrv=server.namesrv_address, home=home)


@pytest.mark.sampled
@pytest.mark.parametrize("make", [go, cpp])
def test_a_right_secret_sends_and_consumes_and_a_wrong_one_is_refused(
    checked: Server, make: Callable[[Server, Path], Client], tmp_path: Path
) -> None:
    client = make(checked, tmp_path)
    credentials = {"access_key": CREDENTIALS.access_key, "secret_key": CREDENTIALS.secret}
    try:
        body = make.__name__
        sent = client.events("produce", "sent", topic=TOPIC, n=N, body=body, **credentials)
        assert_accepted(sent, N)
        options = {"topic": TOPIC, "group": GROUP, "until": N, **credentials}
        assert_once(client.events("push-consume", "message", **options), series(N, body))
        with pytest.raises(ClientFailed):
            client.run(
                "produce", topic=TOPIC, body=body, **credentials | {"secret_key": "wrong-secret"}
            )
    finally:
        client.close()
    refused = re.findall(
        r'"event":"refused","user":"(\w+)"', (checked.home / "broker.log").read_text()
    )
    assert set(refused) == {CREDENTIALS.access_key}


@pytest.mark.sampled
@pytest.mark.parametrize("make", [go, cpp, extended(java_4), java_5])
def test_a_secret_and_text_that_are_not_ascii_are_signed_in_utf_8(
    checked: Server, make: Callable[[Server, Path], Client], tmp_path: Path
) -> None:
    """A secret that differs in its last character only is refused."""
    client = make(checked, tmp_path)
    credentials = {
        "access_key": FOREIGN.access_key,
        "secret_key": FOREIGN.secret,
        "instance": "right",
    }
    try:
        body, tag = f"{make.__name__}-gr\xfc\xdfe", "gr\xfcn-\u7eff"
        sent = client.events(
            "produce", "sent", topic=TOPIC, n=N, body=body, tags=tag, **credentials
        )
        assert_accepted(sent, N)
        options = {"topic": TOPIC, "group": GROUP, "until": N, "tags": tag, **credentials}
        assert_once(client.events("push-consume", "message", **options), series(N, body))
        wrong = credentials | {
            "secret_key": FOREIGN.secret[:-1] + "\U0001f512",
            "instance": "wrong",
        }
        with pytest.raises(ClientFailed):
            client.run("produce", topic=TOPIC, body=body, send_timeout_ms=3_000, **wrong)
    finally:
        client.close()
