"""ACL 1.0: decisions of plain_acl.yml, its files and their hot reload."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.audit import AuditLog
from duemq.auth.plain_files import PlainFiles
from duemq.auth.plain_gate import PlainGate
from duemq.auth.plain_rules import rules_of
from duemq.auth.signature import Credentials
from duemq.broker.collectors.collector import broker_collector
from duemq_common.codes import RequestCode
from duemq_common.errors import CorruptStore, RequestError
from duemq_common.request import Request
from tests.support.running_broker import connected, running, small

ALICE = Credentials("alice12", "alice-secret")
ADMIN = Credentials("admin12", "admin-secret")
FREE = Credentials("free123", "free-secret")
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
TEXT = """
globalWhiteRemoteAddresses: [10.1.1.*]
accounts:
  - accessKey: alice12
    secretKey: alice-secret
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: SUB
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB|SUB, closed=DENY, sent = PUB]
    groupPerms: [billing=SUB]
  - {accessKey: admin12, secretKey: admin-secret, admin: true}
  - {accessKey: free123, secretKey: free-secret, whiteRemoteAddress: 10.2.2.2}
"""
POPPED: dict[str, Any] = {"topic": "sent", "consumerGroup": "billing"}
RETRIED: dict[str, Any] = {"topic": "%RETRY%billing_sent", "consumerGroup": "billing"}
ACKS = b'{"acks":[{"c":"billing","t":"orders"},{"consumerGroup":"billing","topic":"sent"}]}'
HEART = {
    "consumerDataSet": [{"groupName": "billing", "subscriptionDataSet": [{"topic": "closed"}]}]
}


def gate(text: str = TEXT) -> PlainGate:
    import yaml

    rules = rules_of([("plain_acl.yml", yaml.safe_load(text))])
    return PlainGate(lambda: rules, lambda: 0, AuditLog(lambda: 0), "DefaultCluster")


def requested(
    code: int,
    credentials: Credentials | None,
    body: bytes = b"",
    at: str = "10.0.0.1",
    **fields: str,
) -> Request:
    made = Request(code, dict(fields), body, version=399)
    signed = credentials.sign(made) if credentials is not None else made

    class Here:
        address = (at, 5_012)

    signed.peer = Here()  # type: ignore[assignment]
    return signed


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (requested(310, None, b="orders"), "No accessKey is configured"),
        (requested(310, None), "No accessKey is configured"),
        (requested(310, Credentials("absent1", "x"), b="orders"), "No acl config for absent1"),
        (
            requested(310, Credentials("alice12", "x"), b="orders"),
            "Check signature failed for accessKey=alice12",
        ),
        (requested(310, ALICE, b="other"), "No default permission for topic:other"),
        (requested(320, ALICE, b="other"), "No default permission for topic:other"),
        (requested(10, ALICE, topic="closed"), "No default permission for topic:closed"),
        (requested(310, ALICE, b="%RETRY%x", a="x"), "No default permission for group:x"),
        (
            requested(11, ALICE, topic="orders", consumerGroup="x"),
            "No default permission for group:x",
        ),
        (
            requested(11, ALICE, topic="sent", consumerGroup="billing"),
            "No default permission for topic:sent",
        ),
        (
            requested(34, ALICE, json.dumps(HEART).encode()),
            "No default permission for topic:closed",
        ),
        *(
            (requested(code, ALICE, **named), "No default permission for topic:sent")
            for code, named in [
                (RequestCode.POP_MESSAGE, POPPED),
                (RequestCode.PEEK_MESSAGE, POPPED),
                (RequestCode.NOTIFICATION, POPPED),
                (RequestCode.ACK_MESSAGE, POPPED),
                (RequestCode.ACK_MESSAGE, RETRIED),
                (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RETRIED),
            ]
        ),
        (
            requested(RequestCode.POP_MESSAGE, ALICE, topic="orders", consumerGroup="x"),
            "No default permission for group:x",
        ),
        (
            requested(RequestCode.ACK_MESSAGE, ALICE, topic="orders", consumerGroup="x"),
            "No default permission for group:x",
        ),
        (
            requested(RequestCode.BATCH_ACK_MESSAGE, ALICE, ACKS),
            "No default permission for topic:sent",
        ),
        (
            requested(17, ALICE, topic="orders"),
            "Need admin permission for request code=17, but accessKey=alice12 is not",
        ),
        (requested(9_023, ALICE, topic="sent"), "No default permission for topic:sent"),
        (
            requested(9_011, ALICE, topic="orders"),
            "Need admin permission for request code=9011, but accessKey=alice12 is not",
        ),
    ],
)
def test_a_refusal_has_code_1_and_apaches_text(request_: Request, why: str) -> None:
    with pytest.raises(RequestError) as caught:
        gate()(request_)
    assert (caught.value.code, caught.value.remark) == (1, EXCEPTION + why)


@pytest.mark.parametrize(
    "request_",
    [
        requested(310, ALICE, b="orders"),
        requested(310, ALICE, b="sent"),
        requested(310, ALICE, b="RMQ_SYS_TRACE_TOPIC"),
        requested(11, ALICE, topic="unknown", consumerGroup="billing"),
        requested(36, ALICE, group="billing"),
        requested(RequestCode.POP_MESSAGE, ALICE, topic="orders", consumerGroup="billing"),
        requested(RequestCode.ACK_MESSAGE, ALICE, topic="orders", consumerGroup="billing"),
        requested(
            RequestCode.ACK_MESSAGE, ALICE, topic="%RETRY%billing+orders", consumerGroup="billing"
        ),
        requested(RequestCode.BATCH_ACK_MESSAGE, ALICE, ACKS.replace(b"sent", b"orders")),
        requested(26, ALICE),
        requested(17, ADMIN, topic="orders"),
        requested(310, ADMIN, b="anything"),
        requested(17, None, at="10.1.1.9"),
        requested(17, Credentials("free123", "wrong"), at="10.2.2.2"),
    ],
)
def test_permitted_requests_pass(request_: Request) -> None:
    gate()(request_)


@pytest.mark.parametrize(
    "body", [b"{", b'{"handles":[' + b'"x",' * 10_001 + b'"x"]}', b'{"topic":' + b"[" * 10_000]
)
def test_a_malformed_administrative_request_is_audited_and_left_to_its_handler(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="duemq.audit"):
        gate()(requested(9011, ADMIN, body))
    (record,) = caplog.records
    line = json.loads(record.getMessage())
    assert (line["event"], line["user"], line["code"]) == ("allowed", ADMIN.access_key, 9011)


def test_the_query_flag_is_never_signed() -> None:
    made = ALICE.sign(Request(12, {"topic": "orders"}, version=479))
    made.fields["_UNIQUE_KEY_QUERY"] = "true"
    gate()(made)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("accounts:", "acounts:"), "acounts is unknown"),
        (("secretKey: alice-secret", "secretKey: short"), "at least 7"),
        (("secretKey: alice-secret", "secretkey: alice-secret"), "secretkey is unknown"),
        (("orders=PUB|SUB", "orders:PUB"), "orders:PUB"),
        (("orders=PUB|SUB", "orders=PUP"), "'PUP' is not PUB"),
        (("admin: false", "admin: maybe"), "admin must be"),
        (("10.1.1.*", "10.1.1"), "is not an IP address"),
        (("[orders=PUB|SUB, closed=DENY, sent = PUB]", "orders"), "not a list"),
        (("accounts:", "accounts: ["), "plain_acl.yml"),
        ((TEXT, ""), "not a mapping"),
        ((TEXT, "- a"), "not a mapping"),
    ],
)
def test_a_half_edited_file_stops_the_start(
    tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    home = write(tmp_path, TEXT.replace(*change))
    with pytest.raises(CorruptStore, match=why):
        PlainFiles(home)


def write(home: Path, text: str, name: str = "plain_acl.yml", mode: int = 0o600) -> Path:
    path = home / "conf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return home


def test_a_missing_or_readable_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(CorruptStore, match="rocketmqHome"):
        PlainFiles(tmp_path)
    with pytest.raises(CorruptStore, match="chmod 600"):
        PlainFiles(write(tmp_path, TEXT, mode=0o644))


def test_a_changed_file_is_used_when_it_has_settled(tmp_path: Path) -> None:
    files = PlainFiles(write(tmp_path, TEXT))
    new = TEXT.replace("alice12", "bob1234")
    write(tmp_path, TEXT + "  - {accessKey: half123")
    files.poll()
    write(tmp_path, new)
    files.poll()
    assert (files.rules.account("alice12") is not None, files.version) == (True, 0)
    files.poll()
    assert (files.rules.account("bob1234") is not None, files.version) == (True, 1)
    write(tmp_path, "accounts:\n- {accessKey: more123, secretKey: more-secret}", "acl/more.yml")
    files.poll()
    files.poll()
    assert files.rules.account("more123") is not None
    assert (files.version, files.failure_count) == (2, 0)


@pytest.mark.parametrize(("text", "mode"), [("accounts: [", 0o600), ("", 0o600), (TEXT, 0o644)])
def test_a_bad_file_changes_nothing_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, mode: int
) -> None:
    caplog.set_level(logging.ERROR)
    files = PlainFiles(write(tmp_path, TEXT))
    rules = files.rules
    write(tmp_path, text, mode=mode)
    for _ in range(6):
        files.poll()
    assert files.rules is rules
    assert (files.version, files.failure_count, len(caplog.records)) == (0, 1, 1)
    assert "the accounts are not reloaded" in caplog.text
    write(tmp_path, TEXT.replace("alice12", "bob1234"))
    files.poll()
    files.poll()
    assert files.rules.account("bob1234") is not None
    assert files.failure_count == 1


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("call", ["scandir", "stat"])
def test_a_directory_that_cannot_be_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    """Its accounts do not seem to be deleted, and reloading continues afterwards."""
    more = "accounts:\n- {accessKey: more123, secretKey: more-secret}"
    files = PlainFiles(write(write(tmp_path, TEXT), more, "acl/more.yml"))
    called = getattr(os, call)

    def fail(path: Any, *args: Any, **keys: Any) -> Any:
        if str(path).endswith("conf/acl"):
            raise OSError(error, os.strerror(error), path)
        return called(path, *args, **keys)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        for _ in range(3):
            files.poll()
    assert files.rules.account("more123") is not None
    assert (files.version, files.failure_count) == (0, 1)
    write(tmp_path, more.replace("more123", "less123"), "acl/more.yml")
    files.poll()
    files.poll()
    assert files.rules.account("less123") is not None


def test_a_broker_uses_the_files(tmp_path: Path) -> None:
    keys = {"aclEnable": "true", "rocketmqHome": str(write(tmp_path / "rmq", TEXT))}

    async def main() -> None:
        async with running(small(tmp_path, **keys)) as (broker, stranger):
            refused = await stranger.send("orders", b"x")
            assert (refused.code, refused.remark) == (1, EXCEPTION + "No accessKey is configured")
            async with connected(broker.address, ALICE) as alice:
                assert (await alice.send("orders", b"1")).code == 0
                assert (await alice.send("orders", b"2")).code == 0
                assert (await alice.send("other", b"2")).code == 1
                assert broker.access is not None
                text = TEXT.replace("orders=PUB|SUB", "orders=SUB")
                write(tmp_path / "rmq", text)
                for _ in range(2):
                    await broker.access.poll()
                assert (await alice.send("orders", b"3")).code == 1
            async with connected(broker.address, ADMIN) as admin:
                assert (await admin.call(RequestCode.GET_BROKER_CONFIG)).code == 0
            write(tmp_path / "rmq", "accounts: [")
            for _ in range(3):
                await broker.access.poll()
            found = {
                sample.name: sample.value
                for family in broker_collector(broker).collect()
                for sample in family.samples
            }
            assert found["duemq_access_refused_total"] == 3
            assert found["duemq_access_reload_failures_total"] == 1

    asyncio.run(main())


def test_an_account_pops_only_what_it_may_consume(tmp_path: Path) -> None:
    keys = {"aclEnable": "true", "rocketmqHome": str(write(tmp_path / "rmq", TEXT))}
    pop = {
        "consumerGroup": "billing",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    }

    async def main() -> None:
        async with running(small(tmp_path, **keys)) as (broker, _):
            async with connected(broker.address, ADMIN) as admin:
                for topic in ("orders", "closed"):
                    assert (await admin.send(topic, b"secret")).code == 0
            async with connected(broker.address, ALICE) as alice:
                for code in (RequestCode.PEEK_MESSAGE, RequestCode.POP_MESSAGE):
                    refused = await alice.call(code, pop | {"topic": "closed"})
                    assert (refused.code, refused.body) == (1, b"")
                    assert refused.remark == EXCEPTION + "No default permission for topic:closed"
                    permitted = await alice.call(code, pop | {"topic": "orders"})
                    assert (permitted.code, b"secret" in permitted.body) == (0, True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("requested_", "why"),
    [
        (requested(310, ALICE, b="closed"), ""),  # without the permission
        (
            requested(310, Credentials("alice12", "x")),
            "Check signature failed for accessKey=alice12",
        ),
        (requested(310, None), "No accessKey is configured"),
        (requested(310, None, at="10.1.1.5"), ""),
        (requested(310, Credentials("free123", "x"), at="10.2.2.2"), ""),
        (
            requested(310, Credentials("free123", "x")),
            "Check signature failed for accessKey=free123",
        ),
    ],
)
def test_a_signature_is_checked_without_permissions(requested_: Request, why: str) -> None:
    if not why:
        gate().authenticate(requested_)
        return
    with pytest.raises(RequestError) as caught:
        gate().authenticate(requested_)
    assert caught.value.remark == EXCEPTION + why
