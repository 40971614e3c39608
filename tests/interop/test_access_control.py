"""Accounts with Apache's own clients and tools: signed sends and pulls, mqadmin's commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.admin_process import mqadmin
from tests.interop.apache import LOGBACK
from tests.interop.programs import java_command
from tests.interop.session import ClientFailed, ClientSession
from tests.support.accounts import KEYS, ROOT
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.server import Server

ALICE = ("alice", "alice-secret")
PLAIN = ("alice12", "plain-secret")
PLAIN_ACL = """
accounts:
  - accessKey: alice12
    secretKey: plain-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB|SUB]
    groupPerms: [billing=SUB]
"""
Admin = Callable[..., str]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DueMQ]:
    """A broker with accounts, started."""
    with DueMQ(tmp_path_factory.mktemp("checked"), keys=KEYS) as started:
        yield started


def admin_of(
    server: Server, home: Path, credentials: tuple[str, str], *, version: str = "5.3.3"
) -> Admin:
    """Return mqadmin as this account, against the server."""
    conf = home / "rmq" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "logback_tools.xml").write_text(LOGBACK)
    (conf / "tools.yml").write_text(f"accessKey: {credentials[0]}\nsecretKey: {credentials[1]}\n")

    def run(*arguments: str) -> str:
        return mqadmin(version, home, *arguments, "-n", server.namesrv_address)

    return run


@pytest.fixture(scope="module")
def admin(checked: DueMQ, tmp_path_factory: pytest.TempPathFactory) -> Admin:
    """mqadmin of 5.3.3 as the super user, against the broker."""
    return admin_of(checked, tmp_path_factory.mktemp("root"), (ROOT.access_key, ROOT.secret))


@pytest.fixture(scope="module")
def alice(checked: DueMQ, admin: Admin) -> tuple[str, str]:
    """An account that may use topic orders and group g."""
    at = ("-b", checked.broker_address)
    admin("updateTopic", *at, "-t", "orders", "-r", "4", "-w", "4")
    admin("updateTopic", *at, "-t", "%RETRY%g", "-r", "1", "-w", "1")
    admin("createUser", *at, "-u", ALICE[0], "-p", ALICE[1], "-t", "Normal")
    pub_sub = ("-a", "Pub,Sub", "-d", "Allow")
    admin("createAcl", *at, "-s", "User:alice", "-r", "Topic:orders,Group:g", *pub_sub)
    return ALICE


@pytest.fixture(params=[extended("4.9.7"), "5.3.3"])
def java(request: pytest.FixtureRequest, checked: DueMQ, tmp_path: Path) -> Iterator[ClientSession]:
    """Apache's Java client, in each version."""
    command = java_command(str(request.param), tmp_path)
    with ClientSession("java", command, namesrv=checked.namesrv_address, home=tmp_path) as session:
        yield session


def options_of(account: tuple[str, str]) -> dict[str, object]:
    return {"access_key": account[0], "secret_key": account[1], "instance": "of-" + account[1]}


@pytest.mark.extended
def test_signed_clients_send_and_consume_and_others_are_refused(
    java: ClientSession, alice: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    body = request.node.callspec.id
    consumer = java.start("push-consume", group="g", topic="orders", until=2, **options_of(alice))
    consumer.wait_for("started")
    java.run("produce", topic="orders", n=2, body=body, **options_of(alice))
    consumer.wait_for("message", 2)
    consumer.result()
    for account, topic in ((("alice", "wrong-secret"), "orders"), (alice, "others")):
        with pytest.raises(ClientFailed, match=r"CODE: 16|No route info"):
            java.run("produce", topic=topic, send_timeout_ms=3_000, **options_of(account))
    with pytest.raises(ClientFailed, match=r"No route info"):
        java.run("produce", topic="orders", instance="stranger", send_timeout_ms=3_000)


@pytest.mark.extended
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_clients_of_plain_acl_send_and_consume(version: str, tmp_path: Path) -> None:
    conf = tmp_path / "rmq" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(PLAIN_ACL)
    (conf / "plain_acl.yml").chmod(0o600)
    keys = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "rmq")}
    command = java_command(version, tmp_path / "java")
    with DueMQ(tmp_path / "broker", keys=keys) as server:
        at, home = server.namesrv_address, tmp_path / "java"
        with ClientSession("java", command, namesrv=at, home=home) as java:
            java.run("produce", topic="orders", n=2, **options_of(PLAIN))
            options = {"group": "billing", "topic": "orders", "until": 2}
            consumer = java.start("push-consume", **options, **options_of(PLAIN))
            consumer.wait_for("message", 2)
            consumer.result()
            for account, topic in ((PLAIN, "others"), (("alice12", "wrong-secret"), "orders")):
                with pytest.raises(ClientFailed, match=r"CODE: 1 |No route info"):
                    java.run("produce", topic=topic, send_timeout_ms=3_000, **options_of(account))


@pytest.mark.extended
def test_mqadmin_manages_users_and_acls(checked: DueMQ, admin: Admin, alice: object) -> None:
    at = ("-b", checked.broker_address)
    admin("createUser", *at, "-u", "bob", "-p", "bob-secret", "-t", "Super")
    assert re.search(r"bob\s+bob-secret\s+Super\s+enable", admin("getUser", *at, "-u", "bob"))
    for change in (("-p", "new-secret"), ("-t", "Normal"), ("-s", "disable")):
        admin("updateUser", *at, "-u", "bob", *change)
    assert re.search(r"bob\s+new-secret\s+Normal\s+disable", admin("listUser", *at, "-f", "bo"))
    acl = ("-s", "User:bob", "-r", "Topic:a*")
    admin("createAcl", *at, *acl, "-a", "Pub,Sub", "-i", "10.0.0.0/8", "-d", "Allow")
    shown = r"User:bob\s+Custom\s+Topic:a\*\s+\[?Pub, ?Sub\]?\s+\[?10.0.0.0/8\]?\s+Allow"
    assert re.search(shown, admin("getAcl", *at, "-s", "User:bob"))
    admin("updateAcl", *at, *acl, "-a", "Pub", "-d", "Deny")
    assert re.search(r"Topic:a\*\s+\[?Pub\]?.*Deny", admin("listAcl", *at, "-s", "User:bob"))
    admin("deleteAcl", *at, "-s", "User:bob", "-r", "Topic:a*")
    assert "Topic:a" not in admin("listAcl", *at, "-s", "User:bob")
    admin("deleteUser", *at, "-u", "bob")
    assert "bob" not in admin("listUser", *at)


@pytest.mark.extended
def test_mqadmin_copies_users_and_acls_to_another_broker(
    checked: DueMQ, alice: object, tmp_path: Path
) -> None:
    with DueMQ(tmp_path / "second", keys=KEYS) as second:
        copy = ("-f", checked.broker_address, "-t", second.broker_address)
        there = admin_of(second, tmp_path / "admin", (ROOT.access_key, ROOT.secret))
        there("copyUser", *copy, "-u", "alice")
        there("copyAcl", *copy, "-s", "User:alice")
        found = there("listAcl", "-b", second.broker_address, "-s", "User:alice")
        assert "Topic:orders" in found
        assert "Group:g" in found


@pytest.mark.extended
def test_mqadmin_without_permission_changes_nothing(
    checked: DueMQ, admin: Admin, alice: tuple[str, str], tmp_path: Path
) -> None:
    plain = admin_of(checked, tmp_path, alice)
    at = ("-b", checked.broker_address)
    plain("createUser", *at, "-u", "eve", "-p", "eve-secret", "-t", "Super")
    found = admin("listUser", *at)
    assert "alice" in found
    assert "eve" not in found
